//! Gemini's citations: search results that ground the response (`groundingMetadata`) and recited sources
//! (`citationMetadata`).

use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;

use crate::{
    chat::{
        event::{EventSink, ResponseEvent},
        field_scope::FieldScope,
    },
    citations::{
        Citation, CitationSet, MAX_CITATIONS, MAX_SOURCE_BYTES, TextIndex, search_result_source, web_page_source,
    },
};

const GROUNDING_METADATA: &str = "groundingMetadata";
const CITATION_METADATA: &str = "citationMetadata";

/// Maps citations to ranges of the full text.
#[derive(Default)]
pub struct GroundingTracker {
    text_index: TextIndex,
    /// Start of each part of the current response, in bytes of the full text. Each event of a stream numbers its parts
    /// from 0.
    part_offsets: Vec<usize>,
    /// Latest `groundingChunks`. They may arrive before the supports that refer to them.
    grounding_chunks: Vec<Value>,
    /// Citations that were already emitted. Streams repeat them.
    emitted: Vec<Citation>,
    /// Size of all emitted sources, in bytes.
    emitted_source_bytes: usize,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct GroundingSupport {
    #[serde(default)]
    segment: Segment,
    #[serde(default)]
    grounding_chunk_indices: Vec<usize>,
    #[serde(default)]
    confidence_scores: Vec<Value>,
}

/// Cited segment of a part; the indices are byte offsets.
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

impl GroundingTracker {
    /// Starts a response, or the next event of a stream.
    pub fn start_event(&mut self) {
        self.part_offsets.clear();
    }

    /// Adds the text of the next part.
    pub fn add_part(&mut self, text: &str) {
        self.part_offsets.push(self.text_index.len());
        self.text_index.push_str(text);
    }

    /// Emits the citations of a metadata field. Returns false if the field holds none.
    pub fn emit_citations(&mut self, name: &str, json: &str, sink: &mut dyn EventSink) -> bool {
        let Ok(metadata) = serde_json::from_str::<Value>(json) else { return false };
        let sources = match name {
            GROUNDING_METADATA => self.parse_grounding(&metadata),
            CITATION_METADATA => self.parse_recitations(&metadata),
            _ => None,
        };
        let Some((mut cited, mut rest)) = sources else { return false };
        cited.retain(|citation| !self.emitted.contains(citation));
        let remaining = MAX_CITATIONS.saturating_sub(self.emitted.len());
        if cited.len() > remaining {
            cited.truncate(remaining);
            rest.push(name.to_owned());
        }
        self.emitted.extend_from_slice(&cited);
        sink.push_event(ResponseEvent::Citations(CitationSet {
            scope: FieldScope::Choice,
            name,
            json,
            citations: &cited,
            untranslated_fields: &rest,
        }));
        true
    }

    fn parse_grounding(&mut self, metadata: &Value) -> Option<(Vec<Citation>, Vec<String>)> {
        if let Some(chunks) = metadata["groundingChunks"].as_array().filter(|chunks| !chunks.is_empty()) {
            self.grounding_chunks.clone_from(chunks);
        }
        let supports = metadata["groundingSupports"].as_array().filter(|supports| !supports.is_empty())?;
        let (mut cited, mut is_cited) = (Vec::new(), vec![false; self.grounding_chunks.len()]);
        let (mut is_all, mut has_scores) = (true, false);
        for support in supports.iter().take(MAX_CITATIONS) {
            let support = GroundingSupport::deserialize(support).unwrap_or_default();
            has_scores |= !support.confidence_scores.is_empty();
            let claim = self.locate_segment(&support.segment);
            is_all &= claim.is_some();
            for at in support.grounding_chunk_indices {
                let source = self.grounding_chunks.get(at).and_then(|chunk| build_source(chunk, at));
                let (Some(claim), Some(source)) = (&claim, source) else { continue };
                let citation = Citation::without_marker(claim.clone(), source);
                let is_new = !self.emitted.contains(&citation) && !cited.contains(&citation);
                if is_new
                    && (self.emitted.len() + cited.len() >= MAX_CITATIONS
                        || self.emitted_source_bytes > MAX_SOURCE_BYTES)
                {
                    is_all = false;
                    break;
                }
                is_cited[at] = true;
                if is_new {
                    self.emitted_source_bytes += citation.source_bytes();
                    cited.push(citation);
                }
            }
        }
        let is_other = |key: &String| !matches!(key.as_str(), "groundingChunks" | "groundingSupports");
        let keys = metadata.as_object().into_iter().flatten().filter(|(_, value)| is_nonempty(value));
        let mut rest: Vec<_> = keys.map(|(key, _)| key.clone()).filter(is_other).collect();
        let untranslated = [
            (!is_all || supports.len() > MAX_CITATIONS, "groundingSupports"),
            (has_scores, "groundingSupports[].confidenceScores"),
            (is_cited.contains(&false), "groundingChunks"),
        ];
        rest.extend(untranslated.iter().filter(|(is_left, _)| *is_left).map(|(_, name)| (*name).to_owned()));
        Some((cited, rest.iter().map(|key| format!("{GROUNDING_METADATA}.{key}")).collect()))
    }

    fn parse_recitations(&self, metadata: &Value) -> Option<(Vec<Citation>, Vec<String>)> {
        // Google AI Studio and Vertex AI use different names for the list.
        let all = metadata["citationSources"].as_array().or_else(|| metadata["citations"].as_array())?;
        let at =
            |item: &Value, key: &str| item[key].as_u64().and_then(|at| usize::try_from(at).ok()).unwrap_or_default();
        let mut rest = Vec::new();
        let mut record_dropped = |name: String| {
            if !rest.contains(&name) {
                rest.push(name);
            }
        };
        let mut cited = Vec::new();
        for citation in all.iter().take(MAX_CITATIONS) {
            let claim = self.text_index.locate_bytes(at(citation, "startIndex")..at(citation, "endIndex"), None);
            let (Some(claim), Some(url)) = (claim, citation["uri"].as_str().filter(|url| !url.is_empty())) else {
                record_dropped(CITATION_METADATA.to_owned());
                continue;
            };
            cited.push(Citation::without_marker(claim, web_page_source(url, &citation["title"], "")));
            for key in ["license", "publicationDate"] {
                if is_nonempty(&citation[key]) {
                    record_dropped(format!("{CITATION_METADATA}.{key}"));
                }
            }
        }
        Some((cited, rest)).filter(|(cited, _)| !cited.is_empty())
    }

    /// Returns the range of a segment in characters of the full text. Gemini counts offsets from the start of the part;
    /// some streams count them from the start of the full text. Uses the interpretation under which the quoted text is
    /// found.
    fn locate_segment(&self, segment: &Segment) -> Option<Range<usize>> {
        let Segment { part_index, start_index, end_index, text } = segment;
        let begins = self.part_offsets.get(*part_index).copied().unwrap_or_default();
        let within = begins.checked_add(*start_index)?..begins.checked_add(*end_index)?;
        let (quote, of_all) = (text.as_deref().filter(|text| !text.is_empty()), *start_index..*end_index);
        let is_there = |at: &Range<usize>| self.text_index.matches_at(at, quote);
        let at = [of_all, within.clone()].into_iter().find(is_there).unwrap_or(within);
        self.text_index.locate_bytes(at, quote)
    }
}

/// Builds the source of a grounding chunk: a web page, a place on a map, or a document of the client.
fn build_source(grounding_chunk: &Value, at: usize) -> Option<Value> {
    let (chunk, is_given) =
        match (&grounding_chunk["web"], &grounding_chunk["maps"], &grounding_chunk["retrievedContext"]) {
            (web @ Value::Object(_), ..) => (web, false),
            (_, maps @ Value::Object(_), _) => (maps, false),
            (.., chunk @ Value::Object(_)) => (chunk, true),
            _ => return None,
        };
    let text = chunk["text"].as_str().unwrap_or_default();
    let uri = chunk["uri"].as_str().filter(|uri| !uri.is_empty());
    if is_given {
        let name = chunk["documentName"].as_str().unwrap_or_default();
        return Some(search_result_source(uri.unwrap_or(name), &chunk["title"], text, at));
    }
    Some(web_page_source(uri?, &chunk["title"], text))
}

fn is_nonempty(value: &Value) -> bool {
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
    struct CitationSink(Vec<(Vec<Range<usize>>, Vec<String>)>);

    impl EventSink for CitationSink {
        fn push_event(&mut self, event: ResponseEvent<'_>) {
            if let ResponseEvent::Citations(cites) = event {
                self.0.push((
                    cites.citations.iter().map(|citation| citation.claim_range.clone()).collect(),
                    cites.untranslated_fields.to_vec(),
                ));
            }
        }
    }

    fn sample_metadata(segments: &[Value]) -> String {
        let supports = segments.iter().map(|segment| json!({"segment": segment, "groundingChunkIndices": [0]}));
        json!({"groundingChunks": [{"web": {"uri": "https://a.example", "title": "A"}}],
            "groundingSupports": supports.collect::<Vec<_>>()})
        .to_string()
    }

    #[test]
    fn maps_part_bytes_to_text_characters_and_emits_no_citation_twice() {
        let (mut grounding, mut notes) = (GroundingTracker::default(), CitationSink::default());
        grounding.start_event();
        grounding.add_part("");
        grounding.add_part("Ål ");
        grounding.add_part("é: øl.");
        let in_part = sample_metadata(&[json!({"partIndex": 2, "startIndex": 4, "endIndex": 7, "text": "øl"})]);
        assert!(grounding.emit_citations(GROUNDING_METADATA, &in_part, &mut notes));
        let of_all = sample_metadata(&[json!({"partIndex": 1, "startIndex": 0, "endIndex": 3, "text": "Ål"})]);
        grounding.emit_citations(GROUNDING_METADATA, &of_all, &mut notes);
        grounding.emit_citations(GROUNDING_METADATA, &of_all, &mut notes);
        let nowhere = sample_metadata(&[json!({"startIndex": 1, "endIndex": 99})]);
        grounding.emit_citations(GROUNDING_METADATA, &nowhere, &mut notes);
        // Repeats the same page 5000 times for the same text.
        let mut again: Value = serde_json::from_str(&in_part).unwrap();
        again["groundingSupports"][0]["groundingChunkIndices"] = vec![0; 5000].into();
        grounding.emit_citations(GROUNDING_METADATA, &again.to_string(), &mut notes);
        assert!(notes.0.pop().unwrap().0.is_empty());
        assert_eq!(notes.0[0].0, vec![6..8; 1]);
        assert_eq!(notes.0[1].0, vec![0..2; 1]);
        assert!(notes.0[2].0.is_empty() && notes.0[3].0.is_empty());
        assert_eq!(notes.0[3].1, ["groundingMetadata.groundingSupports", "groundingMetadata.groundingChunks"]);
    }
}
