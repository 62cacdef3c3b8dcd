//! Finds profane words of lists, and replaces them.

use std::{
    collections::{BTreeSet, HashSet},
    ops::Range,
};

use aho_corasick::{AhoCorasick, MatchKind};
use serde::Deserialize;
use serde_json::{Value, json};

use super::replacement::replace_ranges;
use crate::guardrails::{
    check::{Change, Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, read_parameters},
    text_scope::TextScope,
    window::{PlaceholderNames, WindowCheck, WindowMatch},
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "gateway.profanity",
    alias: None,
    name: "Profanity",
    description: "fails if the text has a profane word of the lists of some languages, or replaces such words",
    stages: Stages::Both,
    secrets: &[],
    schema: r#"{"properties":{"languages":{"type":"array","minItems":1,"items":{"enum":["en","de","fr","es","it","pt","nl"]},"default":["en"]},"words":{"type":"array","maxItems":10000,"items":{"type":"string","minLength":1,"maxLength":100},"description":"more words that are profane"},"allowed":{"type":"array","maxItems":1000,"items":{"type":"string","minLength":1},"description":"words that are not profane"},"redact":{"type":"boolean","default":false,"description":"true: replaces what is found by `[PROFANITY]`, and passes"}}}"#,
    shared: &["not", "scope"],
    compile: Profanity::compile,
}];

/// Lists of profane words by language.
const LISTS: [(&str, &str); 7] = [
    ("en", include_str!("../data/profanity/en.txt")),
    ("de", include_str!("../data/profanity/de.txt")),
    ("fr", include_str!("../data/profanity/fr.txt")),
    ("es", include_str!("../data/profanity/es.txt")),
    ("it", include_str!("../data/profanity/it.txt")),
    ("pt", include_str!("../data/profanity/pt.txt")),
    ("nl", include_str!("../data/profanity/nl.txt")),
];
/// Replacement of a profane word.
const REPLACEMENT: &str = "[PROFANITY]";

#[derive(Debug)]
struct Profanity {
    words: AhoCorasick,
    longest_bytes: usize,
    redacts: bool,
    not: bool,
    scope: TextScope,
}

impl Profanity {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        struct ProfanityParameters {
            languages: HashSet<String>,
            #[serde(default)]
            words: Vec<String>,
            #[serde(default)]
            allowed: Vec<String>,
            #[serde(default)]
            redact: bool,
            #[serde(default)]
            not: bool,
            #[serde(default)]
            scope: TextScope,
        }
        let ProfanityParameters { languages, words, allowed, redact: redacts, not, scope } =
            read_parameters(parameters)?;
        let lists = LISTS.iter().filter(|(language, _)| languages.contains(*language));
        let listed = lists.flat_map(|(_, list)| list.lines());
        let own = words.iter().map(String::as_str);
        let allowed: HashSet<_> = allowed.iter().map(|word| word.to_lowercase()).collect();
        let words: BTreeSet<_> = listed.chain(own).map(|word| word.trim().to_lowercase()).collect();
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty() && !allowed.contains(word)).collect();
        let longest_bytes = words.iter().map(String::len).max().unwrap_or_default();
        let builder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&words);
        let words = builder.map_err(|error| (".words".to_owned(), format!("cannot be compiled: {error}")))?;
        Ok(Box::new(Self { words, longest_bytes, redacts, not, scope }))
    }

    /// Returns the ranges of profane words, in order and without overlaps.
    fn find(&self, text: &str) -> Vec<Range<usize>> {
        let (lower, positions) = to_lower_case(text);
        let continues = |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
        // A word must stand alone, so that a place name with a profane part is not found.
        let has_word_boundaries = |range: &Range<usize>| {
            !continues(lower[..range.start].chars().next_back()) && !continues(lower[range.end..].chars().next())
        };
        let (mut ranges, mut at) = (Vec::new(), 0);
        while let Some(word) = self.words.find(aho_corasick::Input::new(&lower).range(at..)) {
            let range = word.range();
            if has_word_boundaries(&range) {
                at = range.end;
                ranges.push(positions[range.start]..positions[range.end]);
            } else {
                // A shorter word may begin later within this one.
                at = lower.ceil_char_boundary(range.start + 1);
            }
        }
        ranges
    }
}

/// Returns the lower-case text, and for each of its bytes the byte offset in the original.
fn to_lower_case(text: &str) -> (String, Vec<usize>) {
    let (mut lower, mut positions) = (String::with_capacity(text.len()), Vec::with_capacity(text.len() + 1));
    for (at, letter) in text.char_indices() {
        lower.extend(letter.to_lowercase());
        positions.resize(lower.len(), at);
    }
    positions.push(text.len());
    (lower, positions)
}

impl WindowCheck for Profanity {
    fn scope(&self) -> TextScope {
        self.scope
    }

    fn longest_match(&self) -> usize {
        self.longest_bytes + 1
    }

    fn find(&self, text: &str, settled: usize, _names: &mut PlaceholderNames) -> Vec<WindowMatch> {
        let replacement = self.redacts.then(|| REPLACEMENT.to_owned());
        let ranges = self.find(text).into_iter().filter(|range| range.start < settled);
        ranges.map(|range| WindowMatch { range, replacement: replacement.clone(), kind: "profanity" }).collect()
    }
}

impl Check for Profanity {
    fn window(&self) -> Option<&dyn WindowCheck> {
        (!self.not || self.redacts).then_some(self)
    }

    fn memory_bytes(&self) -> usize {
        self.words.memory_usage()
    }

    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let (mut count, mut changes) = (0, Vec::new());
        for index in self.scope.select(input.stage, input.texts, false) {
            let text = &input.texts[index].text;
            let ranges = self.find(text);
            count += ranges.len();
            if self.redacts && !ranges.is_empty() {
                changes.push((index, replace_ranges(text, ranges.into_iter().map(|range| (range, REPLACEMENT)))));
            }
        }
        let verdict = self.redacts || (count == 0) != self.not;
        let explanation = format!("the text has {count} profane words");
        let data = json!({"verdict": verdict, "not": self.not, "explanation": explanation, "count": count});
        let change = (!changes.is_empty()).then_some(Change::Texts(changes));
        Ok(CheckOutcome { change, ..CheckOutcome::new(verdict, data) })
    }

    fn may_change(&self) -> bool {
        self.redacts
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Stage,
            tests::{run_on, verdict},
        },
        *,
    };

    #[test]
    fn words_that_stand_alone_are_found() {
        let passes = |parameters: Value, text: &str| verdict("gateway.profanity", parameters, text);
        assert!(
            !passes(json!({}), "What the FUCK?") && passes(json!({}), "The residents of Scunthorpe pass the bass.")
        );
        assert!(!passes(json!({"languages": ["de"]}), "Du Arschloch!") && passes(json!({}), "Du Arschloch!"));
        assert!(!passes(json!({"words": ["Wüterich"]}), "der WÜTERICH kommt"));
        assert!(passes(json!({"allowed": ["Fuck"]}), "fuck") && passes(json!({"not": true}), "fuck"));
    }

    #[test]
    fn words_are_replaced() {
        let text = "İ say: shit happens, größer";
        let outcome = run_on("gateway.profanity", json!({"redact": true}), Stage::Input, text).unwrap();
        assert_eq!(outcome.change, Some(Change::Texts(vec![(0, "İ say: [PROFANITY] happens, größer".into())])));
        assert!(outcome.verdict && !outcome.data.to_string().contains("shit"));
    }
}
