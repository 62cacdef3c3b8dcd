//! Google service accounts. Exchanges a JWT, signed with the account's private key, for an access token.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{RSA_PKCS1_SHA256, RsaKeyPair},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use penstock_net::Upstream;
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::credentials::{issued::IssuedCredential, token_endpoint};

/// Requested token lifetime; Google grants at most this.
const TOKEN_LIFETIME_SECONDS: u64 = 3600;
const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

/// Fields of a service account's key file that the gateway uses.
#[derive(Deserialize)]
struct ServiceAccountKeyFile {
    client_email: String,
    private_key: String,
    #[serde(default)]
    private_key_id: String,
    #[serde(default = "endpoint")]
    token_uri: String,
}

fn endpoint() -> String {
    "https://oauth2.googleapis.com/token".to_owned()
}

pub async fn fetch_token(
    upstream: &Upstream,
    key_file: &str,
    scope: &str,
) -> Result<(IssuedCredential, Duration), String> {
    // The file is secret, and serde's own error message would quote it.
    let file: ServiceAccountKeyFile = serde_json::from_str(key_file).map_err(
        |_| "vertex_service_account_json must be the key file: `client_email`, `private_key` and `token_uri`",
    )?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let statement = sign_jwt(&file, scope, now)?;
    token_endpoint::request_token(
        upstream,
        &file.token_uri,
        &token_endpoint::encode_form(&[("grant_type", GRANT_TYPE), ("assertion", &statement)]),
    )
    .await
}

/// Builds and signs the JWT that requests a token for a scope.
fn sign_jwt(file: &ServiceAccountKeyFile, scope: &str, now: u64) -> Result<String, String> {
    let unusable = "the private key of vertex_service_account_json cannot be used: it must be PKCS #8 in PEM";
    let key = PrivatePkcs8KeyDer::from_pem_slice(file.private_key.as_bytes()).map_err(|_| unusable)?;
    let key = RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).map_err(|_| unusable)?;
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(&json!({"alg": "RS256", "typ": "JWT", "kid": file.private_key_id}));
    let claims = part(&json!({"iss": file.client_email, "scope": scope, "aud": file.token_uri, "iat": now,
        "exp": now + TOKEN_LIFETIME_SECONDS}));
    let signing_input = format!("{head}.{claims}");
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signing_input.as_bytes(), &mut signature)
        .map_err(|_| unusable)?;
    Ok(format!("{signing_input}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_invalid_private_key_without_revealing_it() {
        let file = ServiceAccountKeyFile {
            client_email: "a@b".into(),
            private_key: "s3cret".into(),
            private_key_id: String::new(),
            token_uri: endpoint(),
        };
        let message = sign_jwt(&file, "scope", 0).unwrap_err();
        assert!(message.contains("private key") && !message.contains("s3cret"), "{message}");
    }
}
