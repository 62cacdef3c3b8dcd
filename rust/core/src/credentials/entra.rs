//! Applications of Entra ID: an id and a secret are exchanged for a token.

use std::time::Duration;

use super::{Issued, token};
use crate::upstream::Upstream;

pub async fn token(
    upstream: &Upstream,
    (authority, tenant): (&str, &str),
    (client, secret): (&str, &str),
    scope: &str,
) -> Result<(Issued, Duration), String> {
    let url = format!("{}/{tenant}/oauth2/v2.0/token", authority.trim_end_matches('/'));
    let form = token::form(&[
        ("grant_type", "client_credentials"),
        ("client_id", client),
        ("client_secret", secret),
        ("scope", scope),
    ]);
    token::ask(upstream, &url, &form).await
}
