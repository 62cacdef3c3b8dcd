//! How often a provider used tools of its own to answer, where that is paid for by the piece: told in its usage, or shown by
//! the answer itself.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::{counts::parse_count, value_start};
use crate::json::scan::{for_each_element_from, for_each_field, scan_rest_of_object};

/// Whether a model of `OpenAI`'s looks into the web before it answers a chat, always and once: no answer says so.
pub fn always_searches(model: &str) -> bool {
    model.contains("-search-preview") || model.contains("-search-api")
}

/// Whoever names more searches than this pays for no more.
const MAX_SEARCH_QUERIES: usize = 256;

/// No tokens: so many uses of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ToolUses {
    pub web_searches: u64,
    /// Of files that the caller stored there.
    pub file_searches: u64,
    /// Of posts on X.
    pub x_searches: u64,
    pub code_executions: u64,
    /// Of files that came with the request.
    pub attachment_searches: u64,
    /// Answers for which a map was looked at.
    pub maps: u64,
    /// Queries with up to a hundred documents each, by which those who rank are paid.
    pub rankings: u64,
}

impl ToolUses {
    #[must_use]
    pub fn saturating_add(&self, other: &Self) -> Self {
        self.zip_with(other, u64::saturating_add)
    }

    /// The larger of two counts of the same.
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

    /// By the names that usage has for them: Anthropic's first, then xAI's.
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

/// With what the types of the items end that say a search. Quotes within strings are escaped, so it is found in no text.
static SEARCH_CALL_FINDER: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"_search_call\""));

/// Whether a response may have items that say so.
pub(crate) fn may_have_search_calls(response: &[u8]) -> bool {
    SEARCH_CALL_FINDER.find(response).is_some()
}

/// What the items of a response used.
pub(crate) fn count_in_items(output: &[u8]) -> ToolUses {
    let mut tools = ToolUses::default();
    if may_have_search_calls(output) {
        // Of a broken list counts what stands before the fault.
        let _ = for_each_element_from(output, 0, |at| {
            tools = tools.saturating_add(&count_in_item(&output[at]));
            Ok(())
        });
    }
    tools
}

/// What one item used, if it is over and went well.
pub(crate) fn count_in_item(item: &[u8]) -> ToolUses {
    let mut said = OutputItem::default();
    let _ = for_each_field(item, |key, at| {
        said.read_field(key, &item[at]);
        Ok(())
    });
    said.billed_uses()
}

#[derive(Default)]
struct OutputItem<'a> {
    item_type: &'a [u8],
    status: &'a [u8],
    action: &'a [u8],
}

impl<'a> OutputItem<'a> {
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

    /// To open a page, or to look for something in it, costs nothing but tokens.
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

/// Looks for such items in a response of which not all is kept.
#[derive(Debug, Default)]
pub(crate) struct SearchCallScanner {
    /// What has not been looked at, as more of it may come.
    pending: Vec<u8>,
    uses: ToolUses,
}

/// An item's other fields are looked for within this many bytes behind its type.
const ITEM_WINDOW_BYTES: usize = 1024;

impl SearchCallScanner {
    pub(crate) fn feed(&mut self, chunk: &[u8]) {
        self.pending.extend_from_slice(chunk);
        let known = self.pending.len().saturating_sub(ITEM_WINDOW_BYTES);
        self.scan_until(known);
        self.pending.drain(..known);
    }

    pub(crate) fn finish(&self) -> ToolUses {
        let mut last = Self { pending: self.pending.clone(), uses: self.uses };
        last.scan_until(last.pending.len());
        last.uses
    }

    /// Looks at what begins before an offset.
    fn scan_until(&mut self, end: usize) {
        const SEARCH_CALL_TYPES: [&[u8]; 2] = [b"\"web_search_call\"", b"\"file_search_call\""];
        let mut found = self.uses;
        for at in SEARCH_CALL_FINDER.find_iter(&self.pending).take_while(|at| *at < end) {
            let close = at + SEARCH_CALL_FINDER.needle().len();
            let kind = SEARCH_CALL_TYPES.into_iter().find(|kind| self.pending[..close].ends_with(kind));
            let Some(kind) = kind.filter(|kind| ends_with_type_key(&self.pending[..close - kind.len()])) else {
                continue;
            };
            let mut item = OutputItem { item_type: kind, ..OutputItem::default() };
            // It breaks off somewhere, as a rule.
            let _ = scan_rest_of_object(&self.pending, close, |key, at| {
                item.read_field(key, &self.pending[at]);
                Ok(())
            });
            found = found.saturating_add(&item.billed_uses());
        }
        self.uses = found;
    }
}

/// Whether what follows these bytes is the value of a `type`.
fn ends_with_type_key(before: &[u8]) -> bool {
    let key = before.trim_ascii_end().strip_suffix(b":");
    key.is_some_and(|key| key.trim_ascii_end().ends_with(b"\"type\""))
}

/// What Google looked up for an answer, as it comes to light.
#[derive(Debug, Default)]
pub(crate) struct Grounding {
    /// Each query once: those that are the same are paid for once.
    queries: Vec<Box<[u8]>>,
    uses_maps: bool,
    /// It is paid for by the prompt, however many queries there were.
    is_billed_per_prompt: bool,
}

static QUERIES_KEY_FINDER: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"SearchQueries\""));
const GROUNDING_METADATA_KEY: &[u8] = b"\"groundingMetadata\"";

impl Grounding {
    /// Since its third generation Google counts queries, before it counted prompts.
    pub(crate) fn set_model(&mut self, model: &[u8]) {
        self.is_billed_per_prompt =
            ["gemini-1", "gemini-2"].iter().any(|old| memchr::memmem::find(model, old.as_bytes()).is_some());
    }

    /// Of the candidates of an answer, or of a piece of it.
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

    /// Of bytes with which a large answer ends.
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
            let is_new = query.len() > 2 && self.queries.iter().all(|known| **known != *query);
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

/// Whether one of the sources is a place.
fn has_maps_source(chunks: &[u8]) -> bool {
    let mut found = false;
    let _ = for_each_element_from(chunks, 0, |at| {
        let chunk = &chunks[at];
        for_each_field(chunk, |key, _| {
            found |= key == b"maps";
            Ok(())
        })
    });
    found
}

/// As Perplexity's agents tell of a tool: how often it was invoked.
pub(crate) fn count_invocations(details: &[u8]) -> ToolUses {
    let mut tools = ToolUses::default();
    let _ = for_each_field(details, |tool, at| {
        let told = &details[at];
        if tool == b"search_web" {
            let _ = for_each_field(told, |key, at| {
                if key == b"invocation" {
                    tools.web_searches = parse_count(&told[at]).unwrap_or_default();
                }
                Ok(())
            });
        }
        Ok(())
    });
    tools
}
