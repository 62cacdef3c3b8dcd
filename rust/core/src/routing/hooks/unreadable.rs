//! Reasons why hooks cannot read a request or a response, as results show them.

use std::sync::Arc;

use super::rewriting::needs_rewritten_body;
use crate::{error::Error, guardrails::hook::Hook};

pub const UNREADABLE_STREAM: &str = "the stream has another format than its operation";
pub const TOO_LARGE: &str = "the response is too large to be checked";
pub const UNREADABLE_REQUEST: &str = "the request body is not a JSON object";
pub const TOKEN_NUMBERS: &str = "the request has numbers of tokens in place of a text";
pub const UNREADABLE_RESPONSE: &str = "the response body is not a JSON object";
pub const PENDING: &str = "the response has not begun";
pub const COMPRESSED: &str = "the response is compressed";
pub const TOO_BUSY: &str = "too many asynchronous guardrails are running";
const HIDDEN_TEXT: &str = "hidden, because guardrails could not read it";

/// Hides the text of a response in an error, if one of these hooks should have read that text.
pub fn hide_unread_text(hooks: &[Arc<Hook>], error: &mut Error) {
    if hooks.iter().any(|hook| needs_rewritten_body(hook)) {
        error.edit_upstream_text(|text| HIDDEN_TEXT.clone_into(text));
    }
}
