//! Applications of Entra ID: an id and a secret, or what vouches in its place, are exchanged for a token.

use std::time::Duration;

use super::Issued;
use crate::credentials::token_endpoint;
use crate::upstream::Upstream;

/// With what an application shows that it is who it says.
#[derive(Clone, Copy)]
pub enum Proof<'p> {
    Secret(&'p str),
    /// A token of somebody whom the application's tenant trusts.
    Vouched(&'p str),
}

const ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

pub async fn token(
    upstream: &Upstream,
    (authority, tenant): (&str, &str),
    (client, proof): (&str, Proof<'_>),
    scope: &str,
) -> Result<(Issued, Duration), String> {
    let url = format!("{}/{tenant}/oauth2/v2.0/token", authority.trim_end_matches('/'));
    let mut fields = vec![("grant_type", "client_credentials"), ("client_id", client)];
    match proof {
        Proof::Secret(secret) => fields.push(("client_secret", secret)),
        Proof::Vouched(token) => {
            fields.extend([("client_assertion_type", ASSERTION), ("client_assertion", token)]);
        }
    }
    fields.push(("scope", scope));
    token_endpoint::ask(upstream, &url, &token_endpoint::form(&fields)).await
}
