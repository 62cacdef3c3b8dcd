//! Internal request of the gateway to a target, with credential and signature. Nothing of a client's request is
//! forwarded.

use penstock_llm::{
    catalog::{PathInfo, PathOptions},
    operation::Operation,
};
use penstock_net::{BodyFraming, OutgoingRequest, body::Body};

use crate::{
    credentials::{self, PayloadDigest},
    error::Result,
    gateway_state::GatewayState,
    request::upstream_head::{BodyLength, render_internal_head},
    resolve::target::Target,
};

/// Method, path, headers and body of an internal request.
pub struct InternalRequest<'q> {
    pub method: &'static str,
    /// Path as in a client's request, without a version.
    pub path: &'q str,
    pub query: &'q str,
    pub headers: &'q [(String, String)],
    pub body: Body,
}

impl<'q> InternalRequest<'q> {
    pub fn new(method: &'static str, path: &'q str) -> Self {
        Self { method, path, query: "", headers: &[], body: Body::empty() }
    }

    fn body_length(&self) -> BodyLength {
        match &self.body {
            Body::Complete(_) if !matches!(self.method, "PUT" | "POST") => BodyLength::None,
            Body::Complete(bytes) => BodyLength::Known(bytes.len() as u64),
            Body::Streamed(..) => BodyLength::Chunked,
        }
    }

    /// Fetches the credential, renders the head and signs it. Returns the request that can be sent.
    pub async fn into_outgoing(
        self,
        state: &GatewayState,
        target: &Target<'_>,
        operation: Operation,
    ) -> Result<OutgoingRequest> {
        let issued = match &target.grant {
            None => None,
            Some(grant) => Some(Box::pin(credentials::fetch_credential(state, target, grant)).await?),
        };
        let issued = issued.as_deref();
        let length = self.body_length();
        let Self { method, path, query, headers: fields, body } = self;
        let path_info = PathInfo {
            operation,
            path,
            query,
            prefix: &target.base_url.prefix,
            model: "",
            user: "",
            is_streaming: false,
            has_prefill: false,
            path_options: PathOptions::default(),
        };
        let mut head = render_internal_head(target, &path_info, method, fields, length, issued)?;
        credentials::sign_head(target, operation, issued, &mut head, &PayloadDigest::compute(body.complete_bytes()))?;
        let body_framing = BodyFraming { is_chunked: length == BodyLength::Chunked, is_bodiless: method == "HEAD" };
        Ok(OutgoingRequest { head, body, body_framing, is_replayable: method != "POST" })
    }
}
