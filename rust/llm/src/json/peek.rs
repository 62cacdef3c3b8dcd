//! Minimal parser for request bodies: reads the few fields that the gateway needs and leaves the bytes unchanged.

use std::ops::Range;

use super::{
    scan::{ScanError, for_each_field, for_each_field_utf8},
    string_literal::decode_string,
};

/// Top-level fields that decide where a request is routed. A field with another JSON type counts as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peek {
    pub model: Option<String>,
    /// Byte range of the `model` value in the body, including its quotes.
    pub model_range: Option<Range<usize>>,
    pub stream: Option<bool>,
    pub stream_range: Option<Range<usize>>,
    pub user: Option<String>,
    /// Value of `stream_options.include_usage`.
    pub include_usage: Option<bool>,
    /// Byte range of the `stream_options` value in the body.
    pub stream_options_range: Option<Range<usize>>,
}

impl Peek {
    /// Returns true if the client requests a stream.
    pub fn is_streaming(&self) -> bool {
        self.stream == Some(true)
    }

    fn read_field(&mut self, body: &[u8], key: &[u8], at: Range<usize>) -> Result<(), ScanError> {
        match key {
            b"model" => {
                reject_duplicate(self.model_range.is_none(), &at, "\"model\" appears twice")?;
                self.model = read_string(body, &at)?;
                self.model_range = Some(at);
            }
            b"stream" => {
                reject_duplicate(self.stream_range.is_none(), &at, "\"stream\" appears twice")?;
                self.stream = parse_bool(&body[at.clone()]);
                self.stream_range = Some(at);
            }
            b"user" => self.user = read_string(body, &at)?,
            b"stream_options" => {
                reject_duplicate(self.stream_options_range.is_none(), &at, "\"stream_options\" appears twice")?;
                self.include_usage = read_include_usage(&body[at.clone()]);
                self.stream_options_range = Some(at);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Reads a JSON request body without building a tree. Rejects input that is not JSON in UTF-8.
pub fn peek(body: &[u8]) -> Result<Peek, ScanError> {
    let mut peeked = Peek::default();
    for_each_field_utf8(body, |key, at| peeked.read_field(body, key, at))?;
    Ok(peeked)
}

/// Rejects a duplicate key. Parsers differ in which duplicate they use, and the gateway must check the value that the
/// provider reads.
fn reject_duplicate(first: bool, at: &Range<usize>, message: &'static str) -> Result<(), ScanError> {
    if first { Ok(()) } else { Err(ScanError { offset: at.start, message }) }
}

fn read_string(body: &[u8], at: &Range<usize>) -> Result<Option<String>, ScanError> {
    let literal = &body[at.clone()];
    if literal.first() != Some(&b'"') {
        return Ok(None);
    }
    let text = decode_string(literal).ok_or(ScanError { offset: at.start, message: "invalid string" })?;
    Ok(Some(text.into_owned()))
}

fn parse_bool(literal: &[u8]) -> Option<bool> {
    match literal {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

fn read_include_usage(object: &[u8]) -> Option<bool> {
    let mut model = None;
    let read = for_each_field(object, |key, at| {
        if key == b"include_usage" {
            model = parse_bool(&object[at]);
        }
        Ok(())
    });
    read.ok().and(model)
}
