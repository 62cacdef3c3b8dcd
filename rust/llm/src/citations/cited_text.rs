//! Citations of ranges of the response text. They are independent of the provider and can be converted to each API
//! format.

use std::ops::Range;

use serde_json::{Value, json};

use super::to_converse;
use crate::{chat::field_scope::FieldScope, fields::Fields};

/// Citation of a range of the response text. All ranges count characters from the start of the complete text.
#[derive(Debug, Clone, PartialEq)]
pub struct Citation {
    /// Range that a client shows as cited: the claim itself, or a marker such as `[1]` after it.
    pub marker_range: Range<usize>,
    /// Range of the text that the source supports.
    pub claim_range: Range<usize>,
    /// Source, in Anthropic's citation format.
    pub source: Value,
    /// Client's ID of the cited document, if the client sent that document.
    pub document_id: Option<String>,
}

/// Citations that a response contains in one scope. Client formats without citations get the provider's own citation
/// field (`scope`, `name`, `json`) unchanged. Formats with citations get it in addition to the citations, unless the
/// client requested strict compliance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CitationSet<'a> {
    /// Part of the response that the provider's citation field belongs to.
    pub scope: FieldScope,
    pub name: &'a str,
    pub json: &'a str,
    pub citations: &'a [Citation],
    /// Names of the parts of the field that are not citations or cannot be converted to one.
    pub untranslated_fields: &'a [String],
}

/// Name of the citation field in chat completions. Its value is already in the client's format only for clients of chat
/// completions.
pub const ANNOTATIONS_FIELD: &str = "annotations";

impl CitationSet<'_> {
    /// Returns scope, name and JSON of the provider's field, to be sent in addition to annotations. `None` if that
    /// field is `annotations` itself.
    pub fn non_annotation_field(&self) -> Option<(FieldScope, &str, &str)> {
        (self.name != ANNOTATIONS_FIELD).then_some((self.scope, self.name, self.json))
    }

    /// Returns the names to report as dropped to a strict client. These are the untranslated parts, or the complete
    /// field if `is_reported` is false because no citation was translated.
    pub fn dropped_names(&self, is_reported: bool) -> impl Iterator<Item = &str> {
        let all = (!is_reported).then_some(self.name);
        self.untranslated_fields.iter().map(String::as_str).filter(move |_| is_reported).chain(all)
    }

    pub fn to_anthropic(self, documents: &[String]) -> Vec<Value> {
        self.citations.iter().map(|citation| citation.resolve_source(documents)).collect()
    }
}

impl Citation {
    /// Creates a citation without a separate marker: the claim itself is shown as cited.
    pub fn without_marker(claim_range: Range<usize>, source: Value) -> Self {
        Self { marker_range: claim_range.clone(), claim_range, source, document_id: None }
    }

    /// Returns the total length in bytes of the strings in the source.
    pub fn source_bytes(&self) -> usize {
        let field_values = self.source.as_object().into_iter().flat_map(Fields::values);
        field_values.filter_map(Value::as_str).map(str::len).sum()
    }

    /// Returns the source. If it is a document of the client, adds the document's index.
    pub fn resolve_source(&self, documents: &[String]) -> Value {
        let mut source = self.source.clone();
        let at =
            self.document_id.as_ref().and_then(|id| documents.iter().position(|id_of_document| id_of_document == id));
        if let Some(at) = at {
            source["search_result_index"] = at.into();
        }
        source
    }

    pub fn to_converse(&self, documents: &[String]) -> Option<Value> {
        to_converse(&json!([self.resolve_source(documents)]))?.pop()
    }

    /// Returns the URL and title of a cited web page. The URL replaces a missing title.
    fn web_page(&self) -> Option<(&str, &str)> {
        let url =
            ["url", "source"].iter().find_map(|key| self.source[key].as_str().filter(|url| url.contains("://")))?;
        Some((url, self.source["title"].as_str().filter(|title| !title.is_empty()).unwrap_or(url)))
    }

    /// Converts the citation to an annotation of chat completions; `None` if the source is not a web page, because no
    /// other type exists there.
    pub fn to_chat_annotation(&self) -> Option<Value> {
        let (url, title) = self.web_page()?;
        let Range { start, end } = self.marker_range;
        let citation = json!({"start_index": start, "end_index": end, "url": url, "title": title});
        Some(json!({"type": "url_citation", "url_citation": citation}))
    }

    /// Converts the citation to an annotation of the Responses API; `None` if the source is neither a web page nor a
    /// file. `before` is the number of characters before the annotated text.
    pub fn to_response_annotation(&self, before: usize) -> Option<Value> {
        if let Some((url, title)) = self.web_page() {
            let [start, end] = [self.marker_range.start, self.marker_range.end].map(|at| at.saturating_sub(before));
            return Some(json!({"type": "url_citation", "start_index": start, "end_index": end, "url": url,
                "title": title}));
        }
        let file = self.source["file_id"].as_str()?;
        let name = self.source["document_title"].as_str().unwrap_or_default();
        Some(json!({"type": "file_citation", "file_id": file, "filename": name,
            "index": self.source["document_index"].as_u64().unwrap_or_default()}))
    }
}

/// Parses the annotations of chat completions. The second list contains those that are not URL citations.
pub fn parse_chat_annotations(annotations: &Value) -> (Vec<Citation>, Vec<Value>) {
    let (mut cited, mut others) = (Vec::new(), Vec::new());
    for item in annotations.as_array().into_iter().flatten() {
        match parse_url_citation(&item["url_citation"]) {
            Some(citation) => cited.push(citation),
            None => others.push(item.clone()),
        }
    }
    (cited, others)
}

fn parse_url_citation(citation: &Value) -> Option<Citation> {
    let at = |key: &str| citation[key].as_u64().and_then(|at| usize::try_from(at).ok());
    let page = web_page_source(citation["url"].as_str()?, &citation["title"], "");
    Some(Citation::without_marker(at("start_index")?..at("end_index")?, page))
}

/// Returns a web page as source in Anthropic's format. `encrypted_index` is empty, because only Anthropic can issue it.
pub fn web_page_source(url: &str, title: &Value, text: &str) -> Value {
    // Strict clients require a title.
    let title = if title.is_string() { title.clone() } else { url.into() };
    json!({"type": "web_search_result_location", "cited_text": text, "url": url, "title": title, "encrypted_index": ""})
}

/// Returns content of the client or of its tools as source in Anthropic's format. The content is cited as one block.
pub fn search_result_source(source: &str, title: &Value, text: &str, index: usize) -> Value {
    let title = if title.is_string() { title.clone() } else { Value::Null };
    json!({"type": "search_result_location", "cited_text": text, "search_result_index": index, "source": source,
        "title": title, "start_block_index": 0, "end_block_index": 1})
}

/// Splits text blocks at the boundaries of citations and attaches the sources to each part. Overlapping citations share
/// one part.
pub fn split_cited_blocks(blocks: Vec<Value>, cited: Vec<(Range<usize>, Value)>) -> Vec<Value> {
    let (mut out, mut before, mut groups) = (Vec::new(), 0, group_overlapping(cited).into_iter().peekable());
    for block in blocks {
        let Some(text) = block["text"].as_str() else {
            out.push(block);
            continue;
        };
        let begins = before;
        before += text.chars().count();
        if block.get("citations").is_some() {
            out.push(block);
            continue;
        }
        let (mut parts, mut rest, mut at) = (Vec::new(), text, begins);
        while let Some((claim, sources)) = groups.next_if(|(claim, _)| claim.end <= before) {
            let (plain, more) = split_after_chars(rest, claim.start.saturating_sub(at));
            at = at.max(claim.start);
            let (cited_text, more) = split_after_chars(more, claim.end.saturating_sub(at));
            (rest, at) = (more, claim.end.max(at));
            push_part(&mut parts, plain, Vec::new());
            push_part(&mut parts, cited_text, sources);
        }
        push_part(&mut parts, rest, Vec::new());
        out.extend(parts.into_iter().map(|(part_text, sources)| {
            let mut fields = block.as_object().cloned().unwrap_or_else(Fields::new);
            fields.insert("text".into(), part_text.into());
            if !sources.is_empty() {
                fields.insert("citations".into(), sources.into());
            }
            Value::Object(fields)
        }));
    }
    out
}

/// Merges overlapping citations. Each group lists a source once.
fn group_overlapping(mut cited: Vec<(Range<usize>, Value)>) -> Vec<(Range<usize>, Vec<Value>)> {
    cited.sort_by_key(|(claim, _)| (claim.start, claim.end));
    let mut groups: Vec<(Range<usize>, Vec<Value>)> = Vec::new();
    for (claim, source) in cited {
        match groups.last_mut().filter(|(last, _)| claim.start < last.end) {
            Some((last, sources)) => {
                last.end = last.end.max(claim.end);
                if !sources.contains(&source) {
                    sources.push(source);
                }
            }
            None => groups.push((claim, vec![source])),
        }
    }
    groups
}

/// Appends a part of a text. Joins it with the part before if either is only whitespace, because providers reject text
/// blocks of whitespace.
fn push_part(parts: &mut Vec<(String, Vec<Value>)>, text: &str, sources: Vec<Value>) {
    match parts.last_mut() {
        _ if text.is_empty() => (),
        Some((last, existing)) if text.trim().is_empty() || last.trim().is_empty() => {
            last.push_str(text);
            existing.extend(sources);
        }
        _ => parts.push((text.to_owned(), sources)),
    }
}

/// Splits a text after a number of characters.
fn split_after_chars(text: &str, after: usize) -> (&str, &str) {
    text.split_at(text.char_indices().nth(after).map_or(text.len(), |(at, _)| at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_texts_only_at_the_boundaries_of_citations() {
        let blocks = || vec![json!({"type": "text", "text": "Øl é 𝄞. b"}), json!({"type": "tool_use"})];
        let cited = |ranges: &[(Range<usize>, &str)]| {
            let cited = ranges.iter().map(|(claim, source)| (claim.clone(), json!(source))).collect();
            let parts = split_cited_blocks(blocks(), cited);
            parts.iter().map(|item| format!("{}{}", item["text"], item["citations"])).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(cited(&[]), r#""Øl é 𝄞. b"null nullnull"#);
        assert_eq!(cited(&[(5..6, "a")]), r#""Øl é "null "𝄞"["a"] ". b"null nullnull"#);
        assert_eq!(cited(&[(0..9, "a"), (0..9, "a")]), r#""Øl é 𝄞. b"["a"] nullnull"#);
        assert_eq!(cited(&[(3..6, "b"), (0..4, "a")]), r#""Øl é 𝄞"["a","b"] ". b"null nullnull"#);
        assert_eq!(cited(&[(0..4, "a"), (5..9, "b")]), r#""Øl é "["a"] "𝄞. b"["b"] nullnull"#);
        assert_eq!(cited(&[(5..99, "beyond")]), r#""Øl é 𝄞. b"null nullnull"#);
        // A citation that spans blocks is attached to the block in which it ends.
        let texts = vec![json!({"text": "ab"}), json!({"thinking": "t"}), json!({"text": "cd"})];
        let split_blocks = split_cited_blocks(texts, vec![(1..3, json!("a"))]);
        assert_eq!(
            json!(split_blocks),
            json!([{"text": "ab"}, {"thinking": "t"}, {"text": "c", "citations": ["a"]},
            {"text": "d"}])
        );
    }

    #[test]
    fn openai_annotations_exist_only_for_web_pages_and_files() {
        let cited = |source: Value| Citation::without_marker(4..6, source);
        let on_the_web = cited(web_page_source("https://a.example", &Value::Null, ""));
        assert_eq!(on_the_web.to_response_annotation(4).unwrap()["end_index"], 2);
        assert_eq!(on_the_web.to_chat_annotation().unwrap()["url_citation"]["title"], "https://a.example");
        let cited_result = cited(search_result_source("d1", &json!("D"), "t", 0));
        assert_eq!((cited_result.to_chat_annotation(), cited_result.to_response_annotation(0)), (None, None));
        let file = cited(json!({"type": "page_location", "file_id": "file_1", "document_index": 2,
            "document_title": "Map"}));
        assert_eq!(file.to_chat_annotation(), None);
        assert_eq!(
            file.to_response_annotation(0),
            Some(json!({"type": "file_citation", "file_id": "file_1", "filename": "Map", "index": 2}))
        );
    }
}
