//! Finds text that no language would have. Measures how likely its pairs of letters are in the languages of an
//! alphabet.

use std::{collections::HashMap, io::Read, sync::LazyLock};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::json;

use crate::guardrails::{
    check::{Check, CheckError, CheckInput, CheckOutcome, CheckRow, Stages, excerpt, read_parameters},
    text_scope::TextScope,
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "gateway.gibberish",
    alias: None,
    name: "Gibberish",
    description: "fails if the text is not words of a language in Latin, Cyrillic or Greek letters; texts in other letters and short ones pass",
    stages: Stages::Both,
    secrets: &[],
    schema: "{}",
    shared: &["not", "scope", "timeout"],
    compile: |parameters| Ok(Box::new(read_parameters::<Gibberish>(parameters)?)),
}];

/// Probabilities of pairs of letters in 37 translations of one text, as `-log2` in sixteenths.
const LETTER_PAIRS: &[u8] = include_bytes!("../data/letter_pairs.json.gz");
/// Minimum number of letters of a text that can be judged.
const MIN_LETTERS: usize = 12;
/// Maximum number of letters that are read. The rest of a longer text is ignored.
const MAX_LETTERS: usize = 1000;
/// Maximum number of bits per pair of letters in the most likely language of a text. Of texts with 60 letters, 99 %
/// have fewer than 4 bits. Of random texts with 20 letters, 95 % have more than 5.3.
const MAX_BITS: f64 = 5.0;
/// Number of steps in `LETTER_PAIRS` that are one bit.
const STEPS_PER_BIT: f64 = 16.0;
/// Value for a pair with a letter that a language does not have, in the same steps as in `LETTER_PAIRS`.
const UNKNOWN_PAIR: u32 = 10 * 16;

#[derive(Deserialize)]
struct PublishedPairs {
    alphabet: String,
    pairs: String,
}

/// Two adjacent letters. A space stands for the beginning and the end of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct LetterPair {
    first: char,
    second: char,
}

struct LetterPairs {
    letters: HashMap<char, usize>,
    bits: Vec<u8>,
}

static LANGUAGES: LazyLock<Vec<LetterPairs>> = LazyLock::new(|| {
    let mut json = String::new();
    let read = flate2::read::GzDecoder::new(LETTER_PAIRS).read_to_string(&mut json);
    let published: Vec<PublishedPairs> = read.ok().and_then(|_| serde_json::from_str(&json).ok()).unwrap_or_default();
    let compile = |PublishedPairs { alphabet, pairs }: PublishedPairs| {
        let letters: HashMap<_, _> = alphabet.chars().enumerate().map(|(index, letter)| (letter, index)).collect();
        let bits = BASE64_STANDARD.decode(pairs).ok()?;
        (bits.len() == letters.len() * letters.len()).then_some(LetterPairs { letters, bits })
    };
    published.into_iter().filter_map(compile).collect()
});

impl LetterPairs {
    fn information_bits(&self, pair: LetterPair) -> u32 {
        let index = |letter| self.letters.get(&letter).copied();
        match (index(pair.first), index(pair.second)) {
            (Some(first), Some(second)) => self.bits[first * self.letters.len() + second].into(),
            _ => UNKNOWN_PAIR,
        }
    }
}

/// Returns true for letters of the alphabets in `LETTER_PAIRS`.
fn is_judged(letter: char) -> bool {
    letter.is_alphabetic() && (letter < '\u{530}' || ('\u{1e00}'..'\u{2000}').contains(&letter))
}

/// Returns the bits per pair of letters in the language in which the text is most likely; `None` if it has too few
/// letters that can be judged.
fn bits_per_pair(text: &str) -> Option<f64> {
    let mut pairs: HashMap<LetterPair, u32> = HashMap::new();
    let (mut before, mut judged, mut others) = (' ', 0, 0);
    for letter in text.chars().flat_map(char::to_lowercase) {
        if judged + others >= MAX_LETTERS {
            break;
        }
        let is_letter = is_judged(letter);
        judged += usize::from(is_letter);
        others += usize::from(!is_letter && letter.is_alphabetic());
        let letter = if is_letter { letter } else { ' ' };
        if before != ' ' || letter != ' ' {
            *pairs.entry(LetterPair { first: before, second: letter }).or_default() += 1;
        }
        before = letter;
    }
    if before != ' ' {
        *pairs.entry(LetterPair { first: before, second: ' ' }).or_default() += 1;
    }
    if judged < MIN_LETTERS || others > judged {
        return None;
    }
    let count: u32 = pairs.values().sum();
    let bits = |language: &LetterPairs| -> u32 {
        pairs.iter().map(|(pair, count)| language.information_bits(*pair) * count).sum()
    };
    let least = LANGUAGES.iter().map(bits).min()?;
    Some(f64::from(least) / STEPS_PER_BIT / f64::from(count))
}

/// Returns true if a text does not consist of words of any language.
pub(super) fn is_gibberish(text: &str) -> bool {
    bits_per_pair(text).is_some_and(|bits| bits > MAX_BITS)
}

#[derive(Debug, Deserialize)]
struct Gibberish {
    #[serde(default)]
    not: bool,
    #[serde(default)]
    scope: TextScope,
}

impl Check for Gibberish {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        if LANGUAGES.is_empty() {
            return Err(CheckError::new("the table of letters is not valid"));
        }
        let selected = input.select(self.scope, true);
        // Judges each text separately, so that a long one does not hide another.
        let texts = selected.indexes.iter().map(|index| input.texts[*index].text.as_str());
        let gibberish = texts.clone().find(|text| is_gibberish(text));
        let verdict = gibberish.is_none() != self.not;
        let explanation = format!("the text is {}gibberish", if gibberish.is_some() { "" } else { "not " });
        let excerpt = gibberish.or_else(|| texts.clone().next()).map(excerpt);
        let data = json!({"verdict": verdict, "not": self.not, "explanation": explanation, "textExcerpt": excerpt});
        Ok(CheckOutcome::new(verdict, data))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::verdict, *};

    /// Texts of 40 letters in 59 languages, after the code of each.
    const SAMPLES: &[u8] = include_bytes!("../data/language_samples.tsv.gz");

    fn is_found(text: &str) -> bool {
        !verdict("gateway.gibberish", json!({}), text)
    }

    #[test]
    fn languages_are_not_gibberish() {
        let mut samples = String::new();
        flate2::read::GzDecoder::new(SAMPLES).read_to_string(&mut samples).unwrap();
        let texts: Vec<_> = samples.lines().filter_map(|line| line.split_once('\t')).collect();
        let wrong: Vec<_> = texts.iter().filter(|(_, text)| is_found(text)).collect();
        assert!(texts.len() > 1000 && wrong.len() * 100 < texts.len(), "{} of {}: {wrong:?}", wrong.len(), texts.len());
        for text in [
            "Deploy the Kubernetes cluster with kubectl apply -f ingress.yaml and check the nginx logs",
            "SELECT id, name FROM users WHERE created_at > now() - interval '7 days'",
            "git rebase -i HEAD~3 && git push --force-with-lease",
            "what r u doing 2nite",
            "S3, EC2 and C4",
            "12345678901234567890",
            "",
        ] {
            assert!(!is_found(text), "{text}: {:?}", bits_per_pair(text));
        }
    }

    #[test]
    fn random_letters_are_gibberish() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut word = || -> String { (0..random.usize(4..9)).map(|_| random.lowercase()).collect() };
        let texts: Vec<String> = (0..500).map(|_| [word(), word(), word(), word(), word()].join(" ")).collect();
        let missed: Vec<_> = texts.iter().filter(|text| !is_found(text)).collect();
        assert!(missed.len() * 100 < texts.len() * 3, "{missed:?}");
        for text in ["sdkjfhskdjfh sdkfjh", "qwlekjr qwlkerj asdlkfj", "zxcvbnm poiuytr qwrtp", "lkjasdf oiwejf lkjwef"]
        {
            assert!(is_found(text), "{text}: {:?}", bits_per_pair(text));
        }
        assert!(verdict("gateway.gibberish", json!({"not": true}), "sdkjfhskdjfh sdkfjh"));
    }
}
