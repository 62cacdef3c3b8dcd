//! AWS keys of the machine that the gateway runs on. The keys come from its web identity, its container or its EC2
//! instance, whichever is configured.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use penstock_llm::catalog::{AwsMachineIdentity, is_sts_url, sts_endpoint};
use penstock_net::{BufferedResponse, MetadataService, Upstream};
use serde::Deserialize;

use super::aws;
use crate::{
    credentials::{issued::IssuedCredential, token_endpoint},
    error::Problem,
    process::settings::WorkloadIdentity,
};

/// Lifetime in seconds of the session token for the instance metadata service.
const METADATA_TOKEN_TTL_SECONDS: &str = "300";
const ROLE_CREDENTIALS_PATH: &str = "/latest/meta-data/iam/security-credentials/";

pub async fn fetch_machine_keys(
    upstream: &Upstream,
    identity: &WorkloadIdentity,
    options: &AwsMachineIdentity,
) -> Result<(IssuedCredential, Duration), String> {
    let credential = if let Some(file) = &identity.aws_web_identity_token_file {
        let role = identity
            .aws_role_arn
            .as_deref()
            .ok_or("identity.aws_web_identity_token_file needs identity.aws_role_arn")?;
        // The token proves this machine's identity, so a provider's options must not redirect it to another endpoint.
        let endpoint = identity.aws_sts_endpoint.as_deref().or(Some(&*options.endpoint).filter(|url| is_sts_url(url)));
        let regional = sts_endpoint(&options.region);
        aws::assume_role_with_web_identity(upstream, role, endpoint.unwrap_or(&regional), &read_file(file).await?).await
    } else if let Some(url) = &identity.aws_container_url {
        fetch_container_keys(url, identity).await
    } else {
        fetch_instance_keys(&identity.aws_metadata_url).await
    };
    credential.map_err(|message| format!("AWS keys of this machine: {message}"))
}

/// Checks that the identity endpoints that the operator configured are on the machine itself.
pub fn check_identity_urls(identity: &WorkloadIdentity) -> Result<(), Vec<Problem>> {
    let urls = [
        ("aws_container_url", identity.aws_container_url.as_deref()),
        ("aws_metadata_url", Some(&*identity.aws_metadata_url)),
        ("azure_identity_url", identity.azure_identity_url.as_deref()),
        ("azure_metadata_url", Some(&*identity.azure_metadata_url)),
    ];
    let wrong = |(key, url): (&str, Option<&str>)| {
        let message = MetadataService::parse(url?).err()?;
        Some(Problem::new(format!("$.identity.{key}"), message))
    };
    // The environment may set these for other programs, so they are checked only if providers may use the machine's
    // identity.
    let problems: Vec<_> = urls.into_iter().filter(|_| identity.allow_provider_use).filter_map(wrong).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

async fn fetch_container_keys(url: &str, identity: &WorkloadIdentity) -> Result<(IssuedCredential, Duration), String> {
    let service = MetadataService::parse(url)?;
    let token = match (&identity.aws_container_token_file, &identity.aws_container_token) {
        (Some(file), _) => Some(read_file(file).await?),
        (None, Some(token)) => Some(token.expose().to_owned()),
        (None, None) => None,
    };
    let fields: Vec<_> = token.iter().map(|token| ("authorization", token.as_str())).collect();
    parse_keys(&require_ok(service.send_request("GET", &service.path, &fields).await?)?)
}

/// Fetches the keys of an EC2 instance from version 2 of the metadata service, which requires a session token.
async fn fetch_instance_keys(url: &str) -> Result<(IssuedCredential, Duration), String> {
    let service = MetadataService::parse(url)?;
    let path = |rest: &str| format!("{}{rest}", service.path);
    let requests = [("x-aws-ec2-metadata-token-ttl-seconds", METADATA_TOKEN_TTL_SECONDS)];
    let pass = require_ok(service.send_request("PUT", &path("/latest/api/token"), &requests).await?)?;
    let pass = [("x-aws-ec2-metadata-token", parse_utf8(&pass)?)];
    let roles = require_ok(service.send_request("GET", &path(ROLE_CREDENTIALS_PATH), &pass).await?)?;
    let role = parse_utf8(&roles)?.lines().next().unwrap_or_default();
    if role.is_empty() || !role.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the instance has no role".into());
    }
    parse_keys(&require_ok(
        service.send_request("GET", &path(&format!("{ROLE_CREDENTIALS_PATH}{role}")), &pass).await?,
    )?)
}

pub fn require_ok(response: BufferedResponse) -> Result<Bytes, String> {
    let BufferedResponse { status, body } = response;
    if status == 200 {
        Ok(body)
    } else {
        Err(format!("returned status {status}: {}", token_endpoint::sanitise_message(&String::from_utf8_lossy(&body))))
    }
}

fn parse_utf8(bytes: &Bytes) -> Result<&str, String> {
    std::str::from_utf8(bytes).map(str::trim).map_err(|_| "the response is not UTF-8 text".into())
}

fn parse_keys(json: &[u8]) -> Result<(IssuedCredential, Duration), String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct KeysResponse {
        access_key_id: String,
        secret_access_key: String,
        token: String,
        expiration: String,
    }
    let keys: KeysResponse = serde_json::from_slice(json).map_err(|_| "the response contains no keys")?;
    let expires = humantime::parse_rfc3339(keys.expiration.trim()).map_err(|_| "the keys have no valid expiry time")?;
    let life = expires.duration_since(SystemTime::now()).map_err(|_| "the keys have expired")?;
    Ok((
        IssuedCredential::AccessKeys { id: keys.access_key_id, secret: keys.secret_access_key, token: keys.token },
        life,
    ))
}

/// Reads a small text file on a blocking thread, because its disk may be slow.
pub async fn read_file(file: &Path) -> Result<String, String> {
    let (path, display_path) = (file.to_path_buf(), file.display().to_string());
    let text = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await;
    let text = text
        .map_err(|_| "the gateway is shutting down")?
        .map_err(|error| format!("`{display_path}` cannot be read: {error}"))?;
    Ok(text.trim().to_owned())
}
