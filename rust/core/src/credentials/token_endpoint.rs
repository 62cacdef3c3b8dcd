//! OAuth 2 token endpoint client. Posts a form, and returns an access token with its lifetime.

use std::time::Duration;

use penstock_net::{BaseUrl, BodyFraming, BufferedResponse, OutgoingRequest, Upstream, body::Body, collect};
use serde::Deserialize;

use crate::{credentials::issued::IssuedCredential, error::Error};

/// Maximum size of a response of a token endpoint.
const MAX_RESPONSE_BYTES: usize = 256 * 1024;
/// Lifetime of a token whose endpoint does not report one.
const DEFAULT_LIFETIME_SECONDS: u64 = 3600;

#[derive(Deserialize)]
struct TokenResponse {
    #[serde(default)]
    access_token: String,
    #[serde(default)]
    expires_in: Option<serde_json::Value>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    error_description: Option<String>,
}

/// Posts a form, and parses the token in the response.
pub async fn request_token(upstream: &Upstream, url: &str, form: &str) -> Result<(IssuedCredential, Duration), String> {
    let head = |base: &BaseUrl| {
        let path = if base.prefix.is_empty() { "/" } else { &base.prefix };
        format!("POST {path} HTTP/1.1\r\nhost: {}\r\naccept: application/json\r\n", base.origin.authority())
    };
    let BufferedResponse { status, body } = post_form(upstream, url, form, |base| Ok(head(base).into_bytes())).await?;
    let response: TokenResponse =
        serde_json::from_slice(&body).map_err(|_| format!("{url} returned status {status} without valid JSON"))?;
    if status >= 300 || response.access_token.is_empty() {
        let message = response.error_description.or(response.error).unwrap_or_default();
        return Err(format!("{url} returned status {status}: {}", sanitise_message(&message)));
    }
    // Some endpoints write the number as a string.
    let life = response
        .expires_in
        .and_then(|life| life.as_u64().or_else(|| life.as_str()?.parse().ok()))
        .unwrap_or(DEFAULT_LIFETIME_SECONDS);
    if !response.access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{url} returned a token that cannot be sent in a header"));
    }
    Ok((IssuedCredential::Token(response.access_token), Duration::from_secs(life)))
}

/// Posts a form with a head that lacks its final fields, and reads the complete response.
pub async fn post_form(
    upstream: &Upstream,
    url: &str,
    form: &str,
    head: impl FnOnce(&BaseUrl) -> Result<Vec<u8>, String>,
) -> Result<BufferedResponse, String> {
    send_request(upstream, url, "application/x-www-form-urlencoded", form, head).await
}

/// Sends a request with a body of the given content type, or without a body if the type is empty. Returns the complete
/// response.
pub async fn send_request(
    upstream: &Upstream,
    url: &str,
    content_type: &str,
    content: &str,
    head: impl FnOnce(&BaseUrl) -> Result<Vec<u8>, String>,
) -> Result<BufferedResponse, String> {
    let base = BaseUrl::parse(url).map_err(|message| format!("`{url}` {message}"))?;
    let mut head = head(&base)?;
    if !content_type.is_empty() {
        head.extend_from_slice(
            format!("content-type: {content_type}\r\ncontent-length: {}\r\n", content.len()).as_bytes(),
        );
    }
    head.extend_from_slice(b"\r\n");
    let body = if content_type.is_empty() { Body::empty() } else { Body::Complete(content.to_owned().into()) };
    let outgoing = OutgoingRequest { head, body, body_framing: BodyFraming::default(), is_replayable: true };
    let failed = |error: penstock_net::Error| format!("{url} could not be reached: {}", Error::from(error).message());
    let mut incoming = upstream.send(&base.origin, outgoing).await.map_err(failed)?;
    let body = collect(&mut incoming.body, MAX_RESPONSE_BYTES).await.map_err(failed)?;
    let body = body.ok_or_else(|| format!("{url} returned too large a response"))?;
    Ok(BufferedResponse { status: incoming.head.status, body })
}

/// Shortens a third party's text to 300 characters on one line, for use in an error message.
pub fn sanitise_message(message: &str) -> String {
    message.chars().take(300).map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// Encodes form fields.
pub fn encode_form(fields: &[(&str, &str)]) -> String {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields);
    form.finish()
}
