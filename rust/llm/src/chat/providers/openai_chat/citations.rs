//! Where those say that an answer is from who are compatible with `OpenAI`: in annotations as it has them, or in a list of pages
//! whose numbers stand in the text, as Perplexity has it.

use serde_json::{Value, value::RawValue};

use crate::{
    chat::{
        event::{Piece, Place, Taker},
        request::says_nothing,
    },
    citations::{ANNOTATIONS, Cites, MOST_CITED, Spoken, of_chat},
};

const PAGES: &str = "citations";
const FOUND: &str = "search_results";
/// What is told of a page; the rest of what was found is not.
const TOLD: [&str; 3] = ["url", "title", "snippet"];
/// So many names of what is not told are enough.
const TOLD_NAMES: usize = 16;

#[derive(Default)]
pub struct Citing {
    pub said: Spoken,
    /// What stands beside the answer: chunks repeat it.
    beside: Vec<(&'static str, String)>,
    told: usize,
    /// Where the mark ends that was told last.
    marked: usize,
}

impl Citing {
    pub fn keep(&mut self, name: &'static str, json: &RawValue) {
        self.beside.retain(|(known, _)| *known != name);
        self.beside.push((name, json.get().to_owned()));
    }

    /// Annotations; what is none of the kind that everybody has stands beside the answer.
    pub fn annotate(&mut self, json: &str, taker: &mut dyn Taker) {
        let all = serde_json::from_str(json).unwrap_or_default();
        let (mut cited, others) = of_chat(&all);
        let room = MOST_CITED.saturating_sub(self.told);
        let rest = if cited.len() > room { vec![ANNOTATIONS.to_owned()] } else { Vec::new() };
        cited.truncate(room);
        self.told += cited.len();
        for one in &mut cited {
            // It shows a link, and that stands behind what is from there.
            one.claim = self.said.claim(&one.mark, self.marked)..one.mark.end;
            self.marked = one.mark.end;
        }
        if !cited.is_empty() {
            let all = Cites { place: Place::Message, name: ANNOTATIONS, json, cited: &cited, rest: &rest };
            taker.take(Piece::Cites(all));
        }
        if !others.is_empty() {
            let json = Value::from(others).to_string();
            taker.take(Piece::Aside { place: Place::Message, name: ANNOTATIONS, json: &json });
        }
    }

    /// Tells what stands beside the answer: by the numbers in the text, if there are some.
    pub fn tell(&self, taker: &mut dyn Taker) {
        let read = |name: &str| {
            let json = self.beside.iter().find(|(known, _)| *known == name).map(|(_, json)| json);
            json.and_then(|json| serde_json::from_str::<Vec<Value>>(json).ok()).unwrap_or_default()
        };
        let (pages, found) = (read(PAGES), read(FOUND));
        let listed = listed(&pages, &found);
        let (cited, is_all) = self.said.marked(&listed);
        let is_all = is_all && pages.len().max(found.len()) == listed.len();
        let mut told = cited.as_slice();
        for (name, json) in &self.beside {
            if cited.is_empty() {
                taker.take(Piece::Aside { place: Place::Answer, name, json });
                continue;
            }
            let rest = if *name == FOUND { left(&found, is_all) } else { unmarked(is_all, PAGES) };
            // With the first of the two, and once.
            let cited = std::mem::take(&mut told);
            taker.take(Piece::Cites(Cites { place: Place::Answer, name, json, cited, rest: &rest }));
        }
    }
}

/// The pages in the order of their numbers: addresses, titles and what they say.
fn listed(pages: &[Value], found: &[Value]) -> Vec<(String, Value, String)> {
    let told = |url: &str, of: &Value| {
        let text = of["snippet"].as_str().unwrap_or_default();
        (url.to_owned(), of["title"].clone(), text.to_owned())
    };
    let found = &found[..found.len().min(MOST_CITED)];
    if pages.is_empty() {
        return found.iter().map(|one| told(one["url"].as_str().unwrap_or_default(), one)).collect();
    }
    let page = |page: &Value| {
        let url = page.as_str().or_else(|| page["url"].as_str()).unwrap_or_default();
        told(url, found.iter().find(|one| one["url"] == url).unwrap_or(page))
    };
    pages.iter().take(MOST_CITED).map(page).collect()
}

fn unmarked(is_all: bool, name: &str) -> Vec<String> {
    if is_all { Vec::new() } else { vec![name.to_owned()] }
}

/// What of the results is not told with what they are cited for.
fn left(found: &[Value], is_all: bool) -> Vec<String> {
    let mut left = unmarked(is_all, FOUND);
    let keys = found.iter().filter_map(Value::as_object).flatten().filter(|(_, value)| !says_nothing(value));
    for (key, _) in keys.filter(|(key, _)| !TOLD.contains(&key.as_str())) {
        let name = format!("{FOUND}.{key}");
        if !left.contains(&name) && left.len() < TOLD_NAMES {
            left.push(name);
        }
    }
    left
}
