//! Usage reader for large JSON responses. Buffers only both ends of the body while it is forwarded.

use crate::{
    api_format::{ImageCounter, format::ApiFormat},
    operation::Operation,
    usage::{SearchCallScanner, Usage, from_response_head, from_response_tail},
};

/// Number of bytes that are buffered at each end. Usage is at one of them, before or after the content that makes the
/// response large.
const EDGE_BYTES: usize = 16 * 1024;

/// JSON response that is forwarded; only its beginning and its end are buffered.
#[derive(Debug, Default)]
pub struct ResponseSkimmer {
    head: Vec<u8>,
    tail: Vec<u8>,
    length: u64,
    /// Counts the uses of built-in tools, which are part of the price; only for the responses API.
    tool_use_counter: Option<SearchCallScanner>,
    /// Counts images, which are part of the price; only for image operations.
    image_counter: Option<ImageCounter>,
}

impl ResponseSkimmer {
    /// Creates a skimmer for the responses of an operation.
    pub fn for_operation(operation: Operation) -> Self {
        let tool_use_counter = (operation == Operation::CreateModelResponse).then(SearchCallScanner::default);
        let image_counter = operation.generates_images().then(ImageCounter::default);
        Self { tool_use_counter, image_counter, ..Self::default() }
    }

    /// Reads the next bytes of the response.
    pub fn feed(&mut self, chunk: &[u8]) {
        self.length += chunk.len() as u64;
        if let Some(lookout) = &mut self.tool_use_counter {
            lookout.feed(chunk);
        }
        if let Some(drawn) = &mut self.image_counter {
            drawn.feed(chunk);
        }
        let (begin, rest) = chunk.split_at(chunk.len().min(EDGE_BYTES - self.head.len()));
        self.head.extend_from_slice(begin);
        let rest = &rest[rest.len().saturating_sub(EDGE_BYTES)..];
        if self.tail.len() + rest.len() > EDGE_BYTES * 2 {
            self.tail.drain(..self.tail.len() + rest.len() - EDGE_BYTES);
        }
        self.tail.extend_from_slice(rest);
    }

    /// Returns the number of bytes read.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the number of images once the response has ended; `None` for other operations.
    pub fn take_image_count(&mut self) -> Option<u64> {
        self.image_counter.take()?.finish()
    }

    /// Ends the response and returns its usage.
    pub fn finish(&self, api_format: ApiFormat) -> Option<Usage> {
        if self.length == self.head.len() as u64 {
            return Usage::from_response(api_format, &self.head);
        }
        // The two ends may be adjacent, so the last bytes are searched as one slice.
        let last = if self.tail.len() < EDGE_BYTES { &[self.head.as_slice(), &self.tail].concat() } else { &self.tail };
        let mut usage = from_response_tail(api_format, last).or_else(|| from_response_head(api_format, &self.head))?;
        if let Some(lookout) = &self.tool_use_counter {
            usage.tool_uses = usage.tool_uses.max_of_each(&lookout.finish());
        }
        Some(usage)
    }
}
