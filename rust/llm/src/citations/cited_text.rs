//! Stretches of an answer's text and where they are from, whoever cited them, and how each dialect has them.

use std::ops::Range;

use serde_json::{Value, json};

use super::to_converse;
use crate::chat::{event::FieldScope, request::Fields};

/// A stretch of what is said, counted in characters of all of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Citation {
    /// What a reader sees as cited: the words themselves, or a mark behind them.
    pub marker_range: Range<usize>,
    /// The words that are from there.
    pub claim_range: Range<usize>,
    /// Where from, in Anthropic's words.
    pub source: Value,
    /// What the caller calls the document that it gave.
    pub document_id: Option<String>,
}

/// What an answer says in one place of where it is from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CitationSet<'a> {
    /// As its provider says it: for who has no words of its own for it, and beside them for who is not strict.
    pub scope: FieldScope,
    pub name: &'a str,
    pub json: &'a str,
    pub citations: &'a [Citation],
    /// What of it is no citation, or cannot be told as one.
    pub untranslated_fields: &'a [String],
}

/// What chat completions call citations, which are in the caller's own words already.
pub const ANNOTATIONS_FIELD: &str = "annotations";

impl CitationSet<'_> {
    /// What stands beside the words for a caller that has annotations of its own.
    pub fn non_annotation_field(&self) -> Option<(FieldScope, &str, &str)> {
        (self.name != ANNOTATIONS_FIELD).then_some((self.scope, self.name, self.json))
    }

    /// What who is strict is not told of it.
    pub fn dropped_names(&self, is_told: bool) -> impl Iterator<Item = &str> {
        let all = (!is_told).then_some(self.name);
        self.untranslated_fields.iter().map(String::as_str).filter(move |_| is_told).chain(all)
    }

    pub fn to_anthropic(self, documents: &[String]) -> Vec<Value> {
        self.citations.iter().map(|one| one.resolve_source(documents)).collect()
    }
}

impl Citation {
    /// Words that are their own mark.
    pub fn without_marker(claim_range: Range<usize>, source: Value) -> Self {
        Self { marker_range: claim_range.clone(), claim_range, source, document_id: None }
    }

    /// How many bytes are said of where it is from.
    pub fn source_bytes(&self) -> usize {
        let said = self.source.as_object().into_iter().flat_map(Fields::values);
        said.filter_map(Value::as_str).map(str::len).sum()
    }

    /// Where from, and which of the caller's documents that is.
    pub fn resolve_source(&self, documents: &[String]) -> Value {
        let mut source = self.source.clone();
        let at = self.document_id.as_ref().and_then(|id| documents.iter().position(|one| one == id));
        if let Some(at) = at {
            source["search_result_index"] = at.into();
        }
        source
    }

    pub fn to_converse(&self, documents: &[String]) -> Option<Value> {
        to_converse(&json!([self.resolve_source(documents)]))?.pop()
    }

    /// A page that has an address, and what it is called.
    fn web_page(&self) -> Option<(&str, &str)> {
        let url =
            ["url", "source"].iter().find_map(|key| self.source[key].as_str().filter(|url| url.contains("://")))?;
        Some((url, self.source["title"].as_str().filter(|title| !title.is_empty()).unwrap_or(url)))
    }

    /// As chat completions have it, which know pages alone.
    pub fn to_chat_annotation(&self) -> Option<Value> {
        let (url, title) = self.web_page()?;
        let Range { start, end } = self.marker_range;
        let citation = json!({"start_index": start, "end_index": end, "url": url, "title": title});
        Some(json!({"type": "url_citation", "url_citation": citation}))
    }

    /// As a response has it, of a text that begins after so many characters.
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

/// Citations as chat completions have them, and those of them that are something else.
pub fn parse_chat_annotations(annotations: &Value) -> (Vec<Citation>, Vec<Value>) {
    let (mut cited, mut others) = (Vec::new(), Vec::new());
    for one in annotations.as_array().into_iter().flatten() {
        match parse_url_citation(&one["url_citation"]) {
            Some(found) => cited.push(found),
            None => others.push(one.clone()),
        }
    }
    (cited, others)
}

fn parse_url_citation(citation: &Value) -> Option<Citation> {
    let at = |key: &str| citation[key].as_u64().and_then(|at| usize::try_from(at).ok());
    let page = web_page_source(citation["url"].as_str()?, &citation["title"], "");
    Some(Citation::without_marker(at("start_index")?..at("end_index")?, page))
}

/// A page of the web in Anthropic's words. Nothing seals it here.
pub fn web_page_source(url: &str, title: &Value, text: &str) -> Value {
    let title = if title.is_string() { title.clone() } else { Value::Null };
    json!({"type": "web_search_result_location", "cited_text": text, "url": url, "title": title, "encrypted_index": ""})
}

/// Something that the caller or a tool of its own gave, which is cited as a whole.
pub fn search_result_source(source: &str, title: &Value, text: &str, index: usize) -> Value {
    let title = if title.is_string() { title.clone() } else { Value::Null };
    json!({"type": "search_result_location", "cited_text": text, "search_result_index": index, "source": source,
        "title": title, "start_block_index": 0, "end_block_index": 1})
}

/// Cuts the blocks that are texts where they are cited, and tells each piece where it is from. What overlaps is one piece.
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
        let (mut pieces, mut rest, mut at) = (Vec::new(), text, begins);
        while let Some((claim, sources)) = groups.next_if(|(claim, _)| claim.end <= before) {
            let (plain, more) = split_after_chars(rest, claim.start.saturating_sub(at));
            at = at.max(claim.start);
            let (words, more) = split_after_chars(more, claim.end.saturating_sub(at));
            (rest, at) = (more, claim.end.max(at));
            push_part(&mut pieces, plain, Vec::new());
            push_part(&mut pieces, words, sources);
        }
        push_part(&mut pieces, rest, Vec::new());
        out.extend(pieces.into_iter().map(|(words, sources)| {
            let mut fields = block.as_object().cloned().unwrap_or_else(Fields::new);
            fields.insert("text".into(), words.into());
            if !sources.is_empty() {
                fields.insert("citations".into(), sources.into());
            }
            Value::Object(fields)
        }));
    }
    out
}

/// What overlaps is cited together, each place once.
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

/// Adds a piece of a text. Who is given a text of nothing but spaces refuses it, so they stay with what is before them.
fn push_part(pieces: &mut Vec<(String, Vec<Value>)>, words: &str, sources: Vec<Value>) {
    match pieces.last_mut() {
        _ if words.is_empty() => (),
        Some((last, known)) if words.trim().is_empty() || last.trim().is_empty() => {
            last.push_str(words);
            known.extend(sources);
        }
        _ => pieces.push((words.to_owned(), sources)),
    }
}

/// A text behind so many characters.
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
            let told = split_cited_blocks(blocks(), cited);
            told.iter().map(|one| format!("{}{}", one["text"], one["citations"])).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(cited(&[]), r#""Øl é 𝄞. b"null nullnull"#);
        assert_eq!(cited(&[(5..6, "a")]), r#""Øl é "null "𝄞"["a"] ". b"null nullnull"#);
        assert_eq!(cited(&[(0..9, "a"), (0..9, "a")]), r#""Øl é 𝄞. b"["a"] nullnull"#);
        assert_eq!(cited(&[(3..6, "b"), (0..4, "a")]), r#""Øl é 𝄞"["a","b"] ". b"null nullnull"#);
        assert_eq!(cited(&[(0..4, "a"), (5..9, "b")]), r#""Øl é "["a"] "𝄞. b"["b"] nullnull"#);
        assert_eq!(cited(&[(5..99, "beyond")]), r#""Øl é 𝄞. b"null nullnull"#);
        // What is cited across blocks is told with the one in which it ends.
        let texts = vec![json!({"text": "ab"}), json!({"thinking": "t"}), json!({"text": "cd"})];
        let across = split_cited_blocks(texts, vec![(1..3, json!("a"))]);
        assert_eq!(
            json!(across),
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
        let given = cited(search_result_source("d1", &json!("D"), "t", 0));
        assert_eq!((given.to_chat_annotation(), given.to_response_annotation(0)), (None, None));
        let file = cited(json!({"type": "page_location", "file_id": "file_1", "document_index": 2,
            "document_title": "Map"}));
        assert_eq!(file.to_chat_annotation(), None);
        assert_eq!(
            file.to_response_annotation(0),
            Some(json!({"type": "file_citation", "file_id": "file_1", "filename": "Map", "index": 2}))
        );
    }
}
