//! Where Gemini says that an answer is from: what it found (`groundingMetadata`), and what it recites (`citationMetadata`).

use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;

use crate::{
    chat::event::{Piece, Place, Taker},
    citations::{Cited, Cites, MOST_CITED, MOST_TOLD, Spoken, page, result},
};

const GROUNDING: &str = "groundingMetadata";
const RECITED: &str = "citationMetadata";

/// Finds the stretches that are cited.
#[derive(Default)]
pub struct Grounding {
    said: Spoken,
    /// Where each part begins that an answer has, in bytes: of a stream they are counted anew with each event.
    parts: Vec<usize>,
    /// What it found, which may come before it says what that is for.
    found: Vec<Value>,
    /// Streams say things again.
    told: Vec<Cited>,
    /// How many bytes were said of where things are from.
    weight: usize,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Support {
    #[serde(default)]
    segment: Segment,
    #[serde(default)]
    grounding_chunk_indices: Vec<usize>,
    #[serde(default)]
    confidence_scores: Vec<Value>,
}

/// In bytes.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Segment {
    #[serde(default)]
    part_index: usize,
    #[serde(default)]
    start_index: usize,
    #[serde(default)]
    end_index: usize,
    #[serde(default)]
    text: Option<String>,
}

impl Grounding {
    /// An answer, or the next words of one, begins.
    pub fn begin(&mut self) {
        self.parts.clear();
    }

    /// A part of it, which says this.
    pub fn hear(&mut self, text: &str) {
        self.parts.push(self.said.len());
        self.said.push(text);
    }

    /// Tells what stands under one of the names; whether it is one that says where something is from.
    pub fn tell(&mut self, name: &str, json: &str, taker: &mut dyn Taker) -> bool {
        let Ok(metadata) = serde_json::from_str::<Value>(json) else { return false };
        let found = match name {
            GROUNDING => self.grounded(&metadata),
            RECITED => self.recited(&metadata),
            _ => None,
        };
        let Some((mut cited, mut rest)) = found else { return false };
        cited.retain(|one| !self.told.contains(one));
        let room = MOST_CITED.saturating_sub(self.told.len());
        if cited.len() > room {
            cited.truncate(room);
            rest.push(name.to_owned());
        }
        self.told.extend_from_slice(&cited);
        taker.take(Piece::Cites(Cites { place: Place::Choice, name, json, cited: &cited, rest: &rest }));
        true
    }

    fn grounded(&mut self, metadata: &Value) -> Option<(Vec<Cited>, Vec<String>)> {
        if let Some(found) = metadata["groundingChunks"].as_array().filter(|found| !found.is_empty()) {
            self.found.clone_from(found);
        }
        let supports = metadata["groundingSupports"].as_array().filter(|supports| !supports.is_empty())?;
        let (mut cited, mut is_cited) = (Vec::new(), vec![false; self.found.len()]);
        let (mut is_all, mut has_scores) = (true, false);
        for support in supports.iter().take(MOST_CITED) {
            let support = Support::deserialize(support).unwrap_or_default();
            has_scores |= !support.confidence_scores.is_empty();
            let claim = self.find(&support.segment);
            is_all &= claim.is_some();
            for at in support.grounding_chunk_indices {
                let source = self.found.get(at).and_then(|found| source(found, at));
                let (Some(claim), Some(source)) = (&claim, source) else { continue };
                let one = Cited::of(claim.clone(), source);
                let is_new = !self.told.contains(&one) && !cited.contains(&one);
                if is_new && (self.told.len() + cited.len() >= MOST_CITED || self.weight > MOST_TOLD) {
                    is_all = false;
                    break;
                }
                is_cited[at] = true;
                if is_new {
                    self.weight += one.weight();
                    cited.push(one);
                }
            }
        }
        let is_other = |key: &String| !matches!(key.as_str(), "groundingChunks" | "groundingSupports");
        let keys = metadata.as_object().into_iter().flatten().filter(|(_, value)| says_something(value));
        let mut rest: Vec<_> = keys.map(|(key, _)| key.clone()).filter(is_other).collect();
        let left = [
            (!is_all || supports.len() > MOST_CITED, "groundingSupports"),
            (has_scores, "groundingSupports[].confidenceScores"),
            (is_cited.contains(&false), "groundingChunks"),
        ];
        rest.extend(left.iter().filter(|(is_left, _)| *is_left).map(|(_, name)| (*name).to_owned()));
        Some((cited, rest.iter().map(|key| format!("{GROUNDING}.{key}")).collect()))
    }

    fn recited(&self, metadata: &Value) -> Option<(Vec<Cited>, Vec<String>)> {
        // Under either name, as Google has it and as Vertex AI does.
        let all = metadata["citationSources"].as_array().or_else(|| metadata["citations"].as_array())?;
        let at = |one: &Value, key: &str| one[key].as_u64().and_then(|at| usize::try_from(at).ok()).unwrap_or_default();
        let mut rest = Vec::new();
        let mut lose = |name: String| {
            if !rest.contains(&name) {
                rest.push(name);
            }
        };
        let mut cited = Vec::new();
        for one in all.iter().take(MOST_CITED) {
            let claim = self.said.of_bytes(at(one, "startIndex")..at(one, "endIndex"), None);
            let (Some(claim), Some(url)) = (claim, one["uri"].as_str().filter(|url| !url.is_empty())) else {
                lose(RECITED.to_owned());
                continue;
            };
            cited.push(Cited::of(claim, page(url, &one["title"], "")));
            for key in ["license", "publicationDate"] {
                if says_something(&one[key]) {
                    lose(format!("{RECITED}.{key}"));
                }
            }
        }
        Some((cited, rest)).filter(|(cited, _)| !cited.is_empty())
    }

    /// Places are counted from the beginning of a part; in streams some count from the beginning of everything.
    fn find(&self, segment: &Segment) -> Option<Range<usize>> {
        let Segment { part_index, start_index, end_index, text } = segment;
        let begins = self.parts.get(*part_index).copied().unwrap_or_default();
        let within = begins.checked_add(*start_index)?..begins.checked_add(*end_index)?;
        let (said, of_all) = (text.as_deref().filter(|text| !text.is_empty()), *start_index..*end_index);
        let is_there = |at: &Range<usize>| self.said.says(at, said);
        let at = [of_all, within.clone()].into_iter().find(is_there).unwrap_or(within);
        self.said.of_bytes(at, said)
    }
}

/// Something that it found: a page of the web or of a map, or a document of the caller's own.
fn source(found: &Value, at: usize) -> Option<Value> {
    let (own, is_given) = match (&found["web"], &found["maps"], &found["retrievedContext"]) {
        (web @ Value::Object(_), ..) => (web, false),
        (_, maps @ Value::Object(_), _) => (maps, false),
        (.., given @ Value::Object(_)) => (given, true),
        _ => return None,
    };
    let text = own["text"].as_str().unwrap_or_default();
    let uri = own["uri"].as_str().filter(|uri| !uri.is_empty());
    if is_given {
        let name = own["documentName"].as_str().unwrap_or_default();
        return Some(result(uri.unwrap_or(name), &own["title"], text, at));
    }
    Some(page(uri?, &own["title"], text))
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct Notes(Vec<(Vec<Range<usize>>, Vec<String>)>);

    impl Taker for Notes {
        fn take(&mut self, piece: Piece<'_>) {
            if let Piece::Cites(cites) = piece {
                self.0.push((cites.cited.iter().map(|one| one.claim.clone()).collect(), cites.rest.to_vec()));
            }
        }
    }

    fn metadata(segments: &[Value]) -> String {
        let supports = segments.iter().map(|segment| json!({"segment": segment, "groundingChunkIndices": [0]}));
        json!({"groundingChunks": [{"web": {"uri": "https://a.example", "title": "A"}}],
            "groundingSupports": supports.collect::<Vec<_>>()})
        .to_string()
    }

    #[test]
    fn bytes_of_a_part_are_characters_of_all_of_it_and_nothing_is_told_twice() {
        let (mut grounding, mut notes) = (Grounding::default(), Notes::default());
        grounding.begin();
        grounding.hear("");
        grounding.hear("Ål ");
        grounding.hear("é: øl.");
        let in_part = metadata(&[json!({"partIndex": 2, "startIndex": 4, "endIndex": 7, "text": "øl"})]);
        assert!(grounding.tell(GROUNDING, &in_part, &mut notes));
        let of_all = metadata(&[json!({"partIndex": 1, "startIndex": 0, "endIndex": 3, "text": "Ål"})]);
        grounding.tell(GROUNDING, &of_all, &mut notes);
        grounding.tell(GROUNDING, &of_all, &mut notes);
        let nowhere = metadata(&[json!({"startIndex": 1, "endIndex": 99})]);
        grounding.tell(GROUNDING, &nowhere, &mut notes);
        // However often a page is named for the same words.
        let mut again: Value = serde_json::from_str(&in_part).unwrap();
        again["groundingSupports"][0]["groundingChunkIndices"] = vec![0; 5000].into();
        grounding.tell(GROUNDING, &again.to_string(), &mut notes);
        assert!(notes.0.pop().unwrap().0.is_empty());
        assert_eq!(notes.0[0].0, vec![6..8; 1]);
        assert_eq!(notes.0[1].0, vec![0..2; 1]);
        assert!(notes.0[2].0.is_empty() && notes.0[3].0.is_empty());
        assert_eq!(notes.0[3].1, ["groundingMetadata.groundingSupports", "groundingMetadata.groundingChunks"]);
    }
}
