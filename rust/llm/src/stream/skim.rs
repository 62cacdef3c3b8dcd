//! Reads what a large whole answer cost from its two ends as it passes by.

use crate::{
    api_format::{ApiFormat, ImageCounter},
    operation::Operation,
    usage::{Lookout, Usage, from_end, from_head},
};

/// So much of either end is kept: usage stands at one of them, before or behind what makes the answer large.
const EDGE: usize = 16 * 1024;

/// An answer of JSON on its way, of which only the ends are kept.
#[derive(Debug, Default)]
pub struct Skim {
    head: Vec<u8>,
    tail: Vec<u8>,
    length: u64,
    /// Of responses: what they consist of is part of their price.
    lookout: Option<Lookout>,
    /// Of images: so is how many they are.
    drawn: Option<ImageCounter>,
}

impl Skim {
    /// One that knows where the answers of an operation say what they cost.
    pub fn of(operation: Operation) -> Self {
        let lookout = (operation == Operation::CreateModelResponse).then(Lookout::default);
        let drawn = operation.draws().then(ImageCounter::default);
        Self { lookout, drawn, ..Self::default() }
    }

    /// Takes the next bytes of the answer.
    pub fn feed(&mut self, chunk: &[u8]) {
        self.length += chunk.len() as u64;
        if let Some(lookout) = &mut self.lookout {
            lookout.feed(chunk);
        }
        if let Some(drawn) = &mut self.drawn {
            drawn.feed(chunk);
        }
        let (begin, rest) = chunk.split_at(chunk.len().min(EDGE - self.head.len()));
        self.head.extend_from_slice(begin);
        let rest = &rest[rest.len().saturating_sub(EDGE)..];
        if self.tail.len() + rest.len() > EDGE * 2 {
            self.tail.drain(..self.tail.len() + rest.len() - EDGE);
        }
        self.tail.extend_from_slice(rest);
    }

    /// How many bytes have passed.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// How many images it had, where that is what it is about; the answer is over.
    pub fn drawn(&mut self) -> Option<u64> {
        self.drawn.take()?.finish()
    }

    /// The answer is over.
    pub fn finish(&self, dialect: ApiFormat) -> Option<Usage> {
        if self.length == self.head.len() as u64 {
            return Usage::from_answer(dialect, &self.head);
        }
        // The ends may touch: what is at hand of the last bytes is looked at in one piece.
        let last = if self.tail.len() < EDGE { &[self.head.as_slice(), &self.tail].concat() } else { &self.tail };
        let mut usage = from_end(dialect, last).or_else(|| from_head(dialect, &self.head))?;
        if let Some(lookout) = &self.lookout {
            usage.tools = usage.tools.or(&lookout.finish());
        }
        Some(usage)
    }
}
