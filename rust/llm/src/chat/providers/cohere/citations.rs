//! Cohere's citations. They refer to documents that the client sent and to tool results.

use std::ops::Range;

use serde_json::{Value, json};

use crate::{
    chat::{
        event::{EventSink, ResponseEvent},
        field_scope::FieldScope,
    },
    citations::{Citation, CitationSet, MAX_CITATIONS, TextIndex, search_result_source},
};

const CITATIONS_FIELD: &str = "citations";
/// Keys of a document or tool result that may hold its title, by priority.
const TITLE_KEYS: [&str; 2] = ["title", "name"];
/// Keys of a document or tool result that may hold its text, by priority.
const TEXT_KEYS: [&str; 3] = ["text", "snippet", "content"];

/// Maps citations to ranges of the full text.
#[derive(Default)]
pub struct CohereCitationTracker {
    text_index: TextIndex,
    /// For each text part, its content index and the number of characters before it.
    part_offsets: Vec<(u64, usize)>,
    citation_count: usize,
}

impl CohereCitationTracker {
    pub fn add_text(&mut self, part: u64, text: &str) {
        if self.part_offsets.last().is_none_or(|(last, _)| *last != part) {
            self.part_offsets.push((part, self.text_index.char_count()));
        }
        self.text_index.push_str(text);
    }

    pub fn emit_citations(&mut self, citations: &Value, sink: &mut dyn EventSink) {
        let all = match citations {
            Value::Array(all) => all.as_slice(),
            Value::Object(_) => std::slice::from_ref(citations),
            _ => return,
        };
        if all.is_empty() {
            return;
        }
        let (mut cited, mut rest) = (Vec::new(), Vec::new());
        for citation in all {
            match self.find_claim(citation).filter(|_| self.citation_count < MAX_CITATIONS) {
                Some(claim) => cited.extend(cited_sources(citation, &claim)),
                None => rest = vec![CITATIONS_FIELD.to_owned()],
            }
            self.citation_count += 1;
        }
        let json = json!(all).to_string();
        let citation_set = CitationSet {
            scope: FieldScope::Message,
            name: CITATIONS_FIELD,
            json: &json,
            citations: &cited,
            untranslated_fields: &rest,
        };
        sink.push_event(ResponseEvent::Citations(citation_set));
    }

    /// Returns the cited range in characters of the full text; `None` if the citation does not refer to text.
    fn find_claim(&self, citation: &Value) -> Option<Range<usize>> {
        if citation["type"].as_str().is_some_and(|kind| kind != "TEXT_CONTENT") {
            return None;
        }
        let at = |key: &str| citation[key].as_u64().and_then(|at| usize::try_from(at).ok());
        let part = citation["content_index"].as_u64().unwrap_or_default();
        let before = self
            .part_offsets
            .iter()
            .find(|(at, _)| *at == part)
            .or_else(|| self.part_offsets.first())
            .map(|(_, at)| *at)?;
        let at = before.checked_add(at("start")?)?..before.checked_add(at("end")?)?;
        self.text_index.locate_chars(at, citation["text"].as_str())
    }
}

fn cited_sources<'a>(citation: &'a Value, claim: &'a Range<usize>) -> impl Iterator<Item = Citation> + 'a {
    let all = citation["sources"].as_array().into_iter().flatten();
    all.map(|source| {
        let id = source["id"].as_str().unwrap_or_default();
        let document = if source["type"] == "tool" { &source["tool_output"] } else { &source["document"] };
        let title = TITLE_KEYS.iter().map(|key| &document[key]).find(|title| title.is_string()).unwrap_or(&Value::Null);
        let text = TEXT_KEYS.iter().find_map(|key| document[key].as_str()).map(ToOwned::to_owned);
        let text = text.or_else(|| document.is_object().then(|| document.to_string())).unwrap_or_default();
        let url = document["url"].as_str().filter(|url| url.contains("://"));
        // Cohere numbers tool results, and documents that have no id. The number is the last part of the id.
        let number = id.rsplit(':').next().and_then(|number| number.parse().ok()).unwrap_or_default();
        let source = search_result_source(url.unwrap_or(id), title, &text, number);
        Citation { document_id: Some(id.to_owned()), ..Citation::without_marker(claim.clone(), source) }
    })
}
