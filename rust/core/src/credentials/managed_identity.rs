//! Tokens of Entra ID for the machine that this runs on, or for an application for which that vouches.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penstock_llm::catalog::{ClientAssertion, FederatedApplication};
use serde::Deserialize;

use super::{IssuedCredential, entra};
use crate::credentials::{aws_instance, token_endpoint};
use crate::{
    process::settings::WorkloadIdentity,
    upstream::{MetadataService, Upstream},
};

/// What a token of the machine's must be for to vouch for an application.
const TOKEN_EXCHANGE_RESOURCE: &str = "api://AzureADTokenExchange";
/// Where virtual machines are told, below the address of their metadata, and the version of that.
const VM_TOKEN_PATH_AND_API_VERSION: (&str, &str) = ("/metadata/identity/oauth2/token", "2018-02-01");
/// The version of services that run containers and apps.
const APP_SERVICE_API_VERSION: &str = "2019-08-01";

/// A token of the machine's own identity, or of the one of several that is named.
pub async fn fetch_managed_token(
    own: &WorkloadIdentity,
    resource: &str,
    client: Option<&str>,
) -> Result<(IssuedCredential, Duration), String> {
    let found = request_token(own, resource, client).await.and_then(|answer| parse_token(&answer));
    found.map_err(|message| format!("this machine's own identity: {message}"))
}

/// A token of an application for which the machine vouches. Who does not say where leaves it to the machine's platform.
pub async fn fetch_federated_token(
    upstream: &Upstream,
    own: &WorkloadIdentity,
    asked: &FederatedApplication,
) -> Result<(IssuedCredential, Duration), String> {
    let lacks = |setting: &str, option: &str| format!("neither identity.{setting} nor {option} is set");
    let tenant = asked.tenant.as_ref().or(own.azure_tenant_id.as_ref());
    let tenant = tenant.ok_or_else(|| lacks("azure_tenant_id", "azure_workload_tenant_id"))?;
    let client = asked.client_id.as_ref().or(own.azure_client_id.as_ref());
    let client = client.ok_or_else(|| lacks("azure_client_id", "azure_workload_client_id"))?;
    let vouched = fetch_client_assertion(own, &asked.client_assertion).await?;
    // What vouches for the machine goes to nobody but who its operator trusts.
    entra::fetch_token(
        upstream,
        (&own.azure_authority_host, tenant),
        (client, entra::ClientCredential::Assertion(&vouched)),
        &asked.scope,
    )
    .await
}

async fn fetch_client_assertion(own: &WorkloadIdentity, voucher: &ClientAssertion) -> Result<String, String> {
    match (&own.azure_federated_token_file, voucher) {
        (Some(file), _) => aws_instance::read_file(file).await,
        (None, ClientAssertion::WorkloadTokenFile) => Err("identity.azure_federated_token_file is not set".into()),
        (None, ClientAssertion::TokenFileOrManagedIdentity { managed_client_id: managed }) => {
            match fetch_managed_token(own, TOKEN_EXCHANGE_RESOURCE, managed.as_deref()).await? {
                (IssuedCredential::Token(token), _) => Ok(token),
                _ => Err("what was given is no token".into()),
            }
        }
    }
}

async fn request_token(own: &WorkloadIdentity, resource: &str, client: Option<&str>) -> Result<bytes::Bytes, String> {
    let (url, word) = match &own.azure_identity_url {
        Some(url) => (url, own.azure_identity_header.as_ref()),
        None => (&own.azure_metadata_url, None),
    };
    let service = MetadataService::parse(url)?;
    let (below, version) =
        if own.azure_identity_url.is_some() { ("", APP_SERVICE_API_VERSION) } else { VM_TOKEN_PATH_AND_API_VERSION };
    let mut fields = vec![("api-version", version), ("resource", resource)];
    fields.extend(client.map(|client| ("client_id", client)));
    let path = format!("{}{below}?{}", service.path, token_endpoint::encode_form(&fields));
    let word = word.map_or(("metadata", "true"), |word| ("x-identity-header", word.expose()));
    aws_instance::require_ok(service.send_request("GET", &path, &[word]).await?)
}

fn parse_token(json: &[u8]) -> Result<(IssuedCredential, Duration), String> {
    #[derive(Deserialize)]
    struct TokenResponse {
        access_token: String,
        #[serde(default)]
        expires_in: Option<serde_json::Value>,
        #[serde(default)]
        expires_on: Option<serde_json::Value>,
    }
    let told: TokenResponse = serde_json::from_slice(json).map_err(|_| "it gave no token")?;
    // Some write numbers as text, and some say only when it ends.
    let number = |value: &serde_json::Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let until = || told.expires_on.as_ref().and_then(number).map(|end| end.saturating_sub(now));
    let life = told.expires_in.as_ref().and_then(number).or_else(until).ok_or("its token has no end")?;
    if told.access_token.is_empty() || !told.access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it gave a token that no header can carry".into());
    }
    Ok((IssuedCredential::Token(told.access_token), Duration::from_secs(life)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_lifetime_or_expiry_time_of_a_token() {
        let life = |json: &str| parse_token(json.as_bytes()).map(|(_, life)| life.as_secs());
        assert_eq!(life(r#"{"access_token":"t","expires_in":"3599"}"#), Ok(3599));
        let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 1000;
        let told = life(&format!(r#"{{"access_token":"t","expires_on":"{soon}"}}"#)).unwrap();
        assert!((998..=1000).contains(&told), "{told}");
        for wrong in ["{}", r#"{"access_token":"t"}"#, r#"{"access_token":"a b","expires_in":1}"#, "x"] {
            assert!(life(wrong).is_err(), "{wrong}");
        }
    }
}
