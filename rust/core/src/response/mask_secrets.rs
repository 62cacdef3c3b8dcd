//! Removes stored secrets from a provider's errors: some providers repeat the credential or a header of the request,
//! and the caller may use a stored secret but not read it.

use bytes::Bytes;
use memchr::memmem;
use penstock_llm::api_format::{Failure, openai_chat};
use penstock_net::{Deadline, IncomingResponse, ResponseBody, collect, headers::Headers};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{
    accounting::compressed_response,
    credentials::{self, IssuedCredential},
    error::Result,
    gateway_state::GatewayState,
    process::secret::{MASK, MIN_SECRET_BYTES, find_secrets},
    resolve::target::{CredentialOrigin, Target},
    response::{
        delivery::{self, UpstreamResponse},
        normalise::MAX_ERROR_BODY_BYTES,
        offload::with_content_type,
    },
};

const AMAZON_EVENT_STREAM: &str = "application/vnd.amazon.eventstream";
/// Part of every error of a stream: `"error"`, `event: error`, `Error`.
const ERROR_WORD: &[u8] = b"rror";

/// Returns true if the response is an error, a redirect or a page, in which a provider may repeat a secret of the
/// request.
pub fn may_repeat_secrets(incoming: &IncomingResponse) -> bool {
    incoming.head.status >= 300 || incoming.head.headers.has_media_type("text/html")
}

/// Returns true if the result is a failure, which may repeat a secret of the request.
pub fn may_failure_repeat_secrets(result: &Result<UpstreamResponse>) -> bool {
    match result {
        Ok(response) => response.incoming.head.status >= 300,
        Err(error) => error.has_upstream_text(),
    }
}

/// Masks the stored secrets in a result that turned out to be a failure after its head arrived, for example an error
/// with status 200.
pub async fn mask_failure(
    state: &GatewayState,
    target: &Target<'_>,
    result: Result<UpstreamResponse>,
) -> Result<UpstreamResponse> {
    let issued = match &target.grant {
        // The credential cache has it, because the request was sent with it.
        Some(grant) => credentials::fetch_credential(state, target, grant).await.ok(),
        None => None,
    };
    let fetched = issued.as_deref().and_then(IssuedCredential::token);
    match result {
        Ok(mut response) => {
            let incoming = mask_stored_secrets(target, fetched, response.incoming, &mut response.deadline).await?;
            Ok(UpstreamResponse { incoming, ..response })
        }
        Err(mut error) => {
            let secrets = stored_secrets(target, fetched);
            error.edit_upstream_text(|text| *text = mask_excerpt(text, &secrets));
            Err(error)
        }
    }
}

/// Replaces the stored secrets that were sent to this target in an error. `fetched` is a credential that was fetched
/// for it.
pub async fn mask_stored_secrets(
    target: &Target<'_>,
    fetched: Option<&str>,
    incoming: IncomingResponse,
    deadline: &mut Deadline,
) -> Result<IncomingResponse> {
    let secrets = stored_secrets(target, fetched);
    if secrets.is_empty() {
        return Ok(incoming);
    }
    let IncomingResponse { mut head, mut body } = incoming;
    head.headers = mask_headers(&head.headers, &secrets);
    let is_plain = delivery::is_uncompressed(&head.headers);
    let Some(bytes) = deadline.enforce(collect(&mut body, MAX_ERROR_BODY_BYTES)).await? else {
        // The document is too large to be read at once.
        if is_plain {
            head.headers.retain(|name| name != b"content-length");
            return Ok(IncomingResponse { head, body: body.map_chunks(mask_chunks(secrets)) });
        }
        head.headers = with_content_type(head.headers, b"application/json");
        return Ok(IncomingResponse { head, body: unreadable_body() });
    };
    let plain =
        if is_plain { Some(bytes.clone()) } else { compressed_response::decompress(&bytes, MAX_ERROR_BODY_BYTES) };
    let body = match plain {
        _ if bytes.is_empty() => ResponseBody::from_bytes(bytes),
        Some(plain) if secrets.iter().any(|secret| memmem::find(&plain, secret).is_some()) => {
            head.headers.retain(|name| !matches!(name, b"content-length" | b"content-encoding"));
            ResponseBody::from_bytes(mask_bytes(&plain, &secrets).into())
        }
        Some(_) => ResponseBody::from_bytes(bytes),
        None => {
            head.headers = with_content_type(head.headers, b"application/json");
            unreadable_body()
        }
    };
    Ok(IncomingResponse { head, body })
}

/// Masks the stored secrets in a successful response, chunk by chunk. A provider may repeat them in an error event of a
/// stream, and what a saved config adds to the request anywhere.
pub fn mask_success(target: &Target<'_>, fetched: Option<&str>, mut incoming: IncomingResponse) -> IncomingResponse {
    let headers = &incoming.head.headers;
    let is_everywhere = target.stored_parameters.secrets().next().is_some();
    // Errors with a known length are masked when they turn out to be errors. A frame of Amazon's event streams has a
    // checksum, so it cannot be changed here.
    let is_stream = || headers.get("content-length").is_none() && !headers.has_media_type(AMAZON_EVENT_STREAM);
    if !delivery::is_uncompressed(headers) || !(is_everywhere || is_stream()) {
        return incoming;
    }
    let secrets: Vec<String> = sent_secrets(target, fetched).into_iter().map(str::to_owned).collect();
    if secrets.is_empty() {
        return incoming;
    }
    incoming.head.headers.retain(|name| name != b"content-length");
    incoming.body = incoming.body.map_chunks(mask_errors(secrets, is_everywhere));
    incoming
}

/// Returns the request body with the secrets of a saved config masked, for its record.
pub fn mask_stored_parameters(target: &Target<'_>, body: &Bytes) -> Bytes {
    let secrets = spell_secrets(target.stored_parameters.secrets());
    if secrets.is_empty() { body.clone() } else { mask_bytes(body, &secrets).into() }
}

/// Returns the error that replaces one in a content coding that cannot be read.
fn unreadable_body() -> ResponseBody {
    let message = "the provider's error cannot be shown, because it is too large or in an unknown content coding";
    let failure = Failure { status: 502, error_type: None, message, code: None, request_id: None };
    ResponseBody::from_bytes(openai_chat::error_body(&failure).into())
}

/// Returns the stored secrets of a request in the spellings in which they may be repeated, longest first.
fn stored_secrets(target: &Target<'_>, fetched: Option<&str>) -> Vec<Vec<u8>> {
    spell_secrets(sent_secrets(target, fetched))
}

/// Returns the stored secrets of a request as they were sent.
fn sent_secrets<'t>(target: &'t Target<'_>, fetched: Option<&'t str>) -> Vec<&'t str> {
    let mut secrets: Vec<&str> = Vec::new();
    if target.credential_origin == CredentialOrigin::Stored {
        secrets.extend(target.credential.as_deref());
        secrets.extend(target.options.secrets());
        secrets.extend(fetched);
    }
    secrets.extend(target.header_fields.iter().map(|(_, value)| *value));
    secrets.extend(target.stored_parameters.secrets());
    secrets
}

/// Returns secrets in the spellings in which they may be repeated, longest first.
fn spell_secrets<'s>(secrets: impl IntoIterator<Item = &'s str>) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = secrets.into_iter().flat_map(spellings).collect();
    all.sort_unstable_by(|item, other| other.len().cmp(&item.len()).then_with(|| item.cmp(other)));
    all.dedup();
    all
}

/// Returns the spellings in which a secret may be repeated; none if it is too short.
fn spellings(secret: &str) -> Vec<Vec<u8>> {
    // The scheme of a header value may be missing.
    let bare = secret.split_once(' ').map_or(secret, |(_, rest)| rest);
    let texts = [secret, bare].into_iter().filter(|text| text.len() >= MIN_SECRET_BYTES);
    let spell = |text: &str| {
        let json = serde_json::Value::from(text).to_string();
        let encoded = utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        [text.into(), encoded.into(), json[1..json.len() - 1].into()]
    };
    texts.flat_map(spell).collect()
}

fn mask_headers(headers: &Headers, secrets: &[Vec<u8>]) -> Headers {
    let masked: Vec<_> = headers.iter().map(|(name, value)| (name, mask_bytes(value, secrets))).collect();
    masked.iter().map(|(name, value)| (*name, value.as_slice())).collect()
}

fn mask_bytes(bytes: &[u8], secrets: &[Vec<u8>]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for secret in secrets {
        if memmem::find(&out, secret).is_none() {
            continue;
        }
        let mut masked = Vec::with_capacity(out.len());
        let mut copied = 0;
        for at in memmem::find_iter(&out, secret) {
            masked.extend_from_slice(&out[copied..at]);
            masked.extend_from_slice(MASK.as_bytes());
            copied = at + secret.len();
        }
        masked.extend_from_slice(&out[copied..]);
        out = masked;
    }
    out
}

/// Masks the signature of a signed URL in the error response of its server.
pub fn mask_url_secrets(url: &str, error: &[u8]) -> Vec<u8> {
    let secrets: Vec<_> = find_secrets(&url.into()).iter().flat_map(|secret| spellings(secret)).collect();
    mask_bytes(error, &secrets)
}

/// Masks the secrets in a text that may have been cut within one.
fn mask_excerpt(text: &str, secrets: &[Vec<u8>]) -> String {
    let mut masked = mask_bytes(text.as_bytes(), secrets);
    let cut_length = |secret: &Vec<u8>| {
        let longest = secret.len().min(masked.len());
        (MIN_SECRET_BYTES..longest).rev().find(|length| masked.ends_with(&secret[..*length]))
    };
    if let Some(length) = secrets.iter().filter_map(cut_length).max() {
        masked.truncate(masked.len() - length);
        masked.extend_from_slice(MASK.as_bytes());
    }
    String::from_utf8_lossy(&masked).into_owned()
}

/// Returns a transform that masks the secrets of a stream from its first error on, or from its beginning. Other streams
/// are only searched for an error, because most chunks contain none and their secrets need not be spelled.
fn mask_errors(secrets: Vec<String>, is_everywhere: bool) -> impl FnMut(Option<Bytes>) -> Bytes + Send {
    let start = move |secrets: &[String]| mask_chunks(spell_secrets(secrets.iter().map(String::as_str)));
    let mut mask = is_everywhere.then(|| start(&secrets));
    // End of the previous chunk. A secret may continue in the current one.
    let mut end = Vec::with_capacity(2 * ERROR_WORD.len());
    move |chunk| {
        if mask.is_none()
            && let Some(bytes) = &chunk
        {
            const CUT: usize = ERROR_WORD.len() - 1;
            end.extend_from_slice(&bytes[..bytes.len().min(CUT)]);
            if memmem::find(bytes, ERROR_WORD).is_some() || memmem::find(&end, ERROR_WORD).is_some() {
                mask = Some(start(&secrets));
            } else {
                if bytes.len() > CUT {
                    end.clear();
                    end.extend_from_slice(&bytes[bytes.len() - CUT..]);
                }
                end.drain(..end.len().saturating_sub(CUT));
            }
        }
        mask.as_mut().map_or_else(|| chunk.clone().unwrap_or_default(), |mask| mask(chunk.clone()))
    }
}

/// Returns a transform that masks the secrets of a stream of chunks. Holds back what may be the beginning of a secret.
fn mask_chunks(secrets: Vec<Vec<u8>>) -> impl FnMut(Option<Bytes>) -> Bytes + Send + 'static {
    let mut withheld = Vec::new();
    move |chunk| {
        let is_end = chunk.is_none();
        withheld.extend_from_slice(&chunk.unwrap_or_default());
        withheld = mask_bytes(&withheld, &secrets);
        let begun =
            if is_end { 0 } else { secrets.iter().map(|secret| begun_bytes(&withheld, secret)).max().unwrap_or(0) };
        withheld.drain(..withheld.len() - begun).collect::<Vec<_>>().into()
    }
}

/// Returns how many bytes at the end of a text are the beginning of a secret.
fn begun_bytes(text: &[u8], secret: &[u8]) -> usize {
    let longest = secret.len().saturating_sub(1).min(text.len());
    (1..=longest).rev().find(|length| text.ends_with(&secret[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_a_secret_that_the_end_of_an_excerpt_cuts() {
        let secrets = vec![b"sk-stored-12345".to_vec()];
        for (text, masked) in [
            ("key sk-stored-12345", "key ***"),
            ("key sk-stored-123", "key ***"),
            ("key sk-store", "key ***"),
            ("key sk-stor", "key sk-stor"),
            ("", ""),
        ] {
            assert_eq!(mask_excerpt(text, &secrets), masked);
        }
    }

    #[test]
    fn masks_secrets_across_chunks() {
        let secrets = vec![b"sk-stored-12345".to_vec(), b"other-secret".to_vec()];
        let text = b"a sk-stored-12345 b other-secretsk-stored-12345 sk-stored-1234";
        for step in 1..text.len() {
            let mut mask = mask_chunks(secrets.clone());
            let mut out: Vec<u8> =
                text.chunks(step).flat_map(|chunk| mask(Some(Bytes::copy_from_slice(chunk))).to_vec()).collect();
            out.extend(mask(None));
            assert_eq!(String::from_utf8(out).unwrap(), "a *** b ****** sk-stored-1234", "{step}");
        }
    }

    #[test]
    fn masks_streams_from_their_first_error_on_at_any_cut() {
        let text = b"data: sk-stored-1234\n\nevent: error\ndata: {\"message\":\"bad key sk-stored-12345\"}\n\n";
        let masked = "data: sk-stored-1234\n\nevent: error\ndata: {\"message\":\"bad key ***\"}\n\n";
        for step in 1..=text.len() {
            let mut mask = mask_errors(vec!["sk-stored-12345".into()], false);
            let mut out: Vec<u8> =
                text.chunks(step).flat_map(|chunk| mask(Some(Bytes::copy_from_slice(chunk))).to_vec()).collect();
            out.extend(mask(None));
            assert_eq!(String::from_utf8(out).unwrap(), masked, "{step}");
        }
    }

    #[test]
    fn passes_chunks_on_unless_they_end_with_the_beginning_of_a_secret() {
        let mut mask = mask_errors(vec!["sk-stored-12345".into()], true);
        assert_eq!(mask(Some(Bytes::from_static(b"text\n\n"))), "text\n\n");
        assert_eq!(mask(Some(Bytes::from_static(b"text sk-st"))), "text ");
        assert_eq!(mask(Some(Bytes::from_static(b"ill\n\n"))), "sk-still\n\n");
    }
}
