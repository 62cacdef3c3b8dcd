//! What the gateway needs to know of a request body before it forwards the bytes as they are.

use std::ops::Range;

use super::scan::{self, ScanError, for_each_field, for_each_field_utf8};

/// The few top-level fields that decide where a request goes; a field of another JSON type counts as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peek {
    pub model: Option<String>,
    /// Where the value of `model` stands in the body, quotes included.
    pub model_range: Option<Range<usize>>,
    pub stream: Option<bool>,
    pub stream_range: Option<Range<usize>>,
    pub user: Option<String>,
    /// `stream_options.include_usage`
    pub include_usage: Option<bool>,
    /// Where the value of `stream_options` stands in the body.
    pub stream_options_range: Option<Range<usize>>,
}

impl Peek {
    /// Whether the caller asked for a stream.
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

/// Reads a JSON request body without building a tree, and refuses what is not JSON in UTF-8.
pub fn peek(body: &[u8]) -> Result<Peek, ScanError> {
    let mut found = Peek::default();
    for_each_field_utf8(body, |key, at| found.read_field(body, key, at))?;
    Ok(found)
}

/// Parsers differ in which of two equal keys they take: what was checked here must be what the provider reads.
fn reject_duplicate(first: bool, at: &Range<usize>, message: &'static str) -> Result<(), ScanError> {
    if first { Ok(()) } else { Err(ScanError { offset: at.start, message }) }
}

fn read_string(body: &[u8], at: &Range<usize>) -> Result<Option<String>, ScanError> {
    let literal = &body[at.clone()];
    if literal.first() != Some(&b'"') {
        return Ok(None);
    }
    let text = scan::decode_string(literal).ok_or(ScanError { offset: at.start, message: "invalid string" })?;
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
    let mut found = None;
    let read = for_each_field(object, |key, at| {
        if key == b"include_usage" {
            found = parse_bool(&object[at]);
        }
        Ok(())
    });
    read.ok().and(found)
}
