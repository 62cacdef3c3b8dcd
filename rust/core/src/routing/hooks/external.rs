//! Calls of checks to other hosts.

use std::{
    fmt::Write,
    sync::{Arc, LazyLock},
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use penstock_llm::catalog::{AmazonKeys, Grant};
use penstock_net::{BaseUrl, BodyFraming, OutgoingRequest, Upstream, body::Body, collect, exchange_frames};
use tokio::time::timeout;

use super::model_call::ModelAccess;
use crate::{
    credentials::{CredentialCache, IssuedCredential, PayloadDigest, fetch_partner_token, sigv4::sign_head},
    guardrails::{
        checks::{AwsSignature, CheckError, CheckOutcome, ExternalCall, plugins},
        host_access::{HostAccess, HostChoice, HostReply, HostRequest, ModelQuestion, PluginCall},
    },
    process::settings::WorkloadIdentity,
    state::shared::check_hosts::{CallerOfHosts, CheckHosts, HostOwner},
};

/// Maximum bytes of the reply to an `ExternalCall`.
const MAX_REPLY_BYTES: usize = 256 * 1024;
/// Name under which the failures of fetching tokens are counted.
const IDENTITY_PROVIDER: &str = "the identity provider";
/// Tokens for partners. Guardrails with the same credentials share them.
static TOKENS: LazyLock<CredentialCache> = LazyLock::new(CredentialCache::default);
/// Name under which the failures of all hosts in the URLs of requests and responses are counted together.
const CONTENT_HOSTS: &str = "hosts of contents";

/// Access of one hook to other hosts.
pub struct GatewayHosts {
    pub upstream: Arc<Upstream>,
    pub hosts: Arc<CheckHosts>,
    pub workspace: Option<Arc<str>>,
    /// Fingerprint of the hook.
    pub hook: u64,
    /// True if the hook is a saved guardrail.
    pub is_saved: bool,
    /// Access of checks to models. `None`: checks cannot call models.
    pub models: Option<Arc<ModelAccess>>,
}

impl HostAccess for GatewayHosts {
    fn send(&self, request: HostRequest) -> BoxFuture<'_, Result<HostReply, CheckError>> {
        Box::pin(self.send_signed(request, None))
    }

    fn resolve<'s>(&'s self, url: &'s str) -> BoxFuture<'s, Result<(), CheckError>> {
        Box::pin(async move {
            let (base, _) = parse_url(url)?;
            let unresolved = |_| CheckError::new(format!("{} could not be resolved", base.origin.authority()));
            self.upstream.check_origin(&base.origin).await.map_err(unresolved)
        })
    }

    fn ask_model(&self, question: ModelQuestion) -> BoxFuture<'_, Result<String, CheckError>> {
        Box::pin(async move {
            let Some(models) = &self.models else {
                return Err(CheckError::new("checks by a model are only available for requests of clients"));
            };
            let mut call = self
                .hosts
                .begin_call(self.caller(), question.model.clone(), Instant::now())
                .map_err(CheckError::new)?;
            let too_long = |_| {
                let milliseconds = question.timeout.as_millis();
                CheckError::new(format!("{} took longer than {milliseconds} ms", question.model))
            };
            let exchange = tokio::time::timeout(question.timeout, models.ask(&question)).await;
            let result = exchange.map_err(too_long).and_then(|result| result);
            call.has_failed = Some(result.as_ref().is_err_and(|error| !error.is_failure));
            result
        })
    }

    fn call_plugin(&self, plugin_call: PluginCall) -> BoxFuture<'_, Result<Vec<u8>, CheckError>> {
        Box::pin(async move {
            let check = &plugin_call.check;
            let socket = plugins::socket().ok_or_else(|| CheckError::new("this gateway has no process of plug-ins"))?;
            let begun = self.hosts.begin_call(self.caller(), check.to_string(), Instant::now());
            let mut call = begun.map_err(CheckError::new)?;
            let exchange = exchange_frames(socket, &plugin_call.frame, plugin_call.max_reply_bytes);
            let too_long = |_| format!("took longer than {} ms", plugin_call.timeout.as_millis());
            let exchanged = tokio::time::timeout(plugin_call.timeout, exchange).await.map_err(too_long);
            let result = exchanged.flatten().map_err(|problem| CheckError::new(format!("{check} {problem}")));
            call.has_failed = Some(result.is_err());
            result
        })
    }
}

impl GatewayHosts {
    fn caller(&self) -> CallerOfHosts {
        let workspace = self.workspace.as_deref().unwrap_or_default().to_owned();
        CallerOfHosts { owner: HostOwner { workspace, is_saved: self.is_saved }, hook: self.hook }
    }

    /// Identity of this machine, if this hook may use it: saved guardrails may if the operator allows it.
    fn machine_identity(&self) -> Option<&WorkloadIdentity> {
        self.models.as_ref().filter(|_| self.is_saved)?.machine_identity()
    }

    /// Returns the token for a call to a partner.
    async fn fetch_token(&self, grant: &Grant, max_wait: Duration) -> Result<String, CheckError> {
        let identity = self.machine_identity().filter(|_| grant.is_machine_identity());
        // Decided before the cache is read, which may have the token for a guardrail that may use it.
        if grant.is_machine_identity() && identity.is_none() {
            let reason = if self.is_saved {
                "the operator does not allow that; see `identity.allow_provider_use`"
            } else {
                "only a saved guardrail may use it, not one in a request, a config or a trial"
            };
            return Err(CheckError::forbidden(format!(
                "`managed` is the identity of the gateway's machine, and {reason}"
            )));
        }
        let too_long = || format!("the identity provider took longer than {} ms", max_wait.as_millis());
        let fetch = || async {
            let begun = self.hosts.begin_call(self.caller(), IDENTITY_PROVIDER.to_owned(), Instant::now());
            let mut call = begun?;
            let fetched = timeout(max_wait, fetch_partner_token(&self.upstream, identity, grant)).await;
            let result = fetched.unwrap_or_else(|_| Err(too_long()));
            call.has_failed = Some(result.is_err());
            result
        };
        // All guardrails have the same identity of the machine. Each fetches its own token, so that the timeouts and
        // failures of one do not count for the others.
        let owner = identity.map(|_| (&self.workspace, self.hook));
        // Another request may be fetching the token.
        let outcome =
            timeout(max_wait, TOKENS.get_or_fetch((owner, grant), fetch)).await.unwrap_or_else(|_| Err(too_long()));
        match outcome.as_deref() {
            Ok(IssuedCredential::Token(token)) => Ok(token.clone()),
            Ok(_) => Err(CheckError::new("the identity provider returned no token")),
            Err(message) => Err(CheckError::new(format!("no token: {message}"))),
        }
    }

    async fn send_signed(
        &self,
        request: HostRequest,
        signature: Option<&AwsSignature>,
    ) -> Result<HostReply, CheckError> {
        let (base, query) = parse_url(&request.url)?;
        let authority = base.origin.authority();
        let is_own = request.chosen_by == HostChoice::Guardrail;
        let host = if is_own { authority.clone() } else { CONTENT_HOSTS.to_owned() };
        let mut call = self.hosts.begin_call(self.caller(), host, Instant::now()).map_err(CheckError::new)?;
        let sending = self.exchange(&base, query, &request, signature);
        let result = match tokio::time::timeout(request.timeout, Box::pin(sending)).await {
            Ok(result) => result,
            Err(_) => Err(CheckError::new(format!("{authority} took longer than {} ms", request.timeout.as_millis()))),
        };
        call.has_failed = is_own.then_some(result.as_ref().map_or(true, |reply| reply.status >= 500));
        result
    }

    async fn exchange(
        &self,
        base: &BaseUrl,
        query: &str,
        request: &HostRequest,
        signature: Option<&AwsSignature>,
    ) -> Result<HostReply, CheckError> {
        let authority = base.origin.authority();
        let path = if base.prefix.is_empty() { "/" } else { &base.prefix };
        let mark = if query.is_empty() { "" } else { "?" };
        let mut head = format!("{} {path}{mark}{query} HTTP/1.1\r\nhost: {authority}\r\n", request.method);
        for (name, value) in &request.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let mut head = head.into_bytes();
        let content = request.body.as_ref().map_or("", |(_, body)| body.as_str());
        if let Some(signature) = signature {
            head = sign(signature, head, &authority, content).map_err(CheckError::new)?;
        }
        if let Some((kind, body)) = &request.body {
            head.extend_from_slice(format!("content-type: {kind}\r\ncontent-length: {}\r\n", body.len()).as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        let body = if content.is_empty() { Body::empty() } else { Body::Complete(content.to_owned().into()) };
        let body_framing = BodyFraming { is_bodiless: request.method == "HEAD", ..BodyFraming::default() };
        let outgoing = OutgoingRequest { head, body, body_framing, is_replayable: true };
        // The original error is not shown, because it contains the URL, which may hold a credential.
        let failed = |_| CheckError::new(format!("{authority} could not be reached"));
        let mut incoming = self.upstream.send(&base.origin, outgoing).await.map_err(failed)?;
        let too_large = || CheckError::new(format!("{authority} returned more than {} bytes", request.max_body_bytes));
        let body = if request.method == "HEAD" {
            Bytes::new()
        } else {
            let collected = collect(&mut incoming.body, request.max_body_bytes).await.map_err(failed)?;
            collected.ok_or_else(too_large)?
        };
        Ok(HostReply { status: incoming.head.status, headers: incoming.head.headers, body })
    }
}

/// Splits a URL into its origin and path, and its query.
fn parse_url(url: &str) -> Result<(BaseUrl, &str), CheckError> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let base = BaseUrl::parse(address).map_err(|_| CheckError::new("a URL cannot be called"))?;
    Ok((base, query))
}

/// Calls another host and reads its decision.
///
/// # Errors
/// If it cannot be reached in time, or its reply cannot be read.
pub async fn call_host(hosts: &GatewayHosts, call: &ExternalCall) -> Result<CheckOutcome, CheckError> {
    let mut headers = vec![("accept".to_owned(), "application/json".to_owned())];
    headers.extend(call.headers.iter().cloned());
    if let Some(grant) = &call.grant {
        let token = hosts.fetch_token(grant, call.timeout).await?;
        headers.push(("authorization".to_owned(), format!("Bearer {token}")));
    }
    let request = HostRequest {
        method: "POST",
        url: call.url.clone(),
        headers,
        body: Some(("application/json", call.body.clone())),
        timeout: call.timeout,
        max_body_bytes: MAX_REPLY_BYTES,
        chosen_by: HostChoice::Guardrail,
    };
    let reply = hosts.send_signed(request, call.signature.as_ref()).await?;
    (call.read)(reply.status, &reply.body)
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
