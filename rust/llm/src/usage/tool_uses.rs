//! Counts of provider-side tool uses that are billed per use. Reads them from the usage object or from the response
//! itself.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::count_values::parse_count;
use crate::json::{
    keys::value_start,
    scan::{for_each_element_from, for_each_field, scan_rest_of_object},
};

/// Returns true for `OpenAI` chat models that run exactly one web search per request. Their responses do not report it.
pub fn always_searches(model: &str) -> bool {
    model.contains("-search-preview") || model.contains("-search-api")
}

/// Maximum number of search queries that are counted and billed, to bound memory.
const MAX_SEARCH_QUERIES: usize = 256;

/// Number of uses of each provider-side tool. These are not token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ToolUses {
    pub web_searches: u64,
    /// Searches in files that the client stored at the provider.
    pub file_searches: u64,
    /// Searches in posts on X.
    pub x_searches: u64,
    pub code_executions: u64,
    /// Searches in files attached to the request.
    pub attachment_searches: u64,
    /// Responses grounded with Google Maps.
    pub maps: u64,
    /// Rerank queries with up to 100 documents each, the billing unit of rerank providers.
    pub rankings: u64,
}

impl ToolUses {
    #[must_use]
    pub fn saturating_add(&self, other: &Self) -> Self {
        self.zip_with(other, u64::saturating_add)
    }

    /// Combines two reports of the same uses: returns the larger of both values for each count.
    #[must_use]
    pub fn max_of_each(&self, other: &Self) -> Self {
        self.zip_with(other, u64::max)
    }

    fn zip_with(&self, other: &Self, both: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            web_searches: both(self.web_searches, other.web_searches),
            file_searches: both(self.file_searches, other.file_searches),
            x_searches: both(self.x_searches, other.x_searches),
            code_executions: both(self.code_executions, other.code_executions),
            attachment_searches: both(self.attachment_searches, other.attachment_searches),
            maps: both(self.maps, other.maps),
            rankings: both(self.rankings, other.rankings),
        }
    }

    /// Returns the counter for a usage field, under Anthropic's or xAI's name of the field.
    pub(crate) fn counter_mut(&mut self, key: &[u8]) -> Option<&mut u64> {
        Some(match key {
            b"web_search_requests" | b"web_search_calls" => &mut self.web_searches,
            b"file_search_calls" => &mut self.file_searches,
            b"x_search_calls" => &mut self.x_searches,
            b"code_interpreter_calls" => &mut self.code_executions,
            b"document_search_calls" => &mut self.attachment_searches,
            _ => return None,
        })
    }
}

/// Suffix of the item types that are searches. Quotes within JSON strings are escaped, so text content never matches.
static SEARCH_CALL_FINDER: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"_search_call\""));

/// Returns true if a response may have search call items.
pub(crate) fn may_have_search_calls(response: &[u8]) -> bool {
    SEARCH_CALL_FINDER.find(response).is_some()
}

/// Counts the tool uses of all output items of a response.
pub(crate) fn count_in_items(output: &[u8]) -> ToolUses {
    let mut tools = ToolUses::default();
    if may_have_search_calls(output) {
        // If the list is malformed, the items before the error count.
        let _ = for_each_element_from(output, 0, |at| {
            tools = tools.saturating_add(&count_in_item(&output[at]));
            Ok(())
        });
    }
    tools
}

/// Counts the tool use of one output item; none if it is unfinished or failed.
pub(crate) fn count_in_item(item: &[u8]) -> ToolUses {
    let mut output_item = ScannedOutputItem::default();
    let _ = for_each_field(item, |key, at| {
        output_item.read_field(key, &item[at]);
        Ok(())
    });
    output_item.billed_uses()
}

#[derive(Default)]
struct ScannedOutputItem<'a> {
    item_type: &'a [u8],
    status: &'a [u8],
    action: &'a [u8],
}

impl<'a> ScannedOutputItem<'a> {
    fn read_field(&mut self, key: &[u8], value: &'a [u8]) {
        match key {
            b"type" => self.item_type = value,
            b"status" => self.status = value,
            b"action" => {
                let _ = for_each_field(value, |key, at| {
                    if key == b"type" {
                        self.action = &value[at];
                    }
                    Ok(())
                });
            }
            _ => (),
        }
    }

    /// Returns the billed tool use. Opening a page or searching within it costs only tokens.
    fn billed_uses(&self) -> ToolUses {
        let is_done = matches!(self.status, b"" | b"null" | b"\"completed\"");
        let is_search = matches!(self.action, b"" | b"\"search\"");
        match self.item_type {
            b"\"web_search_call\"" if is_done && is_search => ToolUses { web_searches: 1, ..ToolUses::default() },
            b"\"file_search_call\"" if is_done => ToolUses { file_searches: 1, ..ToolUses::default() },
            _ => ToolUses::default(),
        }
    }
}

/// Finds search call items in a response that is not buffered completely.
#[derive(Debug, Default)]
pub(crate) struct SearchCallScanner {
    /// Bytes not scanned yet, because an item in them may continue in the next chunk.
    pending: Vec<u8>,
    uses: ToolUses,
}

/// Number of bytes after an item's type in which its other fields are searched.
const ITEM_WINDOW_BYTES: usize = 1024;

impl SearchCallScanner {
    pub(crate) fn feed(&mut self, chunk: &[u8]) {
        self.pending.extend_from_slice(chunk);
        let scan_end = self.pending.len().saturating_sub(ITEM_WINDOW_BYTES);
        self.scan_until(scan_end);
        self.pending.drain(..scan_end);
    }

    pub(crate) fn finish(&self) -> ToolUses {
        let mut last = Self { pending: self.pending.clone(), uses: self.uses };
        last.scan_until(last.pending.len());
        last.uses
    }

    /// Counts the items whose type field begins before an offset.
    fn scan_until(&mut self, end: usize) {
        const SEARCH_CALL_TYPES: [&[u8]; 2] = [b"\"web_search_call\"", b"\"file_search_call\""];
        let mut uses = self.uses;
        for at in SEARCH_CALL_FINDER.find_iter(&self.pending).take_while(|at| *at < end) {
            let close = at + SEARCH_CALL_FINDER.needle().len();
            let kind = SEARCH_CALL_TYPES.into_iter().find(|kind| self.pending[..close].ends_with(kind));
            let Some(kind) = kind.filter(|kind| ends_with_type_key(&self.pending[..close - kind.len()])) else {
                continue;
            };
            let mut item = ScannedOutputItem { item_type: kind, ..ScannedOutputItem::default() };
            // The buffer usually ends within the enclosing JSON, so an error is expected.
            let _ = scan_rest_of_object(&self.pending, close, |key, at| {
                item.read_field(key, &self.pending[at]);
                Ok(())
            });
            uses = uses.saturating_add(&item.billed_uses());
        }
        self.uses = uses;
    }
}

/// Returns true if the bytes end with a `type` key, so that its value follows.
fn ends_with_type_key(before: &[u8]) -> bool {
    let key = before.trim_ascii_end().strip_suffix(b":");
    key.is_some_and(|key| key.trim_ascii_end().ends_with(b"\"type\""))
}

/// Grounding of a Gemini response, collected while its chunks arrive.
#[derive(Debug, Default)]
pub(crate) struct Grounding {
    /// Distinct queries, because repeated queries are billed once.
    queries: Vec<Box<[u8]>>,
    uses_maps: bool,
    /// True if grounding is billed per prompt, regardless of the number of queries.
    is_billed_per_prompt: bool,
}

static QUERIES_KEY_FINDER: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"SearchQueries\""));
const GROUNDING_METADATA_KEY: &[u8] = b"\"groundingMetadata\"";

impl Grounding {
    /// Sets the billing unit by model: Google bills queries since Gemini 3, and prompts before that.
    pub(crate) fn set_model(&mut self, model: &[u8]) {
        self.is_billed_per_prompt =
            ["gemini-1", "gemini-2"].iter().any(|old| memchr::memmem::find(model, old.as_bytes()).is_some());
    }

    /// Reads the grounding metadata of the candidates of a response or of a stream chunk.
    pub(crate) fn read_candidates(&mut self, candidates: &[u8]) {
        if memchr::memmem::find(candidates, GROUNDING_METADATA_KEY).is_none() {
            return;
        }
        let _ = for_each_element_from(candidates, 0, |at| {
            let candidate = &candidates[at];
            for_each_field(candidate, |key, at| {
                if key == b"groundingMetadata" {
                    self.read_metadata(&candidate[at]);
                }
                Ok(())
            })
        });
    }

    pub(crate) fn read_metadata(&mut self, metadata: &[u8]) {
        let _ = for_each_field(metadata, |key, at| {
            let value = &metadata[at];
            match key {
                b"webSearchQueries" | b"imageSearchQueries" => self.read_queries(value),
                b"groundingChunks" => self.uses_maps |= has_maps_source(value),
                _ => (),
            }
            Ok(())
        });
    }

    /// Reads search queries from the last bytes of a large response.
    pub(crate) fn read_tail(&mut self, tail: &[u8]) {
        for at in QUERIES_KEY_FINDER.find_iter(tail) {
            if let Some((open, b'[')) = value_start(tail, at + QUERIES_KEY_FINDER.needle().len()) {
                self.read_queries(&tail[open..]);
            }
        }
    }

    fn read_queries(&mut self, list: &[u8]) {
        let _ = for_each_element_from(list, 0, |at| {
            let query = &list[at];
            let is_new = query.len() > 2 && self.queries.iter().all(|existing| **existing != *query);
            if is_new && self.queries.len() < MAX_SEARCH_QUERIES {
                self.queries.push(query.into());
            }
            Ok(())
        });
    }

    pub(crate) fn billed_uses(&self) -> ToolUses {
        let queries = self.queries.len() as u64;
        let web_searches = if self.is_billed_per_prompt { queries.min(1) } else { queries };
        ToolUses { web_searches, maps: self.uses_maps.into(), ..ToolUses::default() }
    }
}

/// Returns true if one of the grounding sources is a Google Maps place.
fn has_maps_source(chunks: &[u8]) -> bool {
    let mut is_found = false;
    let _ = for_each_element_from(chunks, 0, |at| {
        let chunk = &chunks[at];
        for_each_field(chunk, |key, _| {
            is_found |= key == b"maps";
            Ok(())
        })
    });
    is_found
}

/// Counts tool invocations in the `tool_calls_details` of Perplexity's agents.
pub(crate) fn count_invocations(details: &[u8]) -> ToolUses {
    let mut tools = ToolUses::default();
    let _ = for_each_field(details, |tool, at| {
        let tool_details = &details[at];
        if tool == b"search_web" {
            let _ = for_each_field(tool_details, |key, at| {
                if key == b"invocation" {
                    tools.web_searches = parse_count(&tool_details[at]).unwrap_or_default();
                }
                Ok(())
            });
        }
        Ok(())
    });
    tools
}
