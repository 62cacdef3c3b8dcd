//! Calls of checks to other hosts.

use std::{fmt::Write, time::Instant};

use penstock_net::{BaseUrl, Upstream};

use crate::{
    credentials::token_endpoint::send_request,
    guardrails::checks::{CheckError, CheckOutcome, ExternalCall, Stage},
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
    stage: Stage,
) -> Result<CheckOutcome, CheckError> {
    let (url, query) = call.url.split_once('?').unwrap_or((&call.url, ""));
    let host = BaseUrl::parse(url).map(|base| base.origin.authority().clone()).unwrap_or_default();
    let mut place = hosts.begin_call(host, Instant::now()).map_err(CheckError::new)?;
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
        Ok(head.into_bytes())
    };
    let sending = send_request(upstream, url, "application/json", &call.body, head);
    let result = match tokio::time::timeout(call.timeout, Box::pin(sending)).await {
        Ok(Ok(response)) => (call.read)(response.status, &response.body, stage, &call.url),
        // The message names the URL, which may hold a credential.
        Ok(Err(_)) => Err(CheckError::new(format!("{} could not be reached", place.host))),
        Err(_) => Err(CheckError::new(format!("{} took longer than {} ms", place.host, call.timeout.as_millis()))),
    };
    place.has_failed = Some(result.is_err());
    result
}
