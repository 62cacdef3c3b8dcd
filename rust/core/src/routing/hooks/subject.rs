//! Subject of hooks: a request before it is sent, or a response before it is delivered.

use std::{mem, sync::Arc};

use penstock_llm::{
    operation::Operation,
    texts::{TextPart, remove_token_lists, request_texts, response_texts},
};
use penstock_net::headers::Headers;
use serde_json::Value;
use tokio::runtime::Handle;

use super::reading::Reading;
use crate::{
    error::Result,
    guardrails::{
        checks::{Change, CheckInput, Stage},
        inline_image::insert_images,
    },
    response::offload::run_blocking,
};

/// Bodies from this size on are changed and freed on another thread, because that may take milliseconds.
pub const MAX_INLINE_CHANGE_BYTES: usize = 128 * 1024;

/// Request or response that hooks check. It owns its data, because large texts are checked on another thread.
#[derive(Debug, Clone)]
pub struct HookSubject {
    pub stage: Stage,
    pub operation: Operation,
    pub reading: Reading,
    pub provider: &'static str,
    pub model: String,
    pub is_streaming: bool,
    pub metadata: Vec<(String, String)>,
    pub headers: Headers,
    /// Header fields that checks set for the provider.
    pub added_headers: Vec<(String, String)>,
    /// Body of the request. It is in an `Arc`, because copying a large body takes long.
    pub request: Arc<Value>,
    /// Body of the response. `Null` before there is a response, and for a stream.
    pub response: Value,
    pub texts: Vec<TextPart>,
    /// Length of the body in bytes.
    pub body_bytes: usize,
    /// Why the texts cannot be read.
    pub unreadable: Option<&'static str>,
}

impl Drop for HookSubject {
    fn drop(&mut self) {
        if self.body_bytes <= MAX_INLINE_CHANGE_BYTES {
            return;
        }
        let large = (mem::take(&mut self.request), mem::take(&mut self.response), mem::take(&mut self.texts));
        // Without a runtime, no other request waits for this thread.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(move || drop(large));
        }
    }
}

/// Applies the change of a check to a subject. Returns the change, and true if it could be applied.
///
/// # Errors
/// If the process shuts down.
pub async fn apply_change(subject: &mut Arc<HookSubject>, change: Change) -> Result<(Change, bool)> {
    if subject.body_bytes <= MAX_INLINE_CHANGE_BYTES {
        let is_applied = Arc::make_mut(subject).apply(&change);
        return Ok((change, is_applied));
    }
    let mut copy = Arc::clone(subject);
    let apply = move || {
        let is_applied = Arc::make_mut(&mut copy).apply(&change);
        (copy, change, is_applied)
    };
    let (changed, change, is_applied) = run_blocking(apply).await?;
    *subject = changed;
    Ok((change, is_applied))
}

impl HookSubject {
    pub fn input(&self) -> CheckInput<'_> {
        CheckInput {
            stage: self.stage,
            operation: self.operation,
            provider: self.provider,
            model: &self.model,
            is_streaming: self.is_streaming,
            metadata: &self.metadata,
            headers: &self.headers,
            request: &self.request,
            response: &self.response,
            texts: &self.texts,
        }
    }

    /// Sets a header field for the provider. Each field has one value: an empty one only keeps the client from setting
    /// the field, so it does not replace the value of another check.
    fn set_header(&mut self, name: &str, value: &str) {
        match self.added_headers.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some((_, known)) if value.is_empty() && !known.is_empty() => return,
            Some((_, known)) => value.clone_into(known),
            None => self.added_headers.push((name.to_owned(), value.to_owned())),
        }
        self.headers.retain(|other| !other.eq_ignore_ascii_case(name.as_bytes()));
        self.headers.push(name.as_bytes(), value.as_bytes());
    }

    /// Applies the change of a check. Returns false if that is not possible, because a stream has no body.
    pub fn apply(&mut self, change: &Change) -> bool {
        if let Change::Headers(fields) = change {
            for (name, value) in fields {
                self.set_header(name, value);
            }
            return true;
        }
        let body = match self.stage {
            Stage::Input => Arc::make_mut(&mut self.request),
            Stage::Output => &mut self.response,
        };
        match change {
            Change::Texts(texts) => {
                for (index, text) in texts {
                    let part = &mut self.texts[*index];
                    part.replace(body, text);
                    part.text.clone_from(text);
                }
                if self.stage == Stage::Output {
                    remove_token_lists(body);
                }
            }
            Change::Headers(_) => (),
            Change::Images(images) => {
                insert_images(body, images);
                self.body_bytes += images.values().map(|image| image.data.len()).sum::<usize>();
            }
            Change::Body(_) if body.is_null() => return false,
            Change::Body(new) => {
                body.clone_from(new);
                self.texts = if self.stage == Stage::Input { request_texts(body) } else { response_texts(body) };
            }
        }
        true
    }
}
