//! How checks reach other hosts: requests with a limit on time and size, through the gateway's own HTTP client and its
//! policy for addresses.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use penstock_net::headers::Headers;

use super::check::{CheckError, CheckOutcome};

/// Origin of the host of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostChoice {
    /// The parameters of the guardrail. After several failures in a row, the host is not called for a while.
    Guardrail,
    /// A URL in a request or response. A failure of this host does not affect other requests.
    Content,
}

/// A request of a check to another host.
#[derive(Debug)]
pub struct HostRequest {
    pub method: &'static str,
    pub url: String,
    pub headers: Vec<(String, String)>,
    /// Content type of the body, and the body.
    pub body: Option<(&'static str, String)>,
    pub timeout: Duration,
    pub max_body_bytes: usize,
    pub chosen_by: HostChoice,
}

/// Response of another host.
#[derive(Debug)]
pub struct HostReply {
    pub status: u16,
    pub headers: Headers,
    /// Body of the response; empty after `HEAD`.
    pub body: Bytes,
}

/// A question to a model of a saved provider.
#[derive(Debug, Clone)]
pub struct ModelQuestion {
    /// Model and its saved provider, as `@slug/model`.
    pub model: String,
    /// Instructions for the model: what it should decide about `subject`.
    pub instructions: String,
    /// Texts that the model should examine. They are encoded as JSON, so that no text can imitate their end.
    pub subject: String,
    pub timeout: Duration,
}

/// A call of a check in the process of plug-ins.
#[derive(Debug)]
pub struct PluginCall {
    /// Id of the check.
    pub check: Arc<str>,
    /// Request to the process of plug-ins, in JSON.
    pub frame: Vec<u8>,
    pub timeout: Duration,
    /// Maximum bytes of the reply.
    pub max_reply_bytes: usize,
}

/// Access to other hosts.
pub trait HostAccess: Send + Sync {
    /// Sends a request and collects the response. Does not follow redirects.
    ///
    /// # Errors
    /// If the host may not be called, cannot be reached in time, or returns too much.
    fn send(&self, request: HostRequest) -> BoxFuture<'_, Result<HostReply, CheckError>>;

    /// Resolves the host of a URL.
    ///
    /// # Errors
    /// If it has no address, or one that may not be called.
    fn resolve<'s>(&'s self, url: &'s str) -> BoxFuture<'s, Result<(), CheckError>>;

    /// Sends a question to a model, and returns its text. The request is logged and counts for budgets, but no
    /// guardrail checks it.
    ///
    /// # Errors
    /// If the model does not exist, or does not respond in time.
    fn ask_model(&self, _question: ModelQuestion) -> BoxFuture<'_, Result<String, CheckError>> {
        Box::pin(async { Err(CheckError::new("checks by a model are not available here")) })
    }

    /// Calls a plug-in, and returns the bytes of its reply.
    ///
    /// # Errors
    /// If its process does not reply in time, or replies with too much.
    fn call_plugin(&self, _call: PluginCall) -> BoxFuture<'_, Result<Vec<u8>, CheckError>> {
        Box::pin(async { Err(CheckError::new("a plug-in cannot be called here")) })
    }
}

/// Work of a check that waits for other hosts.
pub type CheckJob = Box<dyn FnOnce(Arc<dyn HostAccess>) -> BoxFuture<'static, Result<CheckOutcome, CheckError>> + Send>;
