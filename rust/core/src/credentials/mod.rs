//! Credentials that take more than a header: what is fetched before, and what is signed anew for every request.

mod aws;
mod entra;
mod google;
mod sigv4;
mod token;
mod wallet;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use penstock_llm::providers::{Grant, Signature};

pub use wallet::Wallet;

use crate::{
    call::Target,
    error::{Error, Result},
    gateway::Gateway,
};

/// Longest wait for a credential to be fetched.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was fetched.
pub enum Issued {
    Token(String),
    Keys { id: String, secret: String, token: String },
}

/// What a target's requests carry, where that must be fetched; kept until shortly before it expires.
pub async fn fetch(gateway: &Gateway, target: &Target<'_>, grant: &Grant) -> Result<Arc<Issued>> {
    let work = gateway.shared.wallet.find(grant, || issue(gateway, grant));
    let patience = PATIENCE.min(target.timeout);
    let found = tokio::time::timeout(patience, work).await.unwrap_or_else(|_| Err("it takes too long".into()));
    found.map_err(|message| Error::CredentialUnavailable { provider: target.provider.slug(), message })
}

/// Without what is secret.
impl std::fmt::Debug for Issued {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(if matches!(self, Self::Token(_)) { "Token" } else { "Keys" })
    }
}

async fn issue(gateway: &Gateway, grant: &Grant) -> std::result::Result<(Issued, Duration), String> {
    match grant {
        Grant::ServiceAccount { key_file, scope } => google::token(&gateway.upstream, key_file, scope).await,
        Grant::Application { authority, tenant, client, secret, scope } => {
            entra::token(&gateway.upstream, (authority, tenant), (client, secret), scope).await
        }
        Grant::Role(role) => aws::keys(&gateway.upstream, role).await,
    }
}

/// Signs a rendered head with the body that goes with it, where the target's requests are signed.
pub fn sign(target: &Target<'_>, issued: Option<&Issued>, head: &mut Vec<u8>, body: &[u8]) -> Result<()> {
    let provider = target.provider;
    let lacks = |message| Error::OptionInvalid { provider: provider.slug(), message };
    let with = match (target.grant.as_deref(), issued) {
        (Some(Grant::Role(role)), Some(Issued::Keys { id, secret, token })) => {
            Some(Signature { service: role.service, region: &role.region, id, secret, token: Some(token) })
        }
        (Some(_), _) => None,
        (None, _) => provider.signature(&target.options).map_err(lacks)?,
    };
    let Some(with) = with else { return Ok(()) };
    sigv4::sign(&with, head, (&target.base.origin.authority(), body), SystemTime::now()).map_err(lacks)
}
