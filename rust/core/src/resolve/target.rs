//! A target as one request finds it: who is asked, where, with which credential and in which manner.

use std::{borrow::Cow, time::Duration};

use penstock_llm::{
    catalog::{Continuing, Grant, Options, Provider},
    chat::providers::Wire,
    operation::Operation,
};
use tokio::time::Instant;

use crate::{
    accounting::prices, auth::caller::Caller, features::forward_headers::ForwardHeaders,
    state::snapshot::SavedProvider, upstream::Base,
};

/// How far what a request names may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// As far as the credential does that came with it.
    Own,
    /// As far as a stored credential was meant to.
    Stored,
}

/// How answers may be coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// As the caller accepts them.
    Any,
    /// Not compressed: they are looked into.
    Plain,
}

/// Whether a stream is asked for its usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Telling {
    Asked,
    /// The config says what is asked of a stream.
    AsWritten,
}

/// Where a request goes and with what.
pub struct Target<'c> {
    pub provider: &'static dyn Provider,
    pub base: Base,
    pub options: Options,
    pub credential: Option<Cow<'c, str>>,
    /// A whole `authorization` of the caller's, where it is more than a key and there is no other credential.
    pub authorization: Option<&'c str>,
    /// Who calls: no key of the gateway's goes further.
    pub caller: Caller<'c>,
    pub forward: ForwardHeaders,
    pub timeout: Duration,
    /// How long it may take by config or settings, whatever the caller says.
    pub patience: Duration,
    /// Its streams are held back until their first event is known.
    pub inspects: bool,
    pub coding: Coding,
    pub telling: Telling,
    /// Answers keep strictly to the shapes of `OpenAI`.
    pub strict: bool,
    /// Requests and answers stay as they are, whatever dialect the provider speaks.
    pub passthrough: bool,
    pub saved: Option<&'c SavedProvider>,
    pub reach: Reach,
    /// Of whom its credential is fetched, where that is not at hand.
    pub grant: Option<Box<Grant>>,
    /// Header fields that are stored with the provider or the model.
    pub fields: Vec<(&'c str, &'c str)>,
    /// What was saved with it of prices.
    pub priced: prices::Own,
    /// How it is told to go on, where another target began the answer.
    pub goes_on: Option<&'static Continuing>,
}

impl Target<'_> {
    /// How it is asked for what it does not offer in the caller's own dialect.
    pub fn wire(&self, operation: Operation, model: &str) -> Option<&'static dyn Wire> {
        self.provider.wire_at(operation, model, (&self.options, &self.base.prefix))
    }

    /// Whether its requests are signed, and carry no key.
    pub fn is_signed(&self) -> bool {
        self.grant
            .as_ref()
            .map_or_else(|| !matches!(self.provider.signature(&self.options), Ok(None)), |grant| grant.is_to_sign())
    }

    /// It has no longer than until then.
    pub fn end_by(&mut self, until: Option<Instant>) {
        if let Some(until) = until {
            self.timeout = self.timeout.min(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Whether an option takes the place of the caller's header of this (lower-case) name.
    pub fn sets(&self, name: &[u8]) -> bool {
        self.options.headers().any(|(set, _)| set.as_bytes() == name)
            || self.fields.iter().any(|(set, _)| set.as_bytes() == name)
    }
}
