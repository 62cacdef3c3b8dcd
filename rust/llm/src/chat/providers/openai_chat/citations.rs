//! Citations of `OpenAI`-compatible providers. They are annotations, as in `OpenAI`'s API, or a list of pages that
//! numbered marks in the text refer to, as in Perplexity's.

use serde_json::{Value, value::RawValue};

use crate::{
    chat::{
        event::{EventSink, ResponseEvent},
        field_scope::FieldScope,
    },
    citations::{ANNOTATIONS_FIELD, CitationSet, MAX_CITATIONS, TextIndex, parse_chat_annotations},
    fields::is_default_value,
};

const CITATIONS_FIELD: &str = "citations";
const SEARCH_RESULTS_FIELD: &str = "search_results";
/// Keys of a search result that are translated. Other keys are reported as dropped.
const TRANSLATED_KEYS: [&str; 3] = ["url", "title", "snippet"];
/// Maximum number of dropped keys that are reported.
const MAX_DROPPED_KEYS: usize = 16;

#[derive(Default)]
pub struct OpenAiCitationTracker {
    pub text_index: TextIndex,
    /// Top-level citation fields by name, as JSON. Chunks repeat them, so the latest value replaces the earlier one.
    top_level_fields: Vec<(&'static str, String)>,
    emitted_count: usize,
    /// End of the last emitted citation mark, in characters of the full text.
    last_mark_end: usize,
}

impl OpenAiCitationTracker {
    pub fn store_field(&mut self, name: &'static str, json: &RawValue) {
        self.top_level_fields.retain(|(field_name, _)| *field_name != name);
        self.top_level_fields.push((name, json.get().to_owned()));
    }

    /// Emits annotations as citations. Annotations of an unknown type are emitted unchanged, as additional data of the
    /// message.
    pub fn emit_annotations(&mut self, json: &str, sink: &mut dyn EventSink) {
        let all = serde_json::from_str(json).unwrap_or_default();
        let (mut cited, others) = parse_chat_annotations(&all);
        let remaining = MAX_CITATIONS.saturating_sub(self.emitted_count);
        let rest = if cited.len() > remaining { vec![ANNOTATIONS_FIELD.to_owned()] } else { Vec::new() };
        cited.truncate(remaining);
        self.emitted_count += cited.len();
        for citation in &mut cited {
            if citation.marker_range == (0..0) {
                // The provider does not report which text the page supports, so the page is cited for all text so far.
                citation.claim_range = 0..self.text_index.char_count();
                citation.marker_range = citation.claim_range.clone();
                continue;
            }
            // The mark is a link that follows the text it supports, so the claim is the text up to the end of the mark.
            citation.claim_range =
                self.text_index.claim_start(&citation.marker_range, self.last_mark_end)..citation.marker_range.end;
            self.last_mark_end = citation.marker_range.end;
        }
        if !cited.is_empty() {
            let all = CitationSet {
                scope: FieldScope::Message,
                name: ANNOTATIONS_FIELD,
                json,
                citations: &cited,
                untranslated_fields: &rest,
            };
            sink.push_event(ResponseEvent::Citations(all));
        }
        if !others.is_empty() {
            let json = Value::from(others).to_string();
            sink.push_event(ResponseEvent::ExtraField {
                scope: FieldScope::Message,
                name: ANNOTATIONS_FIELD,
                json: &json,
            });
        }
    }

    /// Emits the stored top-level fields. Emits them as citations if the text contains numbered marks, otherwise
    /// unchanged.
    pub fn emit_citations(&self, sink: &mut dyn EventSink) {
        let read = |name: &str| {
            let json = self.top_level_fields.iter().find(|(field_name, _)| *field_name == name).map(|(_, json)| json);
            json.and_then(|json| serde_json::from_str::<Vec<Value>>(json).ok()).unwrap_or_default()
        };
        let (pages, search_results) = (read(CITATIONS_FIELD), read(SEARCH_RESULTS_FIELD));
        let listed = list_pages(&pages, &search_results);
        let (cited, is_all) = self.text_index.find_marked_citations(&listed);
        let is_all = is_all && pages.len().max(search_results.len()) == listed.len();
        let mut pending = cited.as_slice();
        for (name, json) in &self.top_level_fields {
            if cited.is_empty() {
                sink.push_event(ResponseEvent::ExtraField { scope: FieldScope::Response, name, json });
                continue;
            }
            let rest = if *name == SEARCH_RESULTS_FIELD {
                dropped_result_keys(&search_results, is_all)
            } else {
                dropped_unless_complete(is_all, CITATIONS_FIELD)
            };
            // The citations are emitted once, with the first field.
            let cited = std::mem::take(&mut pending);
            sink.push_event(ResponseEvent::Citations(CitationSet {
                scope: FieldScope::Response,
                name,
                json,
                citations: cited,
                untranslated_fields: &rest,
            }));
        }
    }
}

/// Returns the pages in the order of their numbers, each as URL, title and snippet.
fn list_pages(pages: &[Value], search_results: &[Value]) -> Vec<(String, Value, String)> {
    let to_entry = |url: &str, details: &Value| {
        let text = details["snippet"].as_str().unwrap_or_default();
        (url.to_owned(), details["title"].clone(), text.to_owned())
    };
    let results = &search_results[..search_results.len().min(MAX_CITATIONS)];
    if pages.is_empty() {
        return results.iter().map(|item| to_entry(item["url"].as_str().unwrap_or_default(), item)).collect();
    }
    let page = |page: &Value| {
        let url = page.as_str().or_else(|| page["url"].as_str()).unwrap_or_default();
        to_entry(url, results.iter().find(|item| item["url"] == url).unwrap_or(page))
    };
    pages.iter().take(MAX_CITATIONS).map(page).collect()
}

fn dropped_unless_complete(is_all: bool, name: &str) -> Vec<String> {
    if is_all { Vec::new() } else { vec![name.to_owned()] }
}

/// Returns the names of search result keys that are not translated.
fn dropped_result_keys(results: &[Value], is_all: bool) -> Vec<String> {
    let mut untranslated = dropped_unless_complete(is_all, SEARCH_RESULTS_FIELD);
    let keys = results.iter().filter_map(Value::as_object).flatten().filter(|(_, value)| !is_default_value(value));
    for (key, _) in keys.filter(|(key, _)| !TRANSLATED_KEYS.contains(&key.as_str())) {
        let name = format!("{SEARCH_RESULTS_FIELD}.{key}");
        if !untranslated.contains(&name) && untranslated.len() < MAX_DROPPED_KEYS {
            untranslated.push(name);
        }
    }
    untranslated
}
