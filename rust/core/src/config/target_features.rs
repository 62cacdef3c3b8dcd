//! Features of a target.

use crate::{
    features::{
        cache::{self, CachePolicy},
        circuit_breaker::CircuitBreaker,
        custom_host::CustomHost,
        forward_headers::ForwardHeaders,
        guardrails::Guardrails,
        inspect_stream::InspectStream,
        parameters::Parameters,
        recovery::{self, Recovery},
        retry::Retry,
        strict::StrictCompliance,
        timeout::RequestTimeout,
    },
    ingress::route::Route,
};

/// Features that a target inherits from its parents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Features {
    pub cache: CachePolicy,
    pub circuit_breaker: CircuitBreaker,
    pub custom_host: CustomHost,
    pub forward_headers: ForwardHeaders,
    pub guardrails: Guardrails,
    pub inspect_stream: InspectStream,
    pub parameters: Parameters,
    pub recovery: Recovery,
    pub request_timeout: RequestTimeout,
    pub retry: Retry,
    pub strict: StrictCompliance,
}

impl Features {
    pub(super) fn inherit(&mut self, parent: &Self) {
        // Destructured so that a new feature does not compile until it is listed here.
        let Self {
            cache,
            circuit_breaker,
            custom_host,
            forward_headers,
            guardrails,
            inspect_stream,
            parameters,
            recovery,
            request_timeout,
            retry,
            strict,
        } = self;
        cache.inherit(&parent.cache);
        circuit_breaker.inherit(&parent.circuit_breaker);
        custom_host.inherit(&parent.custom_host);
        forward_headers.inherit(&parent.forward_headers);
        guardrails.inherit(&parent.guardrails);
        inspect_stream.inherit(&parent.inspect_stream);
        parameters.inherit(&parent.parameters);
        recovery.inherit(&parent.recovery);
        request_timeout.inherit(&parent.request_timeout);
        retry.inherit(&parent.retry);
        strict.inherit(&parent.strict);
    }

    /// Returns the approximate size in bytes. Inherited values count again, because most nodes have their own copy.
    pub(super) fn estimated_bytes(&self) -> usize {
        // Destructured so that a new feature must be counted here. Fields with `_` have no memory of their own.
        let Self {
            cache: _,
            circuit_breaker,
            custom_host,
            forward_headers,
            guardrails,
            inspect_stream: _,
            parameters,
            recovery: _,
            request_timeout: _,
            retry,
            strict: _,
        } = self;
        circuit_breaker.heap_bytes()
            + guardrails.heap_bytes()
            + custom_host.heap_bytes()
            + forward_headers.heap_bytes()
            + parameters.heap_bytes()
            + retry.heap_bytes()
    }

    /// Returns true if the gateway reads responses to this request to check, cache, buffer or resume them. Such
    /// responses must not be compressed.
    pub fn reads_response(&self, route: Route<'_>, method: &str) -> bool {
        let Self { cache, guardrails, recovery, .. } = self;
        let is_wanted =
            guardrails.has_after() || *cache != CachePolicy::default() || recovery.mode() != recovery::Mode::Off;
        is_wanted && cache::has_no_side_effects(route.operation, method, route.path)
    }

    /// Returns true if no feature adds anything to a single attempt at a target.
    pub(super) fn is_plain(&self) -> bool {
        // Destructured so that a new feature must be listed here. Fields with `_` take effect before or during every
        // attempt.
        let Self {
            cache,
            circuit_breaker,
            custom_host: _,
            forward_headers: _,
            guardrails,
            inspect_stream: _,
            parameters,
            recovery,
            request_timeout: _,
            retry,
            strict: _,
        } = self;
        *cache == CachePolicy::default()
            && guardrails.is_empty()
            && circuit_breaker.policy().is_none()
            && parameters.is_none()
            && recovery.mode() == recovery::Mode::Off
            && !retry.is_configured()
    }
}
