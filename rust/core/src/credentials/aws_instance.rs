//! Amazon's keys of the machine that this runs on: of its web identity, its container, or itself, whichever it has.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use penstock_llm::catalog::{Machine, is_sts, sts};
use serde::Deserialize;

use super::{Issued, aws};
use crate::credentials::token_endpoint;
use crate::{
    error::Problem,
    process::settings::Identity,
    upstream::{Service, Upstream},
};

/// In seconds, as long as the word lives that opens the metadata service.
const PASS_LIFE: &str = "300";
const ROLES: &str = "/latest/meta-data/iam/security-credentials/";

pub async fn keys(upstream: &Upstream, own: &Identity, asked: &Machine) -> Result<(Issued, Duration), String> {
    let found = if let Some(file) = &own.aws_web_identity_token_file {
        let role =
            own.aws_role_arn.as_deref().ok_or("identity.aws_web_identity_token_file needs identity.aws_role_arn")?;
        // It vouches for this machine: no provider can have it sent elsewhere.
        let endpoint = own.aws_sts_endpoint.as_deref().or(Some(&*asked.endpoint).filter(|url| is_sts(url)));
        let regional = sts(&asked.region);
        aws::keys_for_identity(upstream, (role, endpoint.unwrap_or(&regional)), &read(file).await?).await
    } else if let Some(url) = &own.aws_container_url {
        of_container(url, own).await
    } else {
        of_instance(&own.aws_metadata_url).await
    };
    found.map_err(|message| format!("this machine's own keys: {message}"))
}

/// What an operator set must lead to the machine itself.
pub fn check(own: &Identity) -> Result<(), Vec<Problem>> {
    let urls = [
        ("aws_container_url", own.aws_container_url.as_deref()),
        ("aws_metadata_url", Some(&*own.aws_metadata_url)),
        ("azure_identity_url", own.azure_identity_url.as_deref()),
        ("azure_metadata_url", Some(&*own.azure_metadata_url)),
    ];
    let wrong = |(key, url): (&str, Option<&str>)| {
        let message = Service::parse(url?).err()?;
        Some(Problem::new(format!("$.identity.{key}"), message))
    };
    // What others set for their own use is nobody's business here.
    let problems: Vec<_> = urls.into_iter().filter(|_| own.lend).filter_map(wrong).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

async fn of_container(url: &str, own: &Identity) -> Result<(Issued, Duration), String> {
    let service = Service::parse(url)?;
    let token = match (&own.aws_container_token_file, &own.aws_container_token) {
        (Some(file), _) => Some(read(file).await?),
        (None, Some(token)) => Some(token.expose().to_owned()),
        (None, None) => None,
    };
    let fields: Vec<_> = token.iter().map(|token| ("authorization", token.as_str())).collect();
    given(&told(service.ask("GET", &service.path, &fields).await?)?)
}

/// Version 2 of the metadata service: who cannot ask for a word first gets nothing.
async fn of_instance(url: &str) -> Result<(Issued, Duration), String> {
    let service = Service::parse(url)?;
    let path = |rest: &str| format!("{}{rest}", service.path);
    let asks = [("x-aws-ec2-metadata-token-ttl-seconds", PASS_LIFE)];
    let pass = told(service.ask("PUT", &path("/latest/api/token"), &asks).await?)?;
    let pass = [("x-aws-ec2-metadata-token", text(&pass)?)];
    let roles = told(service.ask("GET", &path(ROLES), &pass).await?)?;
    let role = text(&roles)?.lines().next().unwrap_or_default();
    if role.is_empty() || !role.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it has no role".into());
    }
    given(&told(service.ask("GET", &path(&format!("{ROLES}{role}")), &pass).await?)?)
}

pub fn told((status, body): (u16, Bytes)) -> Result<Bytes, String> {
    if status == 200 {
        Ok(body)
    } else {
        Err(format!("answered {status}: {}", token_endpoint::plain(&String::from_utf8_lossy(&body))))
    }
}

fn text(bytes: &Bytes) -> Result<&str, String> {
    std::str::from_utf8(bytes).map(str::trim).map_err(|_| "what it says is no text".into())
}

fn given(json: &[u8]) -> Result<(Issued, Duration), String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Told {
        access_key_id: String,
        secret_access_key: String,
        token: String,
        expiration: String,
    }
    let told: Told = serde_json::from_slice(json).map_err(|_| "it gave no keys")?;
    let expires = humantime::parse_rfc3339(told.expiration.trim()).map_err(|_| "its keys have no end")?;
    let life = expires.duration_since(SystemTime::now()).map_err(|_| "its keys are over")?;
    Ok((Issued::Keys { id: told.access_key_id, secret: told.secret_access_key, token: told.token }, life))
}

/// A small file, which may be on a slow disk.
pub async fn read(file: &Path) -> Result<String, String> {
    let (path, shown) = (file.to_path_buf(), file.display().to_string());
    let text = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await;
    let text = text.map_err(|_| "the process ends")?.map_err(|error| format!("`{shown}` cannot be read: {error}"))?;
    Ok(text.trim().to_owned())
}
