//! Where a text is from, in Anthropic's words and in those that Converse has for the same places; what else there is of it is
//! in the files beside this one.

mod by_block;
pub(crate) mod cited_text;
pub(crate) mod text_index;

pub use crate::citations::cited_text::{ANNOTATIONS, Cited, Cites, cut, of_chat, page, result};
pub use crate::citations::text_index::{MOST_CITED, MOST_TOLD, Spoken};
pub use by_block::ByBlock;

use serde_json::{Value, json};

use crate::chat::request::Fields;

/// A kind of place: Anthropic's word, Converse's, and what Anthropic calls the number of what is cited, and where it begins
/// and ends there.
const PLACES: [(&str, &str, [&str; 3]); 4] = [
    ("char_location", "documentChar", ["document_index", "start_char_index", "end_char_index"]),
    ("page_location", "documentPage", ["document_index", "start_page_number", "end_page_number"]),
    ("content_block_location", "documentChunk", ["document_index", "start_block_index", "end_block_index"]),
    ("search_result_location", "searchResultLocation", ["search_result_index", "start_block_index", "end_block_index"]),
];
const PAGE_OF_THE_WEB: &str = "web_search_result_location";

/// A list of citations as Anthropic has it; `None` where one of them is neither Anthropic's nor Converse's.
pub fn to_anthropic(list: &Value) -> Option<Vec<Value>> {
    list.as_array()?
        .iter()
        .map(|one| if one["type"].is_string() { Some(one.clone()) } else { anthropics(one) })
        .collect()
}

/// Likewise as Converse has it.
pub fn to_converse(list: &Value) -> Option<Vec<Value>> {
    list.as_array()?
        .iter()
        .map(|one| if one["location"].is_object() { Some(one.clone()) } else { converses(one) })
        .collect()
}

/// Likewise, to be said again: pages of the web are proved by what only whoever cited them has.
pub fn again_to_anthropic(list: &Value) -> Option<Vec<Value>> {
    let is_unproved = |one: &Value| one["type"] == PAGE_OF_THE_WEB && one["encrypted_index"] == "";
    let is_of_the_web = |one: &Value| one["location"].get("web").is_some() || is_unproved(one);
    if list.as_array()?.iter().any(is_of_the_web) { None } else { to_anthropic(list) }
}

pub fn again_to_converse(list: &Value) -> Option<Vec<Value>> {
    if list.as_array()?.iter().any(|one| one["type"] == PAGE_OF_THE_WEB) { None } else { to_converse(list) }
}

fn anthropics(citation: &Value) -> Option<Value> {
    let (place, at) = citation["location"].as_object()?.iter().next()?;
    let cited: String = texts(&citation["sourceContent"]);
    let mut told = Fields::new();
    let mut tell = |key: &str, value: &Value| drop(told.insert(key.to_owned(), value.clone()));
    if place == "web" {
        return Some(page(at["url"].as_str().unwrap_or_default(), &citation["title"], &cited));
    }
    let (kind, _, names) = PLACES.iter().find(|(_, own, _)| own == place)?;
    let is_found = *kind == "search_result_location";
    let number = if is_found { &at["searchResultIndex"] } else { &at["documentIndex"] };
    tell("type", &(*kind).into());
    tell("cited_text", &cited.into());
    for (name, value) in names.iter().zip([number, &at["start"], &at["end"]]) {
        tell(name, value);
    }
    if is_found {
        tell("source", citation.get("source").unwrap_or(&"".into()));
        tell("title", &citation["title"]);
    } else {
        tell("document_title", &citation["title"]);
    }
    Some(told.into())
}

fn converses(citation: &Value) -> Option<Value> {
    let kind = citation["type"].as_str()?;
    let title = citation.get("title").or_else(|| citation.get("document_title"));
    let location = if kind == PAGE_OF_THE_WEB {
        json!({"web": {"url": citation["url"]}})
    } else {
        let (_, place, [number, start, end]) = PLACES.iter().find(|(own, ..)| *own == kind)?;
        let index = if *number == "document_index" { "documentIndex" } else { "searchResultIndex" };
        json!({*place: {index: citation[number], "start": citation[start], "end": citation[end]}})
    };
    let mut told = Fields::new();
    for (key, value) in [("title", title), ("source", citation.get("source"))] {
        if let Some(value) = value.filter(|value| value.is_string()) {
            told.insert(key.into(), value.clone());
        }
    }
    if let Some(text) = citation["cited_text"].as_str().filter(|text| !text.is_empty()) {
        told.insert("sourceContent".into(), json!([{"text": text}]));
    }
    told.insert("location".into(), location);
    Some(told.into())
}

fn texts(parts: &Value) -> String {
    parts.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_a_word_in_either_dialect_and_comes_back_as_it_was() {
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
    fn a_page_of_the_web_is_told_and_never_said_again_without_its_proof() {
        let cited = json!([{"type": "web_search_result_location", "url": "u", "title": "t", "encrypted_index": "e",
            "cited_text": "c"}]);
        let told = to_converse(&cited).unwrap();
        assert_eq!(told[0]["location"], json!({"web": {"url": "u"}}));
        assert_eq!((again_to_converse(&cited), again_to_anthropic(&told.into())), (None, None));
        assert_eq!(again_to_anthropic(&cited), Some(cited.as_array().unwrap().clone()));
        assert_eq!(again_to_anthropic(&json!([page("u", &json!("t"), "c")])), None, "it was never sealed");
    }

    #[test]
    fn what_neither_of_them_has_is_not_told_as_if_they_had() {
        for list in [json!(["https://a.example"]), json!([{"start": 1, "end": 2}]), json!({}), json!([{"type": 1}])] {
            assert_eq!((to_anthropic(&list), to_converse(&list)), (None, None), "{list}");
        }
        assert_eq!(to_converse(&json!([{"type": "of_tomorrow"}])), None);
        assert_eq!(to_anthropic(&json!([{"location": {"ofTomorrow": {}}}])), None);
    }
}
