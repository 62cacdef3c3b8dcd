//! Adds results of hooks to streams. The results of hooks before the request come first. Hooks at the end of a stream
//! check the text that the client has received, before its final event is sent.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use memchr::memmem;
use penstock_llm::{
    api_format::ApiFormat,
    operation::Operation,
    texts::{frames::StreamEncoding, stream::StreamTexts},
};
use penstock_net::{DeferredBody, ResponseBody};
use serde_json::{Value, json};

use super::{
    TargetHooks, denial, runner,
    stream_window::{StreamWindow, WindowStep},
    unreadable::{TOO_LARGE, UNREADABLE_STREAM},
};
use crate::{
    accounting::record::RecordSink,
    guardrails::{
        checks::Stage,
        hook::Hook,
        results::{HookResult, HookResults},
    },
    response::{delivery::UpstreamResponse, offload::run_offloaded},
};

/// Maximum bytes of a stream that are stored for the hooks at its end.
const MAX_BUFFERED_BYTES: usize = 4 * 1024 * 1024;
/// Maximum bytes of the final event and of what follows it, which wait for the hooks.
const MAX_HELD_BYTES: usize = 256 * 1024;
/// First lines of the events that end a stream.
const LAST_EVENTS: [&[u8]; 5] = [
    b"data: [DONE]",
    b"event: message_stop",
    b"event: response.completed",
    b"event: response.incomplete",
    b"event: response.failed",
];

/// Bytes of a stream that the hooks at its end check.
#[derive(Default)]
struct PassedStream {
    buffered: Vec<u8>,
    is_too_large: bool,
    /// The final event and the bytes after it, which wait for the hooks.
    held: Vec<u8>,
    /// Last byte of the chunks before; `None` at the beginning of the stream.
    last_byte: Option<u8>,
    /// True if more than `MAX_HELD_BYTES` followed the final event, so that nothing waits any more.
    is_released: bool,
}

impl PassedStream {
    /// Stores a chunk, and returns the part of it that can be sent now.
    fn pass(&mut self, chunk: Bytes) -> Bytes {
        if self.buffered.len() + chunk.len() > MAX_BUFFERED_BYTES {
            self.is_too_large = true;
        } else {
            self.buffered.extend_from_slice(&chunk);
        }
        if self.is_released {
            return chunk;
        }
        let begin = if self.held.is_empty() { self.find_last_event(&chunk) } else { Some(0) };
        self.last_byte = chunk.last().copied().or(self.last_byte);
        let Some(begin) = begin else { return chunk };
        self.held.extend_from_slice(&chunk[begin..]);
        if self.held.len() > MAX_HELD_BYTES {
            self.is_released = true;
            return [&chunk[..begin], &*std::mem::take(&mut self.held)].concat().into();
        }
        chunk.slice(..begin)
    }

    /// Returns the position of the final event in a chunk. It begins a line: a model may write the same words in a
    /// text.
    fn find_last_event(&self, chunk: &[u8]) -> Option<usize> {
        let begins_line = |at: &usize| {
            let before = if *at == 0 { self.last_byte } else { Some(chunk[at - 1]) };
            before.is_none_or(|byte| matches!(byte, b'\n' | b'\r'))
        };
        LAST_EVENTS.iter().filter_map(|event| memmem::find_iter(chunk, event).find(begins_line)).min()
    }
}

/// Hooks that have not run when a stream begins.
#[derive(Default)]
pub(super) struct StreamHooks {
    /// Hooks that check portions of the stream.
    pub window: Vec<Arc<Hook>>,
    /// Hooks that run at the end of the stream.
    pub end: Vec<Arc<Hook>>,
}

/// Checks a stream in portions.
fn attach_window(
    hooks: &TargetHooks,
    response: &mut UpstreamResponse,
    mut window: StreamWindow,
    encoding: StreamEncoding,
    sink: Arc<RecordSink>,
) {
    let (operation, api_format, results) = (hooks.subject.operation, response.api_format, hooks.results.clone());
    let is_stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_stopped);
    let body = std::mem::replace(&mut response.incoming.body, ResponseBody::from_bytes(Bytes::new()));
    response.incoming.body = body.map_chunks_until(is_stopped, move |chunk| {
        let is_end = chunk.is_none();
        let mut output = Vec::new();
        let step = window.push(chunk, &mut output);
        if step == WindowStep::Denied || is_end {
            let done = window.results();
            super::count(&sink, &done);
            results.lock().after.extend(done);
        }
        if step == WindowStep::Denied {
            flag.store(true, Ordering::Release);
            let results = results.lock();
            let reason = super::find_denial(&results.after).map(HookResult::denial_reason).unwrap_or_default();
            output.extend(denial::stream_denial(operation, api_format, encoding, &results.to_client_json(), &reason));
        }
        output.into()
    });
}

/// Adds results to a stream, and runs the hooks that have not run yet.
pub(super) fn attach(
    hooks: &TargetHooks,
    response: &mut UpstreamResponse,
    encoding: StreamEncoding,
    stream_hooks: StreamHooks,
    sink: &Arc<RecordSink>,
) {
    let StreamHooks { window, end: after } = stream_hooks;
    let (runs, has_window) = (!after.is_empty(), !window.is_empty());
    if let Some(window) = StreamWindow::new(encoding, window).filter(|_| has_window) {
        attach_window(hooks, response, window, encoding, Arc::clone(sink));
    }
    let operation = hooks.subject.operation;
    let format = StreamNotice::for_operation(operation, response.api_format).filter(|_| !hooks.is_strict);
    let first = format.and_then(|format| format.event(Stage::Input, &hooks.results.lock()));
    let last = move |results: &HookResults| format.and_then(|format| format.event(Stage::Output, results));
    let body = std::mem::replace(&mut response.incoming.body, ResponseBody::from_bytes(Bytes::new()));
    if !runs && !has_window && first.is_none() && last(&hooks.results.lock()).is_none() {
        response.incoming.body = body;
        return;
    }
    let passed = Arc::new(Mutex::new(PassedStream::default()));
    let body = if runs {
        let passed = Arc::clone(&passed);
        body.map_chunks(move |chunk| {
            chunk.map_or_else(Bytes::new, |chunk| passed.lock().unwrap_or_else(PoisonError::into_inner).pass(chunk))
        })
    } else {
        body
    };
    let (runner, results, sink) = (hooks.runner.clone(), hooks.results.clone(), Arc::clone(sink));
    let subject = hooks.response_subject(Value::Null, Vec::new(), 0, None);
    let end = async move {
        let PassedStream { buffered, is_too_large, mut held, .. } =
            std::mem::take(&mut *passed.lock().unwrap_or_else(PoisonError::into_inner));
        if results.lock().after.iter().any(|result| result.denies) {
            return Ok(ResponseBody::from_bytes(held.into()));
        }
        if runs {
            let body_bytes = buffered.len();
            let read = move || StreamTexts::read(encoding, &Bytes::from(buffered)).ok();
            let texts = run_offloaded(body_bytes, read).await.unwrap_or_default();
            let mut subject = subject;
            {
                let subject = Arc::make_mut(&mut subject);
                subject.unreadable = match &texts {
                    _ if is_too_large => Some(TOO_LARGE),
                    None => Some(UNREADABLE_STREAM),
                    Some(_) => None,
                };
                subject.body_bytes = body_bytes;
                subject.texts = texts.map(|texts| texts.parts().to_vec()).unwrap_or_default();
            }
            let run = runner::run_hooks(&runner, &after, subject).await;
            // The client has the text already, so nothing can be denied any more.
            let done: Vec<_> = run.results.into_iter().map(|result| HookResult { denies: false, ..result }).collect();
            super::count(&sink, &done);
            results.lock().after.extend(done);
        }
        held.extend(last(&results.lock()).unwrap_or_default());
        Ok(ResponseBody::from_bytes(held.into()))
    };
    let rest: DeferredBody = Box::new(move || Box::pin(async move { Ok(body) }));
    let end: DeferredBody = Box::new(move || Box::pin(end));
    let first = ResponseBody::from_bytes(first.unwrap_or_default().into());
    response.incoming.body = ResponseBody::from_sequence(first, VecDeque::from([rest, end]));
}

/// Format of the event with results in a stream.
#[derive(Debug, Clone, Copy)]
enum StreamNotice {
    /// An event without a name.
    UnnamedEvent,
    NamedEvent,
}

impl StreamNotice {
    /// Returns the format of events with results; `None` if clients of this API format would not understand such an
    /// event.
    fn for_operation(operation: Operation, api_format: ApiFormat) -> Option<Self> {
        match (operation, api_format) {
            (Operation::ChatComplete | Operation::Complete, ApiFormat::OpenAi) => Some(Self::UnnamedEvent),
            (Operation::Messages, ApiFormat::Anthropic) => Some(Self::NamedEvent),
            _ => None,
        }
    }

    /// Returns the event with the results of one stage; `None` if there are none to show.
    fn event(self, stage: Stage, results: &HookResults) -> Option<Vec<u8>> {
        if !results.results_at(stage).iter().any(|result| !result.is_async) {
            return None;
        }
        let name = if stage == Stage::Input { "before_request_hooks" } else { "after_request_hooks" };
        let data = json!({"hook_results": {name: results.to_client_json()[name]}});
        let begin = match self {
            Self::UnnamedEvent => "data: ",
            Self::NamedEvent => "event: hook_results\ndata: ",
        };
        Some(format!("{begin}{data}\n\n").into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_event_waits() {
        let mut passed = PassedStream::default();
        assert_eq!(passed.pass(Bytes::from_static(b"data: 1\n\n")), "data: 1\n\n");
        assert_eq!(passed.pass(Bytes::from_static(b"data: 2\n\ndata: [DO")), "data: 2\n\ndata: [DO");
        let mut passed = PassedStream::default();
        assert_eq!(passed.pass(Bytes::from_static(b"data: 2\n\ndata: [DONE]\n")), "data: 2\n\n");
        assert_eq!(passed.pass(Bytes::from_static(b"\n")), "");
        assert_eq!((passed.held, passed.buffered.len()), (b"data: [DONE]\n\n".to_vec(), 23));
        let mut passed = PassedStream::default();
        assert_eq!(passed.pass(Bytes::from_static(b"data: 1\r\n\r\n")), "data: 1\r\n\r\n");
        assert_eq!(passed.pass(Bytes::from_static(b"data: [DONE]\r\n")), "");
    }

    #[test]
    fn a_text_about_the_last_event_does_not_wait() {
        let text: &[u8] = b"data: {\"content\": \"data: [DONE], event: message_stop\"}\n\n";
        let mut passed = PassedStream::default();
        assert_eq!(passed.pass(Bytes::from_static(text)), text);
        // A chunk may begin within the text.
        assert_eq!(passed.pass(Bytes::from_static(b"data: {\"content\": \"")), "data: {\"content\": \"");
        assert_eq!(passed.pass(Bytes::from_static(b"data: [DONE]\"}\n\n")), "data: [DONE]\"}\n\n");
        let end = [text, b"data: [DONE]\n\n"].concat();
        assert_eq!(passed.pass(end.into()), text);
        assert_eq!(passed.held, b"data: [DONE]\n\n");
    }

    #[test]
    fn a_stream_that_goes_on_after_its_last_event_is_not_held() {
        let mut passed = PassedStream::default();
        assert_eq!(passed.pass(Bytes::from_static(b"data: [DONE]\n\n")), "");
        let long = vec![b'x'; MAX_HELD_BYTES];
        assert_eq!(passed.pass(long.clone().into()).len(), long.len() + 14);
        assert_eq!(passed.pass(Bytes::from_static(b"data: [DONE]\n\n")), "data: [DONE]\n\n");
        assert!(passed.held.is_empty());
    }
}
