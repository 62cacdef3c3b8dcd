//! What the gateway needs to know of a request body before it forwards the bytes as they are.

use std::ops::Range;

use super::scan::{self, PeekError, fields, fields_of_text};

/// The few top-level fields that decide where a request goes; a field of another JSON type counts as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peek {
    pub model: Option<String>,
    /// Where the value of `model` stands in the body, quotes included.
    pub model_at: Option<Range<usize>>,
    pub stream: Option<bool>,
    pub stream_at: Option<Range<usize>>,
    pub user: Option<String>,
    /// `stream_options.include_usage`
    pub include_usage: Option<bool>,
    /// Where the value of `stream_options` stands in the body.
    pub stream_options_at: Option<Range<usize>>,
}

impl Peek {
    /// Whether the caller asked for a stream.
    pub fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    fn take(&mut self, body: &[u8], key: &[u8], at: Range<usize>) -> Result<(), PeekError> {
        match key {
            b"model" => {
                once(self.model_at.is_none(), &at, "\"model\" appears twice")?;
                self.model = text(body, &at)?;
                self.model_at = Some(at);
            }
            b"stream" => {
                once(self.stream_at.is_none(), &at, "\"stream\" appears twice")?;
                self.stream = flag(&body[at.clone()]);
                self.stream_at = Some(at);
            }
            b"user" => self.user = text(body, &at)?,
            b"stream_options" => {
                once(self.stream_options_at.is_none(), &at, "\"stream_options\" appears twice")?;
                self.include_usage = include_usage(&body[at.clone()]);
                self.stream_options_at = Some(at);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Reads a JSON request body without building a tree, and refuses what is not JSON in UTF-8.
pub fn peek(body: &[u8]) -> Result<Peek, PeekError> {
    let mut found = Peek::default();
    fields_of_text(body, |key, at| found.take(body, key, at))?;
    Ok(found)
}

/// Parsers differ in which of two equal keys they take: what was checked here must be what the provider reads.
fn once(first: bool, at: &Range<usize>, message: &'static str) -> Result<(), PeekError> {
    if first { Ok(()) } else { Err(PeekError { at: at.start, message }) }
}

fn text(body: &[u8], at: &Range<usize>) -> Result<Option<String>, PeekError> {
    let literal = &body[at.clone()];
    if literal.first() != Some(&b'"') {
        return Ok(None);
    }
    let text = scan::text(literal).ok_or(PeekError { at: at.start, message: "invalid string" })?;
    Ok(Some(text.into_owned()))
}

fn flag(literal: &[u8]) -> Option<bool> {
    match literal {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

fn include_usage(object: &[u8]) -> Option<bool> {
    let mut found = None;
    let read = fields(object, |key, at| {
        if key == b"include_usage" {
            found = flag(&object[at]);
        }
        Ok(())
    });
    read.ok().and(found)
}
