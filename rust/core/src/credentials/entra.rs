//! Entra ID (Microsoft) application tokens. Exchanges a client id with a secret or a client assertion for an access
//! token.

use std::time::Duration;

use penstock_net::Upstream;

use crate::credentials::{issued::IssuedCredential, token_endpoint};

/// How an application authenticates to Entra ID.
#[derive(Clone, Copy)]
pub enum ClientCredential<'p> {
    Secret(&'p str),
    /// A token from an issuer that the application's tenant trusts.
    Assertion(&'p str),
}

const ASSERTION_TYPE_JWT_BEARER: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

pub async fn fetch_token(
    upstream: &Upstream,
    authority: &str,
    tenant: &str,
    client: &str,
    credential: ClientCredential<'_>,
    scope: &str,
) -> Result<(IssuedCredential, Duration), String> {
    let url = format!("{}/{tenant}/oauth2/v2.0/token", authority.trim_end_matches('/'));
    let mut fields = vec![("grant_type", "client_credentials"), ("client_id", client)];
    match credential {
        ClientCredential::Secret(secret) => fields.push(("client_secret", secret)),
        ClientCredential::Assertion(token) => {
            fields.extend([("client_assertion_type", ASSERTION_TYPE_JWT_BEARER), ("client_assertion", token)]);
        }
    }
    fields.push(("scope", scope));
    token_endpoint::request_token(upstream, &url, &token_endpoint::encode_form(&fields)).await
}
