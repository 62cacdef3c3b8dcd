//! The gateway's control headers of a request: `x-gateway-*`, and the same names under the configured alias prefixes.

use std::time::Duration;

use penstock_llm::catalog;
use penstock_net::headers::Headers;

use crate::ingress::trace_context::TraceContext;

/// Prefix of the gateway's control headers.
pub const CONTROL_PREFIX: &[u8] = b"x-gateway-";

/// Control headers of a request, parsed in one pass from `x-gateway-*` or an alias of that prefix.
#[derive(Debug, Default, Clone, Copy)]
pub struct ControlHeaders<'a> {
    pub api_key: Option<&'a str>,
    pub provider: Option<&'a str>,
    pub virtual_key: Option<&'a str>,
    pub config: Option<&'a str>,
    pub custom_host: Option<&'a str>,
    pub trace_id: Option<&'a str>,
    pub span_id: Option<&'a str>,
    pub span_name: Option<&'a str>,
    pub parent_span_id: Option<&'a str>,
    pub metadata: Option<&'a str>,
    pub request_timeout: Option<&'a str>,
    pub forward_headers: Option<&'a str>,
    pub sensitive_headers: Option<&'a str>,
    pub cache_force_refresh: Option<&'a str>,
    pub cache_namespace: Option<&'a str>,
    pub strict_openai_compliance: Option<&'a str>,
    pub explain: Option<&'a str>,
    pub nitro_mode: Option<&'a str>,
    /// `false` if only metrics of the request may be logged, not its content.
    pub debug: Option<&'a str>,
    /// Workspace that a caller with a token expects to act in.
    pub workspace: Option<&'a str>,
    /// Duration of an uploaded recording in milliseconds, as measured by the client.
    pub audio_file_duration: Option<&'a str>,
    /// Guardrails to run on the request.
    pub input_guardrails: Option<&'a str>,
    /// Guardrails to run on the response.
    pub output_guardrails: Option<&'a str>,
    /// True if there are further control headers, which may be provider options.
    pub has_other_fields: bool,
    /// Prefix that the client used; response headers use the same one.
    pub prefix: Option<&'a [u8]>,
    /// Trace context from `traceparent`.
    pub trace: Option<TraceContext<'a>>,
    pub has_baggage: bool,
    /// Client's id of the session that groups several requests.
    pub session_id: Option<&'a str>,
    /// Timeout after which the client gives up, as it reports it.
    pub client_timeout: Option<Duration>,
}

/// Session header of a coding assistant. Gateways use it to group requests; it is not sent to providers.
pub const SESSION_HEADER: &[u8] = b"x-claude-code-session-id";

/// Placeholder for a value that is not UTF-8: the header counts as present but matches no valid value.
const NON_UTF8_VALUE: &str = "\u{fffd}";

impl<'a> ControlHeaders<'a> {
    /// Parses the control headers. `aliases` are further lower-case prefixes, such as `x-portkey-`.
    pub fn parse(headers: &'a Headers, aliases: &'a [String]) -> Self {
        let mut control = Self::default();
        let mut traceparent: Option<&[u8]> = None;
        for (name, value) in headers.iter() {
            if let Some((prefix, rest)) = split_control_name(name, aliases) {
                // An alias takes precedence: clients that use it read only aliased headers of the response.
                if control.prefix.is_none_or(|current| current == CONTROL_PREFIX) {
                    control.prefix = Some(prefix);
                }
                control.set_field(rest, std::str::from_utf8(value).unwrap_or(NON_UTF8_VALUE).trim());
            } else if name == b"traceparent" {
                // Duplicate `traceparent` fields count as none.
                traceparent = Some(if traceparent.is_none() { value } else { b"" });
            } else if name == b"baggage" {
                control.has_baggage = true;
            } else if name == SESSION_HEADER {
                control.session_id = std::str::from_utf8(value).ok().map(str::trim);
            } else if matches!(name, b"x-stainless-timeout" | b"x-stainless-read-timeout") {
                control.client_timeout = control.client_timeout.into_iter().chain(parse_seconds(value)).min();
            }
        }
        control.trace = traceparent.and_then(TraceContext::parse);
        control
    }

    /// Returns true if the response must explain the routing decision.
    pub fn should_explain(&self) -> bool {
        self.explain == Some("true")
    }

    /// Returns true if the request must be sent unchanged and once: no parameter overrides, no translation, no retry.
    pub fn is_nitro_mode(&self) -> bool {
        self.nitro_mode == Some("true")
    }

    /// Returns true if only metrics of the request may be logged, not its content.
    pub fn is_content_logging_disabled(&self) -> bool {
        self.debug.is_some_and(|value| value.eq_ignore_ascii_case("false"))
    }

    /// Returns true if the rest of a control header's name, after the prefix, is a known field or a provider's option.
    pub fn is_field(name: &[u8]) -> bool {
        let mut probe = ControlHeaders::default();
        probe.set_field(name, "");
        let is_option = || {
            let mut options = catalog::all_providers().flat_map(|provider| provider.row().options);
            options.any(|option| option.header.as_bytes() == name)
        };
        !probe.has_other_fields || is_option()
    }

    fn set_field(&mut self, name: &[u8], value: &'a str) {
        let field = match name {
            b"api-key" => &mut self.api_key,
            b"provider" => &mut self.provider,
            b"virtual-key" => &mut self.virtual_key,
            b"config" => &mut self.config,
            b"custom-host" => &mut self.custom_host,
            b"trace-id" => &mut self.trace_id,
            b"span-id" => &mut self.span_id,
            b"span-name" => &mut self.span_name,
            b"parent-span-id" => &mut self.parent_span_id,
            b"metadata" => &mut self.metadata,
            b"request-timeout" => &mut self.request_timeout,
            b"forward-headers" => &mut self.forward_headers,
            b"sensitive-headers" => &mut self.sensitive_headers,
            b"cache-force-refresh" => &mut self.cache_force_refresh,
            b"cache-namespace" => &mut self.cache_namespace,
            b"explain" => &mut self.explain,
            b"nitro-mode" => &mut self.nitro_mode,
            b"debug" => &mut self.debug,
            b"workspace" => &mut self.workspace,
            b"audio-file-duration" => &mut self.audio_file_duration,
            b"default-input-guardrails" => &mut self.input_guardrails,
            b"default-output-guardrails" => &mut self.output_guardrails,
            b"strict-open-ai-compliance" | b"strict-openai-compliance" => &mut self.strict_openai_compliance,
            _ => {
                self.has_other_fields = true;
                return;
            }
        };
        if !value.is_empty() {
            *field = Some(value);
        }
    }
}

/// Parses a duration in seconds. Returns `None` for zero and for text, which some clients send.
fn parse_seconds(value: &[u8]) -> Option<Duration> {
    let seconds = std::str::from_utf8(value).ok()?.trim().parse::<f64>().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero())
}

/// Splits a control header's name into its prefix and the rest; `None` for any other header.
pub fn split_control_name<'n>(name: &'n [u8], aliases: &[String]) -> Option<(&'n [u8], &'n [u8])> {
    if name.first() != Some(&b'x') {
        return None;
    }
    std::iter::once(CONTROL_PREFIX)
        .chain(aliases.iter().map(String::as_bytes))
        .find(|prefix| name.starts_with(prefix))
        .map(|prefix| name.split_at(prefix.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_control_headers_under_either_prefix() {
        let headers: Headers =
            [(&b"X-Gateway-Provider"[..], &b"openai"[..]), (b"x-portkey-trace-id", b"t-1")].into_iter().collect();
        let aliases = vec!["x-portkey-".to_owned()];
        let control = ControlHeaders::parse(&headers, &aliases);
        assert_eq!((control.provider, control.trace_id), (Some("openai"), Some("t-1")));
        assert_eq!(ControlHeaders::parse(&headers, &[]).trace_id, None);
    }

    #[test]
    fn response_prefix_prefers_alias_over_x_gateway() {
        let aliases = vec!["x-portkey-".to_owned()];
        for names in [["x-gateway-a", "x-portkey-b"], ["x-portkey-b", "x-gateway-a"]] {
            let headers: Headers = names.iter().map(|name| (name.as_bytes(), &b"1"[..])).collect();
            assert_eq!(ControlHeaders::parse(&headers, &aliases).prefix, Some(&b"x-portkey-"[..]));
            assert_eq!(ControlHeaders::parse(&headers, &[]).prefix, Some(CONTROL_PREFIX));
        }
    }

    #[test]
    fn ignores_duplicate_traceparent() {
        let parent = (&b"TraceParent"[..], &b"00-12345678901234567890123456789012-1234567890123456-01"[..]);
        let read =
            |fields: &[(&[u8], &[u8])]| ControlHeaders::parse(&fields.iter().copied().collect(), &[]).trace.is_some();
        assert!(read(&[parent]));
        assert!(!read(&[parent, parent]) && !read(&[(b"trace-parent", parent.1)]));
    }
}
