//! Response cache settings and cache keys. Decides how long a response is cached and which requests share it.

use std::{fmt, time::Duration};

use penstock_llm::operation::Operation;
use penstock_net::headers::Headers;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    ingress::control_headers::{CONTROL_PREFIX, split_control_name},
    parse::document_reader::ConfigReader,
};

const DEFAULT_MAX_AGE_SECONDS: u64 = 604_800;
/// Allowed values of `max_age` in seconds.
const MAX_AGE_RANGE_SECONDS: std::ops::RangeInclusive<u64> = 60..=7_776_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CachePolicy(Option<Duration>);

impl CachePolicy {
    /// Parses `{"mode": "simple", "max_age": seconds}`, or the mode alone, from a config.
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        if value.is_string() {
            check_mode(value, reading);
            return Self(Some(Duration::from_secs(DEFAULT_MAX_AGE_SECONDS)));
        }
        let (mut has_mode, mut age) = (false, DEFAULT_MAX_AGE_SECONDS);
        reading.read_keys(value, |reading, key, value| {
            match key {
                "mode" => {
                    has_mode = true;
                    check_mode(value, reading);
                }
                "max_age" => {
                    age = reading.read_integer(value, &MAX_AGE_RANGE_SECONDS).unwrap_or(DEFAULT_MAX_AGE_SECONDS);
                }
                _ => return false,
            }
            true
        });
        if !has_mode && value.is_object() {
            reading.report_problem("needs `mode`: `simple`");
        }
        Self(Some(Duration::from_secs(age)))
    }

    pub fn inherit(&mut self, parent: &Self) {
        self.0 = self.0.or(parent.0);
    }

    /// Returns how long a response to this operation may be cached; `None` if not at all. Requests that create
    /// something are never cached, because a repeated request must create another one.
    pub fn max_age(&self, operation: Operation, method: &str, path: &str) -> Option<Duration> {
        self.0.filter(|_| has_no_side_effects(operation, method, path))
    }
}

/// Returns true if the request only computes a response and creates nothing at the provider.
pub fn has_no_side_effects(operation: Operation, method: &str, path: &str) -> bool {
    let is_question = match operation {
        Operation::Proxy => is_inference_path(path),
        operation => operation.is_cacheable(),
    };
    is_question && method == "POST"
}

/// Last path segments of inference endpoints, which create nothing. Any other path may create something.
const INFERENCE_PATH_ENDINGS: [&str; 36] = [
    "answer",
    "batchEmbedContents",
    "chat",
    "classify",
    "complete",
    "completion",
    "completions",
    "converse",
    "converse-stream",
    "count-tokens",
    "countTokens",
    "count_tokens",
    "detokenize",
    "embed",
    "embedContent",
    "embeddings",
    "fim",
    "generate",
    "generateContent",
    "generations",
    "infer",
    "inference",
    "invoke",
    "invoke-with-response-stream",
    "messages",
    "moderations",
    "ocr",
    "predict",
    "rawPredict",
    "rerank",
    "responses",
    "speech",
    "streamGenerateContent",
    "streamRawPredict",
    "summarize",
    "tokenize",
];

/// Returns true if a proxied path ends like an inference endpoint. Paths below a created resource, such as a thread,
/// are excluded.
fn is_inference_path(path: &str) -> bool {
    let mut parts = path.trim_end_matches('/').split('/');
    let last = parts.next_back().unwrap_or_default();
    let last = last.rsplit(':').next().unwrap_or_default();
    INFERENCE_PATH_ENDINGS.contains(&last)
        && !parts.any(|part| matches!(part, "threads" | "conversations" | "containers"))
}

fn check_mode(value: &Value, reading: &mut ConfigReader) {
    match value.as_str() {
        Some("simple") => (),
        Some("semantic") => reading.report_problem("`semantic` is not available in this version; use `simple`"),
        _ => reading.report_expected("`simple`", value),
    }
}

/// Headers that identify neither the request's content nor the caller. Clients and intermediaries write new values for
/// each request, so the cache key ignores them.
const IGNORED_HEADERS: [&str; 50] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "b3",
    "baggage",
    "cache-control",
    "cdn-loop",
    "connection",
    "content-length",
    "date",
    "expect",
    "forwarded",
    "host",
    "idempotency-key",
    "newrelic",
    "pragma",
    "request-id",
    "sentry-trace",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "true-client-ip",
    "uber-trace-id",
    "user-agent",
    "via",
    "x-amz-date",
    "x-amz-user-agent",
    "x-amzn-requestid",
    "x-amzn-trace-id",
    "x-azure-ref",
    "x-client-ip",
    "x-client-request-id",
    "x-client-trace-id",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-path",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-forwarded-ssl",
    "x-ms-client-request-id",
    "x-real-ip",
    "x-request-id",
    "x-request-start",
];

/// Prefixes of further ignored headers.
const IGNORED_HEADER_PREFIXES: [&str; 6] = ["cf-", "x-b3-", "x-datadog-", "x-envoy-", "x-fastly-", "x-stainless-"];

/// Exceptions to the ignored prefixes: headers that do identify the caller.
const IDENTITY_HEADER_PREFIXES: [&str; 2] = ["cf-access-", "cf-aig-"];

/// Returns true if a header identifies neither the request's content nor the caller.
pub fn is_ignored_header(name: &[u8]) -> bool {
    let begins = |families: &[&str]| families.iter().any(|family| name.starts_with(family.as_bytes()));
    IGNORED_HEADERS.binary_search_by(|ignored| ignored.as_bytes().cmp(name)).is_ok()
        || begins(&IGNORED_HEADER_PREFIXES) && !begins(&IDENTITY_HEADER_PREFIXES)
}

/// Returns the part of a header value that stays the same when a request is sent again. For an AWS signature this is
/// the access key id.
fn stable_value<'v>(name: &[u8], value: &'v [u8]) -> &'v [u8] {
    let id = || {
        let signed = std::str::from_utf8(value).ok()?.strip_prefix("AWS4-HMAC-SHA256 ")?;
        let (_, scope) = signed.split_once("Credential=")?;
        scope.split(['/', ',']).next().filter(|id| !id.is_empty())
    };
    if name == b"authorization" { id().map_or(value, str::as_bytes) } else { value }
}

/// Returns true for gateway control headers that do not change a response. `rest` is the name without its prefix.
fn is_ignored_control_header(rest: &[u8]) -> bool {
    matches!(
        rest,
        b"trace-id"
            | b"span-id"
            | b"span-name"
            | b"parent-span-id"
            | b"cache-force-refresh"
            | b"request-timeout"
            | b"sensitive-headers"
            | b"explain"
            | b"debug"
    )
}

/// Separates cached responses of different callers.
#[derive(Debug, Clone, Copy)]
pub enum Partition<'p> {
    /// All request headers except the ignored ones, with the configured prefix aliases.
    Headers(&'p Headers, &'p [String]),
    /// A namespace that several callers of one tenant share.
    Namespace(&'p str),
}

/// SHA-256 digest under which a response is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CacheKey([u8; 32]);

/// Formats the key in hexadecimal.
impl fmt::Display for CacheKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl CacheKey {
    /// Hashes the partition and `parts`: the caller, the target and the request, with the body last.
    pub fn compute(partition: Partition<'_>, parts: &[&[u8]]) -> Self {
        let mut digest = Sha256::new();
        let mut add = |part: &[u8]| {
            // Prefix each part with its length, so that two different lists of parts never hash alike.
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        };
        match partition {
            Partition::Namespace(name) => [b"namespace", name.as_bytes()].into_iter().for_each(&mut add),
            Partition::Headers(headers, aliases) => {
                let entries =
                    headers.iter().filter(|(name, _)| !is_ignored_header(name)).filter_map(|(name, value)| {
                        // An aliased header name counts as the canonical name.
                        match split_control_name(name, aliases) {
                            Some((_, rest)) if is_ignored_control_header(rest) => None,
                            Some((_, rest)) => Some((CONTROL_PREFIX, rest, value)),
                            None => Some((&b""[..], name, stable_value(name, value))),
                        }
                    });
                let mut entries: Vec<_> = entries.collect();
                // Headers with different names may come in any order.
                entries.sort_by_key(|(prefix, name, _)| (*prefix, *name));
                for (prefix, name, value) in entries {
                    [prefix, name, value].into_iter().for_each(&mut add);
                }
            }
        }
        for part in parts {
            add(part);
        }
        Self(digest.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse::document_reader::Strictness;

    fn parse_cache(value: &Value) -> Result<CachePolicy, Vec<crate::error::Problem>> {
        let mut reading = ConfigReader::new(Strictness::Strict);
        let cache = CachePolicy::parse(value, &mut reading);
        reading.finish().map(|_| cache)
    }

    fn max_age_seconds(cache: CachePolicy) -> Option<u64> {
        cache.max_age(Operation::ChatComplete, "POST", "/chat/completions").map(|age| age.as_secs())
    }

    #[test]
    fn parses_max_age_in_seconds_with_a_default() {
        assert_eq!(max_age_seconds(parse_cache(&json!("simple")).unwrap()), Some(604_800));
        assert_eq!(max_age_seconds(parse_cache(&json!({"mode": "simple", "max_age": 60})).unwrap()), Some(60));
        for invalid in
            [json!("semantic"), json!({}), json!({"mode": "simple", "max_age": 59}), json!(true), json!({"mode": 1})]
        {
            assert_eq!(parse_cache(&invalid).unwrap_err().len(), 1, "{invalid}");
        }
    }

    #[test]
    fn caches_only_requests_without_side_effects() {
        let cache = parse_cache(&json!("simple")).unwrap();
        let is_cached = |operation, method, path| cache.max_age(operation, method, path).is_some();
        for path in ["/chat/completions", "/v2/chat", "/models/m:generateContent", "/some/inference", "/responses/"] {
            assert!(is_cached(Operation::Proxy, "POST", path), "{path}");
        }
        for path in [
            "/threads",
            "/threads/t/messages",
            "/threads/t/runs",
            "/assistants",
            "/vector_stores",
            "/vector_stores/v/files",
            "/uploads",
            "/containers",
            "/conversations",
            "/conversations/c/items",
            "/responses/r/cancel",
            "/fine_tuning/jobs",
            "/evals",
            "/messages/batches",
            "/images/edits",
            "/batches",
            "/",
        ] {
            assert!(!is_cached(Operation::from_method_and_path("POST", path), "POST", path), "{path}");
            assert!(!is_cached(Operation::Proxy, "POST", path), "{path}");
        }
        assert!(is_cached(Operation::ImageGenerate, "POST", "/images/generations"));
        assert!(is_cached(Operation::Proxy, "POST", "/some/inference"));
        assert!(
            !is_cached(Operation::CreateBatch, "POST", "/batches") && !is_cached(Operation::Proxy, "POST", "/files")
        );
        assert!(
            !is_cached(Operation::Proxy, "GET", "/some/inference")
                && !is_cached(Operation::ImageEdit, "POST", "/images/edits")
        );
    }

    fn cache_key(fields: &[(&str, &str)], body: &[u8]) -> CacheKey {
        let headers: Headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        CacheKey::compute(Partition::Headers(&headers, &["x-portkey-".to_owned()]), &[b"openai", body])
    }

    #[test]
    fn request_headers_separate_cached_responses() {
        let plain = cache_key(&[("authorization", "Bearer a")], b"{}");
        assert_eq!(
            plain,
            cache_key(&[("authorization", "Bearer a"), ("x-gateway-trace-id", "t"), ("traceparent", "x")], b"{}")
        );
        assert_ne!(plain, cache_key(&[("authorization", "Bearer b")], b"{}"));
        assert_ne!(plain, cache_key(&[("authorization", "Bearer a"), ("x-gateway-metadata", "{}")], b"{}"));
        assert_ne!(plain, cache_key(&[("authorization", "Bearer a")], b"{ }"));
        assert_eq!(cache_key(&[("x-portkey-metadata", "{}")], b""), cache_key(&[("x-gateway-metadata", "{}")], b""));
    }

    #[test]
    fn key_ignores_headers_that_change_per_request() {
        assert!(IGNORED_HEADERS.is_sorted());
        let plain = cache_key(&[("authorization", "Bearer a")], b"{}");
        let families = ["cf-ray", "cf-connecting-ip", "x-b3-traceid", "x-datadog-trace-id", "x-envoy-attempt-count"];
        for name in IGNORED_HEADERS.into_iter().chain(families) {
            assert_eq!(plain, cache_key(&[("authorization", "Bearer a"), (name, "one")], b"{}"), "{name}");
        }
        for name in ["cookie", "cf-access-jwt-assertion", "x-forwarded-user", "x-amz-security-token", "anthropic-beta"]
        {
            assert_ne!(plain, cache_key(&[("authorization", "Bearer a"), (name, "one")], b"{}"), "{name}");
        }
    }

    #[test]
    fn signed_requests_are_keyed_by_access_key_id() {
        let signed = |id: &str, date: &str, signature: &str| {
            let value = format!(
                "AWS4-HMAC-SHA256 Credential={id}/{date}/eu-west-1/bedrock/aws4_request, SignedHeaders=host, Signature={signature}"
            );
            cache_key(&[("authorization", &value), ("x-amz-date", date)], b"{}")
        };
        assert_eq!(signed("one", "20261121", "aa"), signed("one", "20261122", "bb"));
        assert_ne!(signed("one", "20261121", "aa"), signed("two", "20261121", "aa"));
        let key_of = |value: &str| cache_key(&[("authorization", value)], b"{}");
        assert_ne!(key_of("AWS4-HMAC-SHA256 Credential=/a"), key_of("AWS4-HMAC-SHA256 Credential=/b"));
    }

    #[test]
    fn header_order_matters_only_within_one_name() {
        let (a, b) = (("authorization", "Bearer a"), ("x-gateway-metadata", "{}"));
        assert_eq!(cache_key(&[a, b], b""), cache_key(&[b, a], b""));
        let (first, second) = (("anthropic-beta", "one"), ("anthropic-beta", "two"));
        assert_ne!(cache_key(&[first, second], b""), cache_key(&[second, first], b""));
    }

    #[test]
    fn different_parts_never_share_a_key() {
        let key_of = |parts: &[&[u8]]| CacheKey::compute(Partition::Namespace("n"), parts);
        assert_ne!(key_of(&[b"ab", b"c"]), key_of(&[b"a", b"bc"]));
        assert_ne!(key_of(&[b"a"]), CacheKey::compute(Partition::Namespace("m"), &[b"a"]));
    }
}
