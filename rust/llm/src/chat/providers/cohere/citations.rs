//! Where Cohere says that an answer is from: documents that the caller gave, and what tools gave back.

use std::ops::Range;

use serde_json::{Value, json};

use crate::{
    chat::event::{Piece, Place, Taker},
    citations::{Cited, Cites, MOST_CITED, Spoken, result},
};

const CITATIONS: &str = "citations";
/// What a document or what a tool gave back is called, what it says, and where it is.
const TITLES: [&str; 2] = ["title", "name"];
const TEXTS: [&str; 3] = ["text", "snippet", "content"];

/// Finds the stretches that are cited.
#[derive(Default)]
pub struct Citing {
    said: Spoken,
    /// Which part of the content each text is, and how many characters were said before it.
    parts: Vec<(u64, usize)>,
    told: usize,
}

impl Citing {
    pub fn hear(&mut self, part: u64, text: &str) {
        if self.parts.last().is_none_or(|(last, _)| *last != part) {
            self.parts.push((part, self.said.chars()));
        }
        self.said.push(text);
    }

    pub fn tell(&mut self, citations: &Value, taker: &mut dyn Taker) {
        let all = match citations {
            Value::Array(all) => all.as_slice(),
            Value::Object(_) => std::slice::from_ref(citations),
            _ => return,
        };
        if all.is_empty() {
            return;
        }
        let (mut cited, mut rest) = (Vec::new(), Vec::new());
        for one in all {
            match self.find(one).filter(|_| self.told < MOST_CITED) {
                Some(claim) => cited.extend(sources(one, &claim)),
                None => rest = vec![CITATIONS.to_owned()],
            }
            self.told += 1;
        }
        let json = json!(all).to_string();
        let told = Cites { place: Place::Message, name: CITATIONS, json: &json, cited: &cited, rest: &rest };
        taker.take(Piece::Cites(told));
    }

    /// What is cited of the text, in characters of all of it.
    fn find(&self, citation: &Value) -> Option<Range<usize>> {
        if citation["type"].as_str().is_some_and(|kind| kind != "TEXT_CONTENT") {
            return None;
        }
        let at = |key: &str| citation[key].as_u64().and_then(|at| usize::try_from(at).ok());
        let part = citation["content_index"].as_u64().unwrap_or_default();
        let before = self.parts.iter().find(|(at, _)| *at == part).or_else(|| self.parts.first()).map(|(_, at)| *at)?;
        let at = before.checked_add(at("start")?)?..before.checked_add(at("end")?)?;
        self.said.of_chars(at, citation["text"].as_str())
    }
}

fn sources<'a>(citation: &'a Value, claim: &'a Range<usize>) -> impl Iterator<Item = Cited> + 'a {
    let all = citation["sources"].as_array().into_iter().flatten();
    all.map(|source| {
        let id = source["id"].as_str().unwrap_or_default();
        let said = if source["type"] == "tool" { &source["tool_output"] } else { &source["document"] };
        let title = TITLES.iter().map(|key| &said[key]).find(|title| title.is_string()).unwrap_or(&Value::Null);
        let text = TEXTS.iter().find_map(|key| said[key].as_str()).map(ToOwned::to_owned);
        let text = text.or_else(|| said.is_object().then(|| said.to_string())).unwrap_or_default();
        let url = said["url"].as_str().filter(|url| url.contains("://"));
        // Who gives no names has the documents numbered, and so is what a tool gave back.
        let number = id.rsplit(':').next().and_then(|number| number.parse().ok()).unwrap_or_default();
        let source = result(url.unwrap_or(id), title, &text, number);
        Cited { document: Some(id.to_owned()), ..Cited::of(claim.clone(), source) }
    })
}
