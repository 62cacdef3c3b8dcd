//! Upload URLs of Google's API. The provider's response to the first request of an upload names the URL at which the
//! client continues. It becomes a URL of the gateway, because the client has no credential of the provider. The URL has
//! a token, because the client's SDK sends no key there.

use penstock_net::headers::Headers;

use crate::{
    auth::upload_token::{self, TOKEN_PARAM},
    ingress::route,
    resolve::{target::Target, target_resolver::ClientRequest},
};

const UPLOAD_URL_HEADER: &str = "x-goog-upload-url";

/// Rewrites the upload URL in the headers of a response, if the request belongs to an upload. The URL gets a token if
/// the gateway can verify it later. Otherwise the client must send its gateway key. `base_path` is the path below which
/// a proxy serves the gateway.
pub(crate) fn rewrite_upload_url(
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    base_path: &str,
    response_headers: &mut Headers,
) {
    if !route::is_upload_path(client_request.route.path) {
        return;
    }
    let fields = &client_request.head.headers;
    let rewritten = || {
        let (path, query) = route::split_upload_url(response_headers.get_str(UPLOAD_URL_HEADER)?)?;
        let token =
            target.saved_provider.and_then(|saved| upload_token::sign_upload(&target.caller, saved, path, query));
        let scheme = if fields.get_str("x-forwarded-proto") == Some("https") { "https" } else { "http" };
        let mut url = format!("{scheme}://{}{base_path}{path}", fields.get_str("host")?);
        let signed = token.map(|token| format!("{TOKEN_PARAM}={token}"));
        for (index, part) in
            [query, signed.as_deref().unwrap_or_default()].iter().filter(|part| !part.is_empty()).enumerate()
        {
            url.push(if index == 0 { '?' } else { '&' });
            url.push_str(part);
        }
        Some(url)
    };
    if let Some(url) = rewritten() {
        response_headers.retain(|name| name != UPLOAD_URL_HEADER.as_bytes());
        response_headers.push(UPLOAD_URL_HEADER.as_bytes(), url.as_bytes());
    }
}
