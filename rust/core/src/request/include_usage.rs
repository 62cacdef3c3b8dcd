//! Usage that a stream says only when asked is asked for, so that no stream goes uncounted; who did not ask is not told.

use penstock_llm::stream::include_usage;

use crate::{
    accounting::record::RequestLog,
    ingress::body::Body,
    resolve::{
        target::{StreamUsage, Target},
        target_resolver::Call,
    },
};

/// The body as it is sent to who is asked in the caller's own dialect.
pub fn request_usage(call: &Call<'_>, target: &Target<'_>, body: Body, facts: &mut RequestLog) -> Body {
    match &body {
        Body::Complete(bytes) if should_request_usage(call, target, facts) => {
            replace_body(include_usage::request_usage(bytes), body, facts)
        }
        _ => body,
    }
}

/// The same for a large body: looking through it here would make others wait.
pub async fn request_usage_blocking(call: &Call<'_>, target: &Target<'_>, body: Body, facts: &mut RequestLog) -> Body {
    let bytes = match &body {
        Body::Complete(bytes) if should_request_usage(call, target, facts) => bytes.clone(),
        _ => return body,
    };
    let asked = tokio::task::spawn_blocking(move || include_usage::request_usage(&bytes)).await;
    replace_body(asked.ok().flatten(), body, facts)
}

fn replace_body(asked: Option<Vec<u8>>, body: Body, facts: &mut RequestLog) -> Body {
    let Some(asked) = asked else { return body };
    facts.hides_usage = true;
    Body::Complete(asked.into())
}

fn should_request_usage(call: &Call<'_>, target: &Target<'_>, facts: &RequestLog) -> bool {
    facts.is_streaming
        && !target.is_passthrough
        && target.stream_usage != StreamUsage::AsConfigured
        && supports_usage_option(call, target)
}

fn supports_usage_option(call: &Call<'_>, target: &Target<'_>) -> bool {
    let version = call.route.path_params.version.or_else(|| api_version(&call.head.query));
    include_usage::supports_include_usage(target.provider, call.route.operation, version, &target.options)
        // What comes compressed cannot be taken apart.
        && !target.forward_headers.contains(b"accept-encoding")
}

fn api_version(query: &str) -> Option<&str> {
    query.split('&').find_map(|pair| pair.strip_prefix("api-version="))
}
