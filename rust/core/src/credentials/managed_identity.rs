//! Entra ID tokens for the machine that the gateway runs on (managed identity), or for an application that trusts its
//! identity (workload identity).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penstock_llm::catalog::{ClientAssertion, FederatedApplication};
use penstock_net::{MetadataService, Upstream};
use serde::Deserialize;

use super::entra;
use crate::{
    credentials::{aws_instance, issued::IssuedCredential, token_endpoint},
    process::settings::WorkloadIdentity,
};

/// Resource of a machine token that serves as a client assertion for an application.
const TOKEN_EXCHANGE_RESOURCE: &str = "api://AzureADTokenExchange";
/// Token path of the virtual machine metadata service, below its address, and its API version.
const VM_TOKEN_PATH_AND_API_VERSION: (&str, &str) = ("/metadata/identity/oauth2/token", "2018-02-01");
/// API version of the token endpoint in container and app services.
const APP_SERVICE_API_VERSION: &str = "2019-08-01";

/// Fetches a token for the machine's managed identity. `client` selects one of several identities.
pub async fn fetch_managed_token(
    identity: &WorkloadIdentity,
    resource: &str,
    client: Option<&str>,
) -> Result<(IssuedCredential, Duration), String> {
    let credential = request_token(identity, resource, client).await.and_then(|response| parse_token(&response));
    credential.map_err(|message| format!("managed identity of this machine: {message}"))
}

/// Fetches a token for an application that trusts the machine's identity. Tenant and client default to those of the
/// machine's platform.
pub async fn fetch_federated_token(
    upstream: &Upstream,
    identity: &WorkloadIdentity,
    application: &FederatedApplication,
) -> Result<(IssuedCredential, Duration), String> {
    let lacks = |setting: &str, option: &str| format!("neither identity.{setting} nor {option} is set");
    let tenant = application.tenant.as_ref().or(identity.azure_tenant_id.as_ref());
    let tenant = tenant.ok_or_else(|| lacks("azure_tenant_id", "azure_workload_tenant_id"))?;
    let client = application.client_id.as_ref().or(identity.azure_client_id.as_ref());
    let client = client.ok_or_else(|| lacks("azure_client_id", "azure_workload_client_id"))?;
    let vouched = fetch_client_assertion(identity, &application.client_assertion).await?;
    // The assertion proves the machine's identity, so it is sent only to the authority that the operator configured.
    entra::fetch_token(
        upstream,
        &identity.azure_authority_host,
        tenant,
        client,
        entra::ClientCredential::Assertion(&vouched),
        &application.scope,
    )
    .await
}

async fn fetch_client_assertion(identity: &WorkloadIdentity, voucher: &ClientAssertion) -> Result<String, String> {
    match (&identity.azure_federated_token_file, voucher) {
        (Some(file), _) => aws_instance::read_file(file).await,
        (None, ClientAssertion::WorkloadTokenFile) => Err("identity.azure_federated_token_file is not set".into()),
        (None, ClientAssertion::TokenFileOrManagedIdentity { managed_client_id: managed }) => {
            match fetch_managed_token(identity, TOKEN_EXCHANGE_RESOURCE, managed.as_deref()).await? {
                (IssuedCredential::Token(token), _) => Ok(token),
                _ => Err("the identity endpoint returned no token".into()),
            }
        }
    }
}

async fn request_token(
    identity: &WorkloadIdentity,
    resource: &str,
    client: Option<&str>,
) -> Result<bytes::Bytes, String> {
    let (url, secret) = match &identity.azure_identity_url {
        Some(url) => (url, identity.azure_identity_header.as_ref()),
        None => (&identity.azure_metadata_url, None),
    };
    let service = MetadataService::parse(url)?;
    let (below, version) = if identity.azure_identity_url.is_some() {
        ("", APP_SERVICE_API_VERSION)
    } else {
        VM_TOKEN_PATH_AND_API_VERSION
    };
    let mut fields = vec![("api-version", version), ("resource", resource)];
    fields.extend(client.map(|client| ("client_id", client)));
    let path = format!("{}{below}?{}", service.path, token_endpoint::encode_form(&fields));
    let header = secret.map_or(("metadata", "true"), |value| ("x-identity-header", value.expose()));
    aws_instance::require_ok(service.send_request("GET", &path, &[header]).await?)
}

fn parse_token(json: &[u8]) -> Result<(IssuedCredential, Duration), String> {
    #[derive(Deserialize)]
    struct ManagedIdentityToken {
        access_token: String,
        #[serde(default)]
        expires_in: Option<serde_json::Value>,
        #[serde(default)]
        expires_on: Option<serde_json::Value>,
    }
    let response: ManagedIdentityToken = serde_json::from_slice(json).map_err(|_| "the response contains no token")?;
    // Some endpoints write numbers as strings, and some return only the expiry time.
    let number = |value: &serde_json::Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let until = || response.expires_on.as_ref().and_then(number).map(|end| end.saturating_sub(now));
    let life = response.expires_in.as_ref().and_then(number).or_else(until).ok_or("the token has no expiry time")?;
    if response.access_token.is_empty() || !response.access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the token cannot be sent in a header".into());
    }
    Ok((IssuedCredential::Token(response.access_token), Duration::from_secs(life)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_lifetime_or_expiry_time_of_a_token() {
        let life = |json: &str| parse_token(json.as_bytes()).map(|(_, life)| life.as_secs());
        assert_eq!(life(r#"{"access_token":"t","expires_in":"3599"}"#), Ok(3599));
        let expiry = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 1000;
        let remaining = life(&format!(r#"{{"access_token":"t","expires_on":"{expiry}"}}"#)).unwrap();
        assert!((998..=1000).contains(&remaining), "{remaining}");
        for wrong in ["{}", r#"{"access_token":"t"}"#, r#"{"access_token":"a b","expires_in":1}"#, "x"] {
            assert!(life(wrong).is_err(), "{wrong}");
        }
    }
}
