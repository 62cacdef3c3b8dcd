//! A target as one request finds it: who is asked, where, with which credential and in which manner.

use std::{borrow::Cow, time::Duration};

use penstock_llm::{
    catalog::{Grant, Options, PrefillSupport, Provider},
    chat::providers::ProviderFormat,
    operation::Operation,
};
use tokio::time::Instant;

use crate::{
    accounting::prices, auth::caller::Caller, features::forward_headers::ForwardHeaders,
    state::snapshot::SavedProvider, upstream::BaseUrl,
};

/// How far what a request names may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialOrigin {
    /// As far as the credential does that came with it.
    Request,
    /// As far as a stored credential was meant to.
    Stored,
}

/// How answers may be coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseCoding {
    /// As the caller accepts them.
    AnyAccepted,
    /// Not compressed: they are looked into.
    Uncompressed,
}

/// Whether a stream is asked for its usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamUsage {
    Requested,
    /// The config says what is asked of a stream.
    AsConfigured,
}

/// Where a request goes and with what.
pub struct Target<'c> {
    pub provider: &'static dyn Provider,
    pub base_url: BaseUrl,
    pub options: Options,
    pub credential: Option<Cow<'c, str>>,
    /// A whole `authorization` of the caller's, where it is more than a key and there is no other credential.
    pub authorization: Option<&'c str>,
    /// Who calls: no key of the gateway's goes further.
    pub caller: Caller<'c>,
    pub forward_headers: ForwardHeaders,
    pub timeout: Duration,
    /// How long it may take by config or settings, whatever the caller says.
    pub configured_timeout: Duration,
    /// Its streams are held back until their first event is known.
    pub inspects_stream: bool,
    pub response_coding: ResponseCoding,
    pub stream_usage: StreamUsage,
    /// Answers keep strictly to the shapes of `OpenAI`.
    pub is_strict: bool,
    /// Requests and answers stay as they are, whatever dialect the provider speaks.
    pub is_passthrough: bool,
    pub saved_provider: Option<&'c SavedProvider>,
    pub credential_origin: CredentialOrigin,
    /// Of whom its credential is fetched, where that is not at hand.
    pub grant: Option<Box<Grant>>,
    /// Header fields that are stored with the provider or the model.
    pub header_fields: Vec<(&'c str, &'c str)>,
    /// What was saved with it of prices.
    pub price_overrides: prices::ProviderPricing,
    /// How it is told to go on, where another target began the answer.
    pub prefill: Option<&'static PrefillSupport>,
}

impl Target<'_> {
    /// How it is asked for what it does not offer in the caller's own dialect.
    pub fn provider_format(&self, operation: Operation, model: &str) -> Option<&'static dyn ProviderFormat> {
        self.provider.provider_format_for_target(operation, model, (&self.options, &self.base_url.prefix))
    }

    /// Whether its requests are signed, and carry no key.
    pub fn signs_requests(&self) -> bool {
        self.grant.as_ref().map_or_else(
            || !matches!(self.provider.signing_keys(&self.options), Ok(None)),
            |grant| grant.requires_signing(),
        )
    }

    /// It has no longer than until then.
    pub fn cap_timeout(&mut self, until: Option<Instant>) {
        if let Some(until) = until {
            self.timeout = self.timeout.min(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Whether an option takes the place of the caller's header of this (lower-case) name.
    pub fn overrides_header(&self, name: &[u8]) -> bool {
        self.options.forwarded_headers().any(|(set, _)| set.as_bytes() == name)
            || self.header_fields.iter().any(|(set, _)| set.as_bytes() == name)
    }
}
