//! A target resolved for one request: provider, base URL, credential and transform options.

use std::{borrow::Cow, time::Duration};

use penstock_llm::{
    catalog::{Grant, Options, PrefillSupport, Provider},
    operation::Operation,
    provider_format::ProviderFormat,
};
use penstock_net::BaseUrl;
use tokio::time::Instant;

use crate::{
    accounting::prices,
    auth::caller::Caller,
    features::{forward_headers::ForwardHeaders, parameters::Parameters},
    state::snapshot::SavedProvider,
};

/// Source of the target's credential. It limits which resources the request may access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialOrigin {
    /// The request sent the credential, so it may access everything the credential allows.
    Request,
    /// The credential is stored, so the request may access only the resources for which it was stored.
    Stored,
}

/// Content codings that the provider may use for the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseCoding {
    /// Any coding that the client accepts.
    AnyAccepted,
    /// Uncompressed only, because the gateway reads the response.
    Uncompressed,
}

/// Controls whether the gateway asks the provider to report usage in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamUsage {
    Requested,
    /// Leaves the stream options as the config sets them.
    AsConfigured,
}

/// A provider endpoint with everything that one request to it needs.
pub struct Target<'c> {
    pub provider: &'static dyn Provider,
    pub base_url: BaseUrl,
    pub options: Options,
    pub credential: Option<Cow<'c, str>>,
    /// The client's complete `authorization` header, if it is more than a bearer key and no other credential exists.
    pub authorization: Option<&'c str>,
    /// The authenticated caller. Its gateway key is never forwarded.
    pub caller: Caller<'c>,
    pub forward_headers: ForwardHeaders,
    pub timeout: Duration,
    /// Timeout from the config or settings, regardless of what the client requested.
    pub configured_timeout: Duration,
    /// True if streams are held back until their first event is known.
    pub inspects_stream: bool,
    pub response_coding: ResponseCoding,
    pub stream_usage: StreamUsage,
    /// True if responses must strictly match the schemas of `OpenAI`.
    pub is_strict: bool,
    /// True if requests and responses are forwarded unchanged, whatever API format the provider uses.
    pub is_passthrough: bool,
    pub saved_provider: Option<&'c SavedProvider>,
    /// Workspace of the saved provider, if a request of another workspace uses it through a shared prompt.
    pub lender_workspace: Option<&'c str>,
    pub credential_origin: CredentialOrigin,
    /// How the credential is fetched, if it must be fetched first.
    pub grant: Option<Box<Grant>>,
    /// Header fields that are stored with the provider or the model.
    pub header_fields: Vec<(&'c str, &'c str)>,
    /// Header fields that checks of guardrails set.
    pub check_headers: Vec<(String, String)>,
    /// Parameters of a saved config. A provider may repeat their secrets in a response.
    pub stored_parameters: Parameters,
    /// Prices that were saved with the provider or the model.
    pub price_overrides: prices::ProviderPricing,
    /// How the provider continues a response that another target began.
    pub prefill: Option<&'static PrefillSupport>,
}

impl Target<'_> {
    /// Returns the provider format for an operation that the provider does not offer in the client's own format.
    pub fn provider_format(&self, operation: Operation, model: &str) -> Option<&'static ProviderFormat> {
        self.provider.provider_format_for_target(operation, model, &self.options, &self.base_url.prefix)
    }

    /// Returns true if requests to this target are signed instead of carrying a key.
    pub fn signs_requests(&self) -> bool {
        self.grant.as_ref().map_or_else(
            || !matches!(self.provider.signing_keys(&self.options), Ok(None)),
            |grant| grant.requires_signing(),
        )
    }

    /// Caps the timeout so that it ends at the deadline.
    pub fn cap_timeout(&mut self, deadline: Option<Instant>) {
        if let Some(deadline) = deadline {
            self.timeout = self.timeout.min(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// Returns true if an option replaces the client's header of this (lower-case) name.
    pub fn overrides_header(&self, name: &[u8]) -> bool {
        self.options.forwarded_headers().any(|(set, _)| set.as_bytes() == name)
            || self.header_fields.iter().any(|(set, _)| set.as_bytes() == name)
            || self.check_headers.iter().any(|(set, _)| set.as_bytes() == name)
    }
}
