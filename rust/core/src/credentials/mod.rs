//! Provider credentials that need more than a static header. Fetches tokens and keys, and signs each request.

mod aws;
pub(crate) mod aws_instance;
pub(crate) mod credential_cache;
pub(crate) mod encrypted_key;
mod entra;
mod external_account;
mod google;
pub(crate) mod issued;
pub(crate) mod managed_identity;
mod oracle;
pub(crate) mod payload_hash;
pub(crate) mod sigv4;
pub(crate) mod token_endpoint;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use penstock_llm::{
    catalog::{AmazonKeys, AssumeRole, AwsCredentials, AwsMachineIdentity, Grant, SigningKeys},
    operation::Operation,
};

pub use crate::credentials::aws_instance::check_identity_urls;
pub use crate::credentials::credential_cache::CredentialCache;
pub use crate::credentials::issued::IssuedCredential;
pub use crate::credentials::payload_hash::PayloadDigest;

use penstock_net::{Upstream, body::Body};

use crate::{
    error::{Error, Result},
    gateway_state::GatewayState,
    process::settings::WorkloadIdentity,
    resolve::target::Target,
};

/// Timeout for fetching a credential.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Fetches the credential for a target's requests. It is cached until shortly before it expires.
pub async fn fetch_credential(
    state: &GatewayState,
    target: &Target<'_>,
    grant: &Grant,
) -> Result<Arc<IssuedCredential>> {
    let fetch = state.credential_cache.get_or_fetch(grant, || issue_credential(state, grant));
    let max_wait = FETCH_TIMEOUT.min(target.timeout);
    let credential =
        tokio::time::timeout(max_wait, fetch).await.unwrap_or_else(|_| Err("the credential request timed out".into()));
    credential.map_err(|message| Error::CredentialUnavailable { provider: target.provider.slug(), message })
}

async fn issue_credential(
    state: &GatewayState,
    grant: &Grant,
) -> std::result::Result<(IssuedCredential, Duration), String> {
    match grant {
        Grant::ServiceAccount { key_file, scope } => google::fetch_token(&state.upstream, key_file, scope).await,
        Grant::ExternalAccount(account) => {
            external_account::fetch_token(&state.upstream, &state.settings.identity, account).await
        }
        Grant::EntraApplication { .. } => fetch_application_token(&state.upstream, grant).await,
        Grant::ManagedIdentity { resource, client_id: client } => {
            managed_identity::fetch_managed_token(&state.settings.identity, resource, client.as_deref()).await
        }
        Grant::FederatedApplication(application) => {
            managed_identity::fetch_federated_token(&state.upstream, &state.settings.identity, application).await
        }
        Grant::AssumeRole(role) => {
            aws::assume_role(&state.upstream, role, &resolve_source_keys(state, role).await?).await
        }
        Grant::AwsMachineIdentity(machine_identity) => {
            aws_instance::fetch_machine_keys(&state.upstream, &state.settings.identity, machine_identity).await
        }
        Grant::EncryptedKey { pem, passphrase } => {
            encrypted_key::decrypt_key(&state.credential_cache, pem.clone(), passphrase.clone()).await
        }
    }
}

/// Fetches a token for the partner of a guardrail. `identity` is that of this machine, if the guardrail may use it.
pub(crate) async fn fetch_partner_token(
    upstream: &Upstream,
    identity: Option<&WorkloadIdentity>,
    grant: &Grant,
) -> std::result::Result<(IssuedCredential, Duration), String> {
    match (grant, identity) {
        (Grant::EntraApplication { .. }, _) => fetch_application_token(upstream, grant).await,
        (Grant::ManagedIdentity { resource, client_id }, Some(identity)) => {
            managed_identity::fetch_managed_token(identity, resource, client_id.as_deref()).await
        }
        _ => Err("this kind of credential is not supported here".into()),
    }
}

/// Fetches the token of an application of Entra ID.
async fn fetch_application_token(
    upstream: &Upstream,
    grant: &Grant,
) -> std::result::Result<(IssuedCredential, Duration), String> {
    let Grant::EntraApplication { authority, tenant, client_id, client_secret, scope } = grant else {
        return Err("this is no application of Entra ID".into());
    };
    let secret = entra::ClientCredential::Secret(client_secret);
    entra::fetch_token(upstream, authority, tenant, client_id, secret, scope).await
}

/// Returns the keys with which a role is assumed.
async fn resolve_source_keys(state: &GatewayState, role: &AssumeRole) -> std::result::Result<AwsCredentials, String> {
    if let Some(keys) = &role.source_credentials {
        return Ok(keys.clone());
    }
    let (region, endpoint) = (role.region.clone(), role.sts_endpoint.clone());
    let grant = Grant::AwsMachineIdentity(AwsMachineIdentity { region, endpoint, service: "sts" });
    let credential = state.credential_cache.get_or_fetch(&grant, || Box::pin(issue_credential(state, &grant))).await?;
    match &*credential {
        IssuedCredential::AccessKeys { id, secret, token } => Ok(AwsCredentials {
            access_key_id: id.clone(),
            secret_access_key: secret.clone(),
            session_token: Some(token.clone()),
        }),
        IssuedCredential::Token(_) | IssuedCredential::PrivateKey(_) | IssuedCredential::ModelName(_) => {
            Err("the identity provider returned no keys".into())
        }
    }
}

/// Returns the body with the digest to sign. Uploads to object storage are signed without their body; any other body is
/// read completely first.
pub async fn prepare_payload(target: &Target<'_>, operation: Operation, body: Body) -> Result<(Body, PayloadDigest)> {
    if target.provider.object_storage_service(operation).is_some() {
        return Ok((body, PayloadDigest::compute(b"")));
    }
    let bytes = body.collect().await?;
    let payload = PayloadDigest::compute_async(&bytes).await?;
    Ok((Body::Complete(bytes), payload))
}

/// Signs a rendered head together with its body's digest, if the target requires signatures.
pub fn sign_head(
    target: &Target<'_>,
    operation: Operation,
    issued: Option<&IssuedCredential>,
    head: &mut Vec<u8>,
    payload: &PayloadDigest,
) -> Result<()> {
    let provider = target.provider;
    let lacks = |message| Error::ProviderOptionInvalid { provider: provider.slug(), message };
    let with = match (target.grant.as_deref(), issued) {
        (Some(grant), Some(IssuedCredential::AccessKeys { id, secret, token })) => {
            grant.aws_signing_scope().map(|(service, region)| {
                SigningKeys::Amazon(AmazonKeys {
                    service,
                    region,
                    access_key_id: id,
                    secret_access_key: secret,
                    session_token: Some(token),
                })
            })
        }
        (Some(_), Some(IssuedCredential::PrivateKey(_))) | (None, _) => {
            provider.signing_keys(&target.options).map_err(lacks)?
        }
        (Some(_), _) => None,
    };
    let (authority, now) = (target.base_url.origin.authority(), SystemTime::now());
    match with {
        None => Ok(()),
        Some(SigningKeys::Amazon(keys)) => {
            let storage = provider.object_storage_service(operation);
            let keys = AmazonKeys { service: storage.unwrap_or(keys.service), ..keys };
            let payload = storage.is_none().then_some(payload);
            sigv4::sign_head(&keys, head, &authority, payload, now).map_err(lacks)
        }
        Some(SigningKeys::Oracle(key)) => {
            let opened = if let Some(IssuedCredential::PrivateKey(opened)) = issued { Some(&**opened) } else { None };
            oracle::sign_head(&key, opened, head, &authority, payload, now).map_err(lacks)
        }
    }
}
