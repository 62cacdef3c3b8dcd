//! Authentication: gateway keys and tokens of identity providers.

pub mod caller;
pub mod gateway_key;
pub mod jwt;
pub mod upload_token;
