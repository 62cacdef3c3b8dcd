//! Calls of checks to other hosts.

use std::{
    fmt::Write,
    time::{Instant, SystemTime},
};

use penstock_llm::catalog::AmazonKeys;
use penstock_net::{BaseUrl, Upstream};

use crate::{
    credentials::{PayloadDigest, sigv4::sign_head, token_endpoint::send_request},
    guardrails::checks::{AwsSignature, CheckError, CheckOutcome, ExternalCall},
    state::shared::check_hosts::CheckHosts,
};

/// Calls another host and reads its decision.
///
/// # Errors
/// If it cannot be reached in time, or its reply cannot be read.
pub async fn call_host(
    upstream: &Upstream,
    hosts: &CheckHosts,
    call: &ExternalCall,
) -> Result<CheckOutcome, CheckError> {
    let (url, query) = call.url.split_once('?').unwrap_or((&call.url, ""));
    let host = BaseUrl::parse(url).map(|base| base.origin.authority().clone()).unwrap_or_default();
    let mut location = hosts.begin_call(host, Instant::now()).map_err(CheckError::new)?;
    let head = |base: &BaseUrl| {
        let path = if base.prefix.is_empty() { "/" } else { &base.prefix };
        let mark = if query.is_empty() { "" } else { "?" };
        let mut head = format!(
            "POST {path}{mark}{query} HTTP/1.1\r\nhost: {}\r\naccept: application/json\r\n",
            base.origin.authority()
        );
        for (name, value) in &call.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let head = head.into_bytes();
        match &call.signature {
            Some(signature) => sign(signature, head, &base.origin.authority(), &call.body),
            None => Ok(head),
        }
    };
    let sending = send_request(upstream, url, "application/json", &call.body, head);
    let result = match tokio::time::timeout(call.timeout, Box::pin(sending)).await {
        Ok(Ok(response)) => (call.read)(response.status, &response.body),
        // The message names the URL, which may hold a credential.
        Ok(Err(_)) => Err(CheckError::new(format!("{} could not be reached", location.host))),
        Err(_) => Err(CheckError::new(format!("{} took longer than {} ms", location.host, call.timeout.as_millis()))),
    };
    location.has_failed = Some(result.is_err());
    result
}

/// Adds the signature fields to a head that lacks its final line break.
fn sign(signature: &AwsSignature, mut head: Vec<u8>, authority: &str, body: &str) -> Result<Vec<u8>, String> {
    let keys = AmazonKeys {
        service: signature.service,
        region: &signature.region,
        access_key_id: &signature.access_key_id,
        secret_access_key: &signature.secret_access_key,
        session_token: signature.session_token.as_deref(),
    };
    head.extend_from_slice(b"\r\n");
    sign_head(&keys, &mut head, authority, Some(&PayloadDigest::compute(body.as_bytes())), SystemTime::now())?;
    head.truncate(head.len() - b"\r\n".len());
    Ok(head)
}
