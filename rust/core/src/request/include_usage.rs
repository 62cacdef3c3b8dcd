//! Requests usage for streams that report it only on request, so that every stream is counted. The added usage is
//! hidden from clients that did not request it.

use penstock_llm::stream::include_usage;
use penstock_net::body::Body;

use crate::{
    accounting::record::RequestLog,
    resolve::{
        target::{StreamUsage, Target},
        target_resolver::ClientRequest,
    },
};

/// Returns the body of a request for a stream with `stream_options.include_usage` set, if the target uses the client's
/// API format and needs it.
pub fn request_usage(
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    body: Body,
    log: &mut RequestLog,
) -> Body {
    match &body {
        Body::Complete(bytes) if should_request_usage(client_request, target) => {
            replace_body(include_usage::request_usage(bytes), body, log)
        }
        _ => body,
    }
}

/// Does the same as `request_usage` for a large body on a blocking thread, so that other requests do not wait.
pub async fn request_usage_blocking(
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    body: Body,
    log: &mut RequestLog,
) -> Body {
    let bytes = match &body {
        Body::Complete(bytes) if should_request_usage(client_request, target) => bytes.clone(),
        _ => return body,
    };
    let updated = tokio::task::spawn_blocking(move || include_usage::request_usage(&bytes)).await;
    replace_body(updated.ok().flatten(), body, log)
}

fn replace_body(updated: Option<Vec<u8>>, body: Body, log: &mut RequestLog) -> Body {
    let Some(updated) = updated else { return body };
    log.hides_usage = true;
    Body::Complete(updated.into())
}

fn should_request_usage(client_request: &ClientRequest<'_>, target: &Target<'_>) -> bool {
    let version = client_request.route.path_params.version.or_else(|| api_version(&client_request.head.query));
    !target.is_passthrough
        && target.stream_usage != StreamUsage::AsConfigured
        && include_usage::supports_include_usage(target.provider, client_request.route.operation, version, &target.options)
        // The added usage cannot be removed from a compressed response.
        && !target.forward_headers.contains(b"accept-encoding")
}

fn api_version(query: &str) -> Option<&str> {
    query.split('&').find_map(|pair| pair.strip_prefix("api-version="))
}
