//! Token counts of the iterations of one response, and their sums.

use crate::{
    api_format::ScanError,
    json::scan::{for_each_element_from, for_each_field},
    usage::count_values::parse_count,
};

/// Counts of the iterations of one response. Anthropic samples several times if it compacts the conversation or runs
/// its own tools.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct IterationCounts {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) cache_read: u64,
    pub(super) cache_write: u64,
    pub(super) cache_write_5m: u64,
    pub(super) cache_write_1h: u64,
}

impl IterationCounts {
    /// Returns the sums of all iterations; `None` if there are none, or if one cannot be read.
    pub(super) fn parse_sum(iterations: &[u8]) -> Option<Self> {
        let mut sum = Self::default();
        for_each_element_from(iterations, 0, |at| sum.add_fields(&iterations[at])).ok()?;
        (sum != Self::default()).then_some(sum)
    }

    fn add_fields(&mut self, object: &[u8]) -> Result<(), ScanError> {
        for_each_field(object, |key, at| {
            let value = &object[at];
            let slot = match key {
                b"input_tokens" => &mut self.input,
                b"output_tokens" => &mut self.output,
                b"cache_read_input_tokens" => &mut self.cache_read,
                b"cache_creation_input_tokens" => &mut self.cache_write,
                b"cache_creation" if value.starts_with(b"{") => return self.add_lifetimes(value),
                _ => return Ok(()),
            };
            *slot = slot.saturating_add(parse_count(value).unwrap_or_default());
            Ok(())
        })
    }

    /// Adds the cached tokens by lifetime.
    fn add_lifetimes(&mut self, object: &[u8]) -> Result<(), ScanError> {
        for_each_field(object, |key, at| {
            let slot = match key {
                b"ephemeral_5m_input_tokens" => &mut self.cache_write_5m,
                b"ephemeral_1h_input_tokens" => &mut self.cache_write_1h,
                _ => return Ok(()),
            };
            *slot = slot.saturating_add(parse_count(&object[at]).unwrap_or_default());
            Ok(())
        })
    }
}
