//! Authentication: gateway keys and tokens of identity providers.

pub mod caller;
pub mod jwt;
