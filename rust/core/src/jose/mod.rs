//! Signed tokens (RFC 7515, RFC 7517): public keys, and JSON that every parser reads alike.

pub mod strict_json;
pub mod verifier;
