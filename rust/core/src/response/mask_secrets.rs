//! Removes stored secrets from a provider's errors: some providers repeat the credential or a header of the request,
//! and the caller may use a stored secret but not read it.

use aho_corasick::{AhoCorasick, MatchKind};
use bytes::Bytes;
use memchr::memmem;
use penstock_llm::api_format::{Failure, openai_chat};
use penstock_net::{Deadline, IncomingResponse, ResponseBody, collect, headers::Headers};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{
    accounting::compressed_response,
    credentials::{self, IssuedCredential},
    error::{Error, Result},
    gateway_state::GatewayState,
    process::secret::{MASK, MIN_SECRET_BYTES, find_secrets},
    resolve::target::{CredentialOrigin, Target},
    response::{
        delivery::{self, UpstreamResponse},
        gunzip::gunzip_chunks,
        mask_frames::mask_frames,
        normalise::MAX_ERROR_BODY_BYTES,
        offload::{run_offloaded, with_content_type},
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

/// Masks the stored secrets in a result that is a failure although its head did not show it, for example an error with
/// status 200.
pub async fn mask_failure(
    state: &GatewayState,
    target: &Target<'_>,
    result: Result<UpstreamResponse>,
) -> Result<UpstreamResponse> {
    let issued = match &target.grant {
        // The credential cache still contains the credential, because the request was sent with it.
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

/// Masks all credentials of a request in the message of the provider's error, for its record. Unlike the caller, readers
/// of records may not know the credential that the request sent.
pub fn mask_recorded_message(state: &GatewayState, target: &Target<'_>, message: &str) -> String {
    let issued = target.grant.as_deref().and_then(|grant| state.credential_cache.find_cached(grant));
    let fetched = issued.as_deref().and_then(IssuedCredential::token);
    let own = credential_secrets(target, fetched).into_iter().chain(target.authorization);
    mask_excerpt(message, &spell_secrets(own.chain(sent_secrets(target, fetched))))
}

/// Masks an error: replaces the stored secrets that were sent to this target. `fetched` is a credential that was
/// fetched for the target.
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
/// stream. Secrets that a saved config adds to the request may be repeated in any part of a response. A complete
/// response that turns out to be an error is masked by `mask_failure`.
pub fn mask_success(
    target: &Target<'_>,
    fetched: Option<&str>,
    mut incoming: IncomingResponse,
) -> Result<IncomingResponse> {
    let headers = &incoming.head.headers;
    let is_everywhere = target.stored_parameters.secrets().next().is_some();
    let is_frames = headers.has_media_type(AMAZON_EVENT_STREAM);
    let is_plain = delivery::is_uncompressed(headers);
    let has_events = is_frames || delivery::is_event_stream(headers);
    let is_stream = if is_plain { has_events || headers.get("content-length").is_none() } else { has_events };
    if !(is_everywhere || is_stream) || incoming.body.is_done() {
        return Ok(incoming);
    }
    let secrets: Vec<String> = sent_secrets(target, fetched).into_iter().map(str::to_owned).collect();
    if secrets.is_empty() {
        return Ok(incoming);
    }
    if !is_plain {
        if !compressed_response::is_gzip(headers) {
            let cause = "it has a content coding that cannot be read, so it may contain stored secrets".into();
            return Err(Error::UpstreamResponseBroken { cause });
        }
        incoming.head.headers.retain(|name| name != b"content-encoding");
        incoming.body = incoming.body.try_map_chunks(gunzip_chunks());
    }
    incoming.head.headers.retain(|name| name != b"content-length");
    incoming.body = if is_frames {
        incoming.body.map_chunks(mask_frames(spell_secrets(secrets.iter().map(String::as_str))))
    } else {
        incoming.body.map_chunks(mask_errors(secrets, is_everywhere))
    };
    Ok(incoming)
}

/// Returns true if the response to this request must not be compressed, because stored secrets may have to be masked in
/// it.
pub fn requires_plain_response(target: &Target<'_>, is_streaming: bool) -> bool {
    target.stored_parameters.secrets().next().is_some()
        || is_streaming && (target.credential_origin == CredentialOrigin::Stored || !target.header_fields.is_empty())
}

/// Returns the request body with the secrets of a saved config masked, for its record.
pub async fn mask_stored_parameters(target: &Target<'_>, body: &Bytes) -> Result<Bytes> {
    let secrets = spell_secrets(target.stored_parameters.secrets());
    if secrets.is_empty() {
        return Ok(body.clone());
    }
    let body = body.clone();
    // Boxed, because an inline future would enlarge the future of every request.
    Box::pin(run_offloaded(body.len(), move || mask_bytes(&body, &secrets).into())).await
}

/// Returns the body that replaces an error which is too large or in an unknown content coding.
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
    let is_stored = target.credential_origin == CredentialOrigin::Stored;
    let mut secrets = if is_stored { credential_secrets(target, fetched) } else { Vec::new() };
    secrets.extend(target.header_fields.iter().map(|(_, value)| *value));
    secrets.extend(target.stored_parameters.secrets());
    secrets
}

/// Returns the secrets of the target's credential, whether it is stored or the request sent it.
fn credential_secrets<'t>(target: &'t Target<'_>, fetched: Option<&'t str>) -> Vec<&'t str> {
    target.credential.as_deref().into_iter().chain(target.options.secrets()).chain(fetched).collect()
}

/// Returns secrets in the spellings in which they may be repeated, longest first.
fn spell_secrets<'s>(secrets: impl IntoIterator<Item = &'s str>) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = secrets.into_iter().flat_map(secret_encodings).collect();
    all.sort_unstable_by(|item, other| other.len().cmp(&item.len()).then_with(|| item.cmp(other)));
    all.dedup();
    all
}

/// Returns the spellings in which a secret may be repeated; none if it is too short.
fn secret_encodings(secret: &str) -> Vec<Vec<u8>> {
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

/// Secrets in the spellings in which they may be repeated. Searching takes time in proportion to the text, whatever the
/// number of secrets.
pub struct SecretMask {
    /// Searches for the secrets; `None` if there are none.
    search: Option<AhoCorasick>,
}

impl SecretMask {
    pub fn new(secrets: &[Vec<u8>]) -> Self {
        let search = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(secrets);
        // Building fails for many gigabytes only.
        Self { search: search.ok().filter(|_| !secrets.is_empty()) }
    }

    /// Returns true if the bytes contain a secret.
    pub fn finds_in(&self, bytes: &[u8]) -> bool {
        self.search.as_ref().is_some_and(|search| search.is_match(bytes))
    }

    /// Returns the bytes with `***` in place of each secret.
    pub fn mask(&self, bytes: &[u8]) -> Vec<u8> {
        let mut masked = Vec::with_capacity(bytes.len());
        let mut copied = 0;
        for matched in self.search.iter().flat_map(|search| search.find_iter(bytes)) {
            masked.extend_from_slice(&bytes[copied..matched.start()]);
            masked.extend_from_slice(MASK.as_bytes());
            copied = matched.end();
        }
        masked.extend_from_slice(&bytes[copied..]);
        masked
    }

    /// Returns the beginning of the secret that extends beyond `position`, or `position` if there is none.
    fn find_match_start(&self, bytes: &[u8], position: usize) -> usize {
        let mut matches = self.search.iter().flat_map(|search| search.find_iter(bytes));
        matches.find(|matched| matched.end() > position).map_or(position, |matched| matched.start().min(position))
    }

    /// Overwrites each secret with asterisks, so that the length stays.
    pub fn mask_in_place(&self, bytes: &mut [u8]) {
        let matches: Vec<_> =
            self.search.iter().flat_map(|search| search.find_iter(&*bytes)).map(|matched| matched.range()).collect();
        for range in matches {
            bytes[range].fill(b'*');
        }
    }
}

fn mask_bytes(bytes: &[u8], secrets: &[Vec<u8>]) -> Vec<u8> {
    SecretMask::new(secrets).mask(bytes)
}

/// Masks the signature of a signed URL in the error response of its server.
pub fn mask_url_secrets(url: &str, error: &[u8]) -> Vec<u8> {
    let secrets: Vec<_> = find_secrets(&url.into()).iter().flat_map(|secret| secret_encodings(secret)).collect();
    mask_bytes(error, &secrets)
}

/// Masks the secrets in a text that may have been cut within a secret.
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

/// Returns a transform that masks the secrets of a stream from its first error on, or from its beginning. Until an
/// error occurs, it only searches for one: most streams have none, so the spellings of secrets need not be computed.
fn mask_errors(secrets: Vec<String>, is_everywhere: bool) -> impl FnMut(Option<Bytes>) -> Bytes + Send {
    let start = move |secrets: &[String]| mask_chunks(spell_secrets(secrets.iter().map(String::as_str)));
    let mut mask = is_everywhere.then(|| start(&secrets));
    // End of the previous chunk. `ERROR_WORD` may begin in it and end in the current chunk.
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

/// Returns a transform that masks the secrets in a stream of chunks. Holds back bytes that may be the beginning of a
/// secret.
pub fn mask_chunks(secrets: Vec<Vec<u8>>) -> impl FnMut(Option<Bytes>) -> Bytes + Send + 'static {
    let mask = SecretMask::new(&secrets);
    let mut buffered = Vec::new();
    move |chunk| {
        let is_end = chunk.is_none();
        buffered.extend_from_slice(&chunk.unwrap_or_default());
        let partial_bytes = if is_end {
            0
        } else {
            secrets.iter().map(|secret| partial_secret_bytes(&buffered, secret)).max().unwrap_or(0)
        };
        let passed = mask.find_match_start(&buffered, buffered.len() - partial_bytes);
        let masked = mask.mask(&buffered[..passed]);
        buffered.drain(..passed);
        masked.into()
    }
}

/// Returns how many bytes at the end of a text are the beginning of a secret.
fn partial_secret_bytes(text: &[u8], secret: &[u8]) -> usize {
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
    fn masks_secrets_that_begin_with_other_secrets_across_chunks() {
        let secrets = vec![b"abcdefgh".to_vec(), b"abcdefgh-ijkl".to_vec(), b"fghabcdX".to_vec()];
        let text = b"1 abcdefgh-ijkl 2 abcdefghabcdefgh 3 abcdefgh-ij";
        for step in 1..=text.len() {
            let mut mask = mask_chunks(secrets.clone());
            let mut out: Vec<u8> =
                text.chunks(step).flat_map(|chunk| mask(Some(Bytes::copy_from_slice(chunk))).to_vec()).collect();
            out.extend(mask(None));
            assert_eq!(String::from_utf8(out).unwrap(), "1 *** 2 ****** 3 ***-ij", "{step}");
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
