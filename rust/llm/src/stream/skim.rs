//! Reads what a large whole answer cost from its two ends as it passes by.

use crate::{
    api_format::{ApiFormat, ImageCounter},
    operation::Operation,
    usage::{SearchCallScanner, Usage, from_response_head, from_response_tail},
};

/// So much of either end is kept: usage stands at one of them, before or behind what makes the answer large.
const EDGE_BYTES: usize = 16 * 1024;

/// An answer of JSON on its way, of which only the ends are kept.
#[derive(Debug, Default)]
pub struct ResponseSkimmer {
    head: Vec<u8>,
    tail: Vec<u8>,
    length: u64,
    /// Of responses: what they consist of is part of their price.
    tool_use_counter: Option<SearchCallScanner>,
    /// Of images: so is how many they are.
    image_counter: Option<ImageCounter>,
}

impl ResponseSkimmer {
    /// One that knows where the answers of an operation say what they cost.
    pub fn for_operation(operation: Operation) -> Self {
        let tool_use_counter = (operation == Operation::CreateModelResponse).then(SearchCallScanner::default);
        let image_counter = operation.generates_images().then(ImageCounter::default);
        Self { tool_use_counter, image_counter, ..Self::default() }
    }

    /// Takes the next bytes of the answer.
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

    /// How many bytes have passed.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// How many images it had, where that is what it is about; the answer is over.
    pub fn take_image_count(&mut self) -> Option<u64> {
        self.image_counter.take()?.finish()
    }

    /// The answer is over.
    pub fn finish(&self, dialect: ApiFormat) -> Option<Usage> {
        if self.length == self.head.len() as u64 {
            return Usage::from_response(dialect, &self.head);
        }
        // The ends may touch: what is at hand of the last bytes is looked at in one piece.
        let last = if self.tail.len() < EDGE_BYTES { &[self.head.as_slice(), &self.tail].concat() } else { &self.tail };
        let mut usage = from_response_tail(dialect, last).or_else(|| from_response_head(dialect, &self.head))?;
        if let Some(lookout) = &self.tool_use_counter {
            usage.tool_uses = usage.tool_uses.max_of_each(&lookout.finish());
        }
        Some(usage)
    }
}
