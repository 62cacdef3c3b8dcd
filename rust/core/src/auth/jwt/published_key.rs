//! Public keys of identity providers, as the control process publishes them.

use serde::Deserialize;

use crate::jose::verifier::Jwk;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedJwk {
    pub(super) kid: String,
    /// Index of the issuer that owns the key.
    pub(super) issuer: usize,
    kty: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
}

impl PublishedJwk {
    pub(super) fn to_jwk(&self) -> Jwk {
        let Self { kid, kty, n, e, crv, x, y, .. } = self;
        let [kid, kty, n, e, crv, x, y] = [kid, kty, n, e, crv, x, y].map(Clone::clone);
        Jwk { kid, kty, usage: String::new(), n, e, crv, x, y }
    }
}
