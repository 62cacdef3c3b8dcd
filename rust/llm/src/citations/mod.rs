//! Citation formats of Anthropic and Bedrock Converse, and the conversion between them. The submodules locate citations
//! in the response text.

pub(crate) mod cited_text;
pub(crate) mod text_index;

pub use crate::citations::cited_text::{
    ANNOTATIONS_FIELD, Citation, CitationSet, parse_chat_annotations, search_result_source, split_cited_blocks,
    web_page_source,
};
pub use crate::citations::text_index::{MAX_CITATIONS, MAX_SOURCE_BYTES, TextIndex};

use serde_json::{Value, json};

use crate::fields::Fields;

/// Location types: name in Anthropic's format, name in Converse's format, and Anthropic's keys for the index, the start
/// and the end.
const LOCATION_TYPES: [(&str, &str, [&str; 3]); 4] = [
    ("char_location", "documentChar", ["document_index", "start_char_index", "end_char_index"]),
    ("page_location", "documentPage", ["document_index", "start_page_number", "end_page_number"]),
    ("content_block_location", "documentChunk", ["document_index", "start_block_index", "end_block_index"]),
    ("search_result_location", "searchResultLocation", ["search_result_index", "start_block_index", "end_block_index"]),
];
const WEB_PAGE_LOCATION: &str = "web_search_result_location";

/// Converts a list of citations to Anthropic's format. `None` if one of them has neither Anthropic's nor Converse's
/// format.
pub fn to_anthropic(list: &Value) -> Option<Vec<Value>> {
    list.as_array()?
        .iter()
        .map(|item| if item["type"].is_string() { Some(item.clone()) } else { converse_to_anthropic(item) })
        .collect()
}

/// Converts a list of citations to Converse's format. `None` if one of them has neither Anthropic's nor Converse's
/// format.
pub fn to_converse(list: &Value) -> Option<Vec<Value>> {
    list.as_array()?
        .iter()
        .map(|item| if item["location"].is_object() { Some(item.clone()) } else { anthropic_to_converse(item) })
        .collect()
}

/// Converts citations of an earlier response to Anthropic's format, to be sent in a new request. `None` if one cites a
/// web page without `encrypted_index`, which only the provider that made the citation can issue.
pub fn to_anthropic_request(list: &Value) -> Option<Vec<Value>> {
    let is_unproved = |item: &Value| item["type"] == WEB_PAGE_LOCATION && item["encrypted_index"] == "";
    let is_of_the_web = |item: &Value| item["location"].get("web").is_some() || is_unproved(item);
    if list.as_array()?.iter().any(is_of_the_web) { None } else { to_anthropic(list) }
}

pub fn to_converse_request(list: &Value) -> Option<Vec<Value>> {
    if list.as_array()?.iter().any(|item| item["type"] == WEB_PAGE_LOCATION) { None } else { to_converse(list) }
}

fn converse_to_anthropic(citation: &Value) -> Option<Value> {
    let (location_kind, at) = citation["location"].as_object()?.iter().next()?;
    let cited: String = join_texts(&citation["sourceContent"]);
    let mut fields = Fields::new();
    let mut set_field = |key: &str, value: &Value| drop(fields.insert(key.to_owned(), value.clone()));
    if location_kind == "web" {
        return Some(web_page_source(at["url"].as_str().unwrap_or_default(), &citation["title"], &cited));
    }
    let (kind, _, names) = LOCATION_TYPES.iter().find(|(_, candidate, _)| candidate == location_kind)?;
    let is_found = *kind == "search_result_location";
    let number = if is_found { &at["searchResultIndex"] } else { &at["documentIndex"] };
    set_field("type", &(*kind).into());
    set_field("cited_text", &cited.into());
    for (name, value) in names.iter().zip([number, &at["start"], &at["end"]]) {
        set_field(name, value);
    }
    if is_found {
        set_field("source", citation.get("source").unwrap_or(&"".into()));
        set_field("title", &citation["title"]);
    } else {
        set_field("document_title", &citation["title"]);
    }
    Some(fields.into())
}

fn anthropic_to_converse(citation: &Value) -> Option<Value> {
    let kind = citation["type"].as_str()?;
    let title = citation.get("title").or_else(|| citation.get("document_title"));
    let location = if kind == WEB_PAGE_LOCATION {
        json!({"web": {"url": citation["url"]}})
    } else {
        let (_, location_kind, [number, start, end]) =
            LOCATION_TYPES.iter().find(|(candidate, ..)| *candidate == kind)?;
        let index = if *number == "document_index" { "documentIndex" } else { "searchResultIndex" };
        json!({*location_kind: {index: citation[number], "start": citation[start], "end": citation[end]}})
    };
    let mut fields = Fields::new();
    for (key, value) in [("title", title), ("source", citation.get("source"))] {
        if let Some(value) = value.filter(|value| value.is_string()) {
            fields.insert(key.into(), value.clone());
        }
    }
    if let Some(text) = citation["cited_text"].as_str().filter(|text| !text.is_empty()) {
        fields.insert("sourceContent".into(), json!([{"text": text}]));
    }
    fields.insert("location".into(), location);
    Some(fields.into())
}

fn join_texts(parts: &Value) -> String {
    parts.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_each_location_type_in_both_directions() {
        let texts = json!([{"text": "cited"}]);
        for (anthropic, location, source) in [
            (
                json!({"type": "char_location", "cited_text": "cited", "document_index": 1, "start_char_index": 2,
                    "end_char_index": 3, "document_title": "A"}),
                json!({"documentChar": {"documentIndex": 1, "start": 2, "end": 3}}),
                None,
            ),
            (
                json!({"type": "page_location", "cited_text": "cited", "document_index": 1, "start_page_number": 2,
                    "end_page_number": 3, "document_title": "A"}),
                json!({"documentPage": {"documentIndex": 1, "start": 2, "end": 3}}),
                None,
            ),
            (
                json!({"type": "content_block_location", "cited_text": "cited", "document_index": 1,
                    "start_block_index": 2, "end_block_index": 3, "document_title": "A"}),
                json!({"documentChunk": {"documentIndex": 1, "start": 2, "end": 3}}),
                None,
            ),
            (
                json!({"type": "search_result_location", "cited_text": "cited", "search_result_index": 1,
                    "start_block_index": 2, "end_block_index": 3, "source": "s", "title": "A"}),
                json!({"searchResultLocation": {"searchResultIndex": 1, "start": 2, "end": 3}}),
                Some("s"),
            ),
            (
                json!({"type": "web_search_result_location", "cited_text": "cited", "url": "https://a.example",
                    "title": "A", "encrypted_index": ""}),
                json!({"web": {"url": "https://a.example"}}),
                None,
            ),
        ] {
            let mut converse = json!({"title": "A", "sourceContent": texts, "location": location});
            if let Some(source) = source {
                converse["source"] = source.into();
            }
            assert_eq!(to_anthropic(&json!([converse])), Some(vec![anthropic.clone()]));
            assert_eq!(to_converse(&json!([anthropic])), Some(vec![converse.clone()]));
            assert_eq!(to_anthropic(&json!([anthropic])), Some(vec![anthropic]));
            assert_eq!(to_converse(&json!([converse])), Some(vec![converse]));
        }
    }

    #[test]
    fn web_page_citations_are_not_sent_back_without_their_encrypted_index() {
        let cited = json!([{"type": "web_search_result_location", "url": "u", "title": "t", "encrypted_index": "e",
            "cited_text": "c"}]);
        let converted = to_converse(&cited).unwrap();
        assert_eq!(converted[0]["location"], json!({"web": {"url": "u"}}));
        assert_eq!((to_converse_request(&cited), to_anthropic_request(&converted.into())), (None, None));
        assert_eq!(to_anthropic_request(&cited), Some(cited.as_array().unwrap().clone()));
        assert_eq!(to_anthropic_request(&json!([web_page_source("u", &json!("t"), "c")])), None, "it was never sealed");
    }

    #[test]
    fn does_not_convert_unknown_formats() {
        for list in [json!(["https://a.example"]), json!([{"start": 1, "end": 2}]), json!({}), json!([{"type": 1}])] {
            assert_eq!((to_anthropic(&list), to_converse(&list)), (None, None), "{list}");
        }
        assert_eq!(to_converse(&json!([{"type": "of_tomorrow"}])), None);
        assert_eq!(to_anthropic(&json!([{"location": {"ofTomorrow": {}}}])), None);
    }
}
