//! Bodies of a request while it is handled, for its record. These are the client's body, the body that was sent
//! upstream, and the provider's response before it is changed.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use penstock_net::ResponseBody;

use crate::accounting::{
    body_secrets,
    spool::{SpoolEntry, frame::FrameKind},
};

/// Maximum bytes of a body that is searched for secrets on the async thread.
const MAX_INLINE_SEARCH_BYTES: usize = 64 * 1024;
/// Recorded in place of a request that guardrails may redact, if no target has checked it with all of them.
const UNCHECKED_REQUEST: &[u8] =
    br#"{"withheld":"not recorded, because not all guardrails that redact it have checked it"}"#;

/// The client's body as the record shows it.
#[derive(Debug, Default)]
enum ClientBody {
    /// The body is recorded already, or there is none.
    #[default]
    Recorded,
    /// Guardrails may redact the body, and have not checked it yet.
    Unchecked(Bytes),
    /// Guardrails have checked the body, and redacted nothing. Its secrets are masked.
    Unchanged(Bytes),
    /// Guardrails have checked the body. This is the redacted body, with its secrets masked.
    Redacted(Bytes),
}

/// Fingerprints of the synchronous guardrails that may redact a request at any of its targets. `None` stands for a
/// guardrail that cannot be found, so that no target has it.
pub type RedactingHooks = Vec<Option<u64>>;

/// Bodies of a request and of its current attempt.
#[derive(Debug, Default)]
pub struct RecordedBodies {
    /// Spool entry to which the bodies are added; `None` if they are not recorded.
    pub(super) entry: Option<Arc<SpoolEntry>>,
    /// Recorded body of the client, to compare it with the body that was sent upstream.
    client_bytes: Option<Bytes>,
    client_request: ClientBody,
    /// Guardrails that may redact the client's body. Empty: the record shows all bodies as they are.
    redacting_hooks: RedactingHooks,
    /// True if every one of `redacting_hooks` has checked the body of the current target.
    is_fully_redacted: bool,
    /// True if the recorded body is not the client's own, because guardrails redacted it or never checked it.
    hides_client_request: bool,
    /// Body that the current attempt sent.
    upstream_request: Option<Bytes>,
    /// Head of the current attempt's request as the record shows it.
    upstream_head: Option<Bytes>,
    /// Recorder of the current attempt's response, if the client does not get it as the provider sends it.
    response_tap: Option<Arc<ResponseTap>>,
    /// True if the client gets the response of the current attempt as the provider sends it.
    pub is_forwarded: bool,
}

impl RecordedBodies {
    /// Returns the initial state for a concurrent attempt.
    #[must_use]
    pub fn fork(&self) -> Self {
        let client_request = match &self.client_request {
            ClientBody::Unchecked(bytes) => ClientBody::Unchecked(bytes.clone()),
            _ => ClientBody::Recorded,
        };
        Self {
            entry: self.entry.clone(),
            client_request,
            redacting_hooks: self.redacting_hooks.clone(),
            is_fully_redacted: self.is_fully_redacted,
            is_forwarded: self.is_forwarded,
            ..Self::default()
        }
    }

    /// Takes from `other` the bodies of the attempt that responded.
    pub fn adopt_attempt(&mut self, other: Self) {
        let Self { upstream_request, upstream_head, response_tap, .. } = other;
        let Self { is_forwarded, client_request, is_fully_redacted, .. } = other;
        (self.upstream_head, self.is_fully_redacted) = (upstream_head, is_fully_redacted);
        match (&self.client_request, client_request) {
            (ClientBody::Unchecked(_), checked @ ClientBody::Unchanged(_))
            | (ClientBody::Unchecked(_) | ClientBody::Unchanged(_), checked @ ClientBody::Redacted(_)) => {
                self.client_request = checked;
            }
            _ => (),
        }
        (self.upstream_request, self.response_tap, self.is_forwarded) = (upstream_request, response_tap, is_forwarded);
    }

    /// Clears the bodies of an attempt whose response is not used.
    pub fn clear_attempt(&mut self) {
        (self.upstream_request, self.upstream_head) = (None, None);
        (self.response_tap, self.is_forwarded) = (None, false);
    }

    pub fn is_recording(&self) -> bool {
        self.entry.is_some()
    }

    /// Returns true if the record may show texts of the provider that are not a part of a body. They may repeat the
    /// client's body, which guardrails of another target may redact.
    pub fn may_show_texts(&self) -> bool {
        self.is_recording() && !self.may_be_redacted()
    }

    /// Returns true if guardrails of any target may redact the client's body.
    pub fn may_be_redacted(&self) -> bool {
        !self.redacting_hooks.is_empty()
    }

    /// Returns true if the record must not show the body that was sent to the current target, nor data of its checks.
    /// They may hold texts that a guardrail of another target redacts.
    pub fn hides_unredacted_texts(&self) -> bool {
        self.may_be_redacted() && !self.is_fully_redacted
    }

    /// Records the client's body. If guardrails may redact it, `record_client_request` records it after they ran.
    pub(super) async fn set_client_request(&mut self, body: &Bytes, redacting_hooks: RedactingHooks) {
        let Some(entry) = &self.entry else { return };
        self.redacting_hooks = redacting_hooks;
        if self.may_be_redacted() {
            self.client_request = ClientBody::Unchecked(body.clone());
        } else {
            let body = mask_secrets(entry.body_limit(), body.clone()).await;
            self.client_bytes = Some(body.clone());
            entry.add_complete_body(FrameKind::ClientRequest, body);
        }
    }

    /// Marks the request to the next target as not checked.
    pub fn begin_target(&mut self) {
        self.is_fully_redacted = false;
    }

    /// Marks the client's body as checked by the guardrails of one target. `redacted` is the redacted body, if they
    /// redacted anything. The record shows the result only if `has_hook` finds all `redacting_hooks` among them:
    /// otherwise the body may hold what a guardrail of another target redacts.
    pub async fn set_checked_request(&mut self, redacted: Option<Bytes>, has_hook: impl Fn(u64) -> bool) {
        self.is_fully_redacted = self.redacting_hooks.iter().all(|hook| hook.is_some_and(&has_hook));
        if !self.is_fully_redacted {
            return;
        }
        let Some(limit) = self.entry.as_ref().map(|entry| entry.body_limit()) else { return };
        // If the client disconnects meanwhile, the body still counts as unchecked.
        let checked = match (&self.client_request, redacted) {
            (ClientBody::Recorded, _) | (ClientBody::Unchanged(_) | ClientBody::Redacted(_), None) => return,
            (_, Some(redacted)) => ClientBody::Redacted(mask_secrets(limit, redacted).await),
            (ClientBody::Unchecked(bytes), None) => ClientBody::Unchanged(mask_secrets(limit, bytes.clone()).await),
        };
        self.client_request = checked;
    }

    /// Returns true if the record must not show the body that the client sent.
    pub(super) fn hides_client_request(&self) -> bool {
        self.hides_client_request
    }

    /// Records the client's body if that was delayed until guardrails have checked it.
    pub(super) fn record_client_request(&mut self) {
        let Some(entry) = &self.entry else { return };
        let (body, is_hidden) = match mem::take(&mut self.client_request) {
            ClientBody::Recorded => return,
            ClientBody::Unchecked(_) => (Bytes::from_static(UNCHECKED_REQUEST), true),
            ClientBody::Unchanged(bytes) => (bytes, false),
            ClientBody::Redacted(bytes) => (bytes, true),
        };
        self.hides_client_request = is_hidden;
        self.client_bytes = Some(body.clone());
        entry.add_complete_body(FrameKind::ClientRequest, body);
    }

    /// Discards the recorded response of the provider, because guardrails have removed a part of it.
    pub(super) fn hide_response(&mut self) {
        self.response_tap = None;
    }

    /// Stores the body that is sent upstream, for the record. Stored secrets must already be masked in it.
    pub async fn set_upstream_request(&mut self, body: Bytes) {
        let Some(limit) = self.entry.as_ref().map(|entry| entry.body_limit()) else { return };
        self.upstream_request = Some(mask_secrets(limit, body).await);
    }

    /// Stores the head that `encode` returns, for the record. Does nothing if bodies are not recorded.
    pub fn set_upstream_head(&mut self, encode: impl FnOnce() -> Bytes) {
        self.upstream_head = self.is_recording().then(encode);
    }

    /// Records the provider's response before it is changed. Returns the body to read in place of `body`.
    #[must_use]
    pub fn tap_response(&mut self, body: ResponseBody) -> ResponseBody {
        let Some(entry) = &self.entry else { return body };
        let tap = Arc::new(ResponseTap { entry: Arc::clone(entry), held: Mutex::new(Some(Vec::new())) });
        self.response_tap = Some(Arc::clone(&tap));
        body.map_chunks(move |chunk| {
            if let Some(chunk) = &chunk {
                tap.record(chunk);
            }
            chunk.unwrap_or_default()
        })
    }

    /// Records the bodies of the current attempt, because the client gets its response.
    pub fn deliver(&mut self) {
        self.record_client_request();
        let sent = self.upstream_request.take().filter(|_| !self.hides_unredacted_texts());
        let received = self.client_bytes.take();
        if let (Some(entry), Some(sent)) = (&self.entry, sent)
            && received.is_none_or(|received| !has_same_record(&received, &sent, entry.body_limit()))
        {
            entry.add_complete_body(FrameKind::UpstreamRequest, sent);
        }
        if let (Some(entry), Some(head)) = (&self.entry, self.upstream_head.take()) {
            entry.add_upstream_head(head);
        }
        self.open_tap();
    }

    /// Returns true if the current attempt's response, as far as it was read, equals these bytes. Also drops its
    /// recorder then, because recording these bytes is enough.
    pub(super) fn drop_equal_response(&mut self, received: &[u8]) -> bool {
        self.response_tap.take_if(|tap| tap.has_read(received)).is_some()
    }

    /// Records the chunks of the current attempt's response that were read so far, and further ones as they arrive.
    /// Called when the client gets this response, or when it continues that of another attempt.
    pub fn open_tap(&mut self) {
        if let Some(tap) = self.response_tap.take() {
            tap.open();
        }
    }
}

/// Returns true if two bodies are recorded alike. At most `limit` bytes of each are recorded.
fn has_same_record(one: &Bytes, other: &Bytes, limit: usize) -> bool {
    one.len() == other.len() && one[..one.len().min(limit)] == other[..other.len().min(limit)]
}

/// Masks the credentials that a request contains, in the part that is recorded. A large body is searched on a blocking
/// thread, because other requests would wait here.
async fn mask_secrets(limit: usize, body: Bytes) -> Bytes {
    let length = body.len();
    let mask = move || body_secrets::mask_recorded_part(&body, limit).map_or(body, Bytes::from);
    if length <= MAX_INLINE_SEARCH_BYTES {
        return mask();
    }
    // Boxed: inline, it would enlarge the future of every request. If the process shuts down, nothing is recorded.
    Box::pin(tokio::task::spawn_blocking(mask)).await.unwrap_or_default()
}

/// Recorder of a provider's response. Holds chunks in memory until it is known that the client gets this response.
struct ResponseTap {
    entry: Arc<SpoolEntry>,
    /// Chunks in memory; `None` after `open`, when each chunk is recorded as it arrives.
    held: Mutex<Option<Vec<Bytes>>>,
}

impl std::fmt::Debug for ResponseTap {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ResponseTap")
    }
}

impl ResponseTap {
    fn record(&self, chunk: &Bytes) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *held {
            None => self.entry.add_body_chunk(FrameKind::UpstreamResponse, chunk),
            Some(chunks) => {
                // One chunk beyond the limit is enough for the entry to mark the body as cut.
                if chunks.iter().map(Bytes::len).sum::<usize>() <= self.entry.body_limit() {
                    chunks.push(chunk.clone());
                }
            }
        }
    }

    /// Returns true if the response that was read so far equals these bytes.
    fn has_read(&self, bytes: &[u8]) -> bool {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = held.iter().flatten().try_fold(bytes, |rest, chunk| rest.strip_prefix(&**chunk));
        held.is_some() && rest.is_some_and(<[u8]>::is_empty)
    }

    fn open(&self) {
        let held = mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner));
        for chunk in held.unwrap_or_default() {
            self.entry.add_body_chunk(FrameKind::UpstreamResponse, &chunk);
        }
    }
}
