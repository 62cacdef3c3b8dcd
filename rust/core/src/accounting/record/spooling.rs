//! Parts of a record that are written to the spool while its request is handled: its beginning, and the bodies as they
//! pass.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use penstock_llm::operation::Operation;
use penstock_net::{Origin, body::Body, headers::Headers};

use super::{
    Detail, Record, RecordSink, RequestLog, masking::encode_upstream_head, recorded_bodies::RedactingHooks, serialize,
};
use crate::{
    accounting::{
        body_secrets::issues_credential,
        spool::{Source, SpoolEntry, frame::FrameKind},
    },
    guardrails::checks::Stage,
    ingress::message::RequestHead,
};

impl RequestLog {
    /// Writes the beginning of the record to the spool, with the request's body. Must be called before anything is sent
    /// upstream.
    pub async fn begin_record(&mut self, head: &RequestHead, sink: &RecordSink, body: Body) -> Body {
        self.begin_record_with_redaction(head, sink, body, RedactingHooks::new()).await
    }

    /// Writes the beginning of the record to the spool. A body that guardrails may redact is written after they have
    /// checked it.
    pub async fn begin_record_with_redaction(
        &mut self,
        head: &RequestHead,
        sink: &RecordSink,
        body: Body,
        redacting_hooks: RedactingHooks,
    ) -> Body {
        self.details.mark_parsed();
        let (Some(entry), Some(workspace)) = (self.spool.clone(), self.admitted_workspace) else { return body };
        self.bodies.entry = self.body_entry().filter(|_| !issues_credential(&head.path)).cloned();
        if let Body::Complete(bytes) = &body {
            entry.request_bytes.store(bytes.len() as u64, Ordering::Relaxed);
            if self.bodies.is_recording() && !bytes.is_empty() {
                self.bodies.set_client_request(bytes, redacting_hooks).await;
            }
        }
        entry.begin(Source::Admitted(workspace), |out| serialize::write_begin(out, &entry, head, self, sink.worker));
        if matches!(body, Body::Complete(_)) {
            return body;
        }
        let is_recording = self.bodies.is_recording();
        body.with_watcher(Box::new(move |bytes| {
            entry.request_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if is_recording {
                entry.add_body_chunk(FrameKind::ClientRequest, bytes);
            }
        }))
    }

    /// Records the head of the request to a target, with secrets masked, if bodies are recorded.
    pub(crate) fn set_upstream_head(&mut self, origin: &Origin, head: &[u8], sink: &RecordSink) {
        let listed: [&[String]; 2] = [&self.masked_headers, &sink.sensitive_headers];
        self.bodies.set_upstream_head(|| encode_upstream_head(origin, head, &listed));
    }

    /// Discards the recorded response of the provider if guardrails removed a part of it.
    fn hide_redacted_response(&mut self) {
        let results = self.details.current_hook_results();
        if results.is_some_and(|results| results.lock().has_redacted(Stage::Output)) {
            self.bodies.hide_response();
        }
    }

    /// Returns the entry in the spool if bodies of this request may be recorded.
    fn body_entry(&self) -> Option<&Arc<SpoolEntry>> {
        let allows = self.detail == Detail::Full
            && self.admitted_workspace.is_some()
            && !self.operation.is_some_and(Operation::is_about_stored_data);
        self.spool.as_ref().filter(|entry| allows && entry.keeps_bodies())
    }
}

impl Record {
    /// Records the headers of the provider's response that may be shown.
    pub fn record_response_headers(&mut self, headers: &Headers) {
        if self.sink.should_record && self.log.detail == Detail::Full {
            self.log.details.set_response_headers(headers);
        }
    }

    /// Records a complete response: as it was received, and as it is delivered if that differs.
    pub fn record_complete_response(&mut self, received: &Bytes, delivered: Option<&Bytes>) {
        self.log.hide_redacted_response();
        let bodies = &mut self.log.bodies;
        // If a translation or normalisation changed nothing, the provider's response equals `received`.
        let is_received = bodies.is_forwarded || bodies.drop_equal_response(received);
        bodies.deliver();
        let Some(entry) = &self.log.bodies.entry else { return };
        if is_received {
            entry.add_complete_body(FrameKind::UpstreamResponse, received.clone());
        }
        if let Some(delivered) = delivered.or_else(|| (!is_received).then_some(received)) {
            entry.add_complete_body(FrameKind::ClientResponse, delivered.clone());
        }
    }

    /// Records that the client gets a stream.
    pub fn begin_stream(&mut self) {
        self.sink.metrics.streams.add(1);
        self.log.hide_redacted_response();
        self.log.bodies.deliver();
    }

    /// Records a response that the gateway made itself.
    pub fn record_own_response(&mut self, body: &Bytes) {
        self.log.hide_redacted_response();
        self.log.bodies.deliver();
        if let Some(entry) = self.log.body_entry() {
            entry.add_complete_body(FrameKind::ClientResponse, body.clone());
        }
    }

    /// Records a chunk of a stream as it was received.
    pub fn record_received_chunk(&self, chunk: &[u8]) {
        let bodies = &self.log.bodies;
        if let (true, Some(entry)) = (bodies.is_forwarded, &bodies.entry) {
            entry.add_body_chunk(FrameKind::UpstreamResponse, chunk);
        }
    }

    /// Records a chunk of a stream as it is delivered, unless the client gets the stream as it was received.
    pub fn record_delivered_chunk(&self, chunk: &[u8]) {
        let bodies = &self.log.bodies;
        if let (true, Some(entry)) = (!bodies.is_forwarded || self.log.hides_usage, &bodies.entry) {
            entry.add_body_chunk(FrameKind::ClientResponse, chunk);
        }
    }
}
