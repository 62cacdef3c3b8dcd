//! Finds personal data by its form, and replaces it.

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
    ops::Range,
    sync::LazyLock,
};

use regex::Regex;
use serde::Deserialize;
use serde_json::{Value, json};

use super::replacement::replace_ranges;
use crate::guardrails::{
    check::{
        Change, Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, excerpt, read_parameters,
    },
    text_scope::TextScope,
    window::{PlaceholderNames, WindowCheck, WindowMatch},
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "gateway.pii",
    alias: None,
    name: "Personal data",
    description: "fails if the text has personal data of some categories, or replaces it; categories are recognised by their form, such as check digits",
    stages: Stages::Both,
    secrets: &[],
    schema: r#"{"required":["categories"],"properties":{"categories":{"type":"array","minItems":1,"items":{"enum":["EMAIL_ADDRESS","PHONE_NUMBER","IP_ADDRESS","CREDIT_CARD","SSN","IBAN"]}},"redact":{"type":"boolean","default":false,"description":"true: replaces what is found, such as by `{{EMAIL_ADDRESS_1}}`, and passes"},"allowed":{"type":"array","maxItems":1000,"items":{"type":"string","minLength":1},"description":"texts that are no personal data"}}}"#,
    shared: &["not", "scope", "timeout"],
    compile: PersonalData::compile,
}];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Category {
    EmailAddress,
    Iban,
    CreditCard,
    IpAddress,
    Ssn,
    PhoneNumber,
}

impl Category {
    fn name(self) -> &'static str {
        match self {
            Self::EmailAddress => "EMAIL_ADDRESS",
            Self::Iban => "IBAN",
            Self::CreditCard => "CREDIT_CARD",
            Self::IpAddress => "IP_ADDRESS",
            Self::Ssn => "SSN",
            Self::PhoneNumber => "PHONE_NUMBER",
        }
    }

    /// Returns the pattern of candidates.
    fn pattern(self) -> &'static LazyLock<Regex> {
        match self {
            Self::EmailAddress => &EMAIL,
            Self::Iban => &IBAN,
            Self::CreditCard => &CARD,
            Self::IpAddress => &IP,
            Self::Ssn => &SSN,
            Self::PhoneNumber => &PHONE,
        }
    }

    /// Returns true if a candidate is of this category.
    fn confirms(self, candidate: &str, digits: &str) -> bool {
        match self {
            Self::EmailAddress => is_email(candidate),
            Self::Iban => is_iban(candidate),
            Self::CreditCard => (13..=19).contains(&digits.len()) && has_luhn_digit(digits) && has_two_digits(digits),
            Self::IpAddress => candidate.parse::<IpAddr>().is_ok(),
            Self::Ssn => is_ssn(digits),
            Self::PhoneNumber => is_phone_number(candidate, digits),
        }
    }
}

/// Compiles a pattern of this file. Classes are ASCII, so that other text does not cost more.
fn pattern(source: &str) -> Regex {
    // A test compiles all of them.
    Regex::new(source).unwrap_or_else(|_| Regex::new("$^").unwrap_or_else(|_| unreachable!()))
}

static EMAIL: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)+",
    )
});
static IBAN: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?"));
static CARD: LazyLock<Regex> = LazyLock::new(|| pattern(r"[0-9](?:[ -]?[0-9]){12,18}"));
static IP: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{0,4})",
    )
});
static SSN: LazyLock<Regex> = LazyLock::new(|| pattern(r"[0-9]{3}(?:-[0-9]{2}-| [0-9]{2} |\.[0-9]{2}\.)[0-9]{4}"));
static PHONE: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?:\+|\(\+?)?[0-9](?:[ ()./-]{0,3}[0-9]){6,14}"));

fn is_email(candidate: &str) -> bool {
    let Some((local, domain)) = candidate.rsplit_once('@') else { return false };
    let top = domain.rsplit_once('.').map_or("", |(_, top)| top);
    local.len() <= 64
        && !local.starts_with('.')
        && !local.ends_with('.')
        && !local.contains("..")
        && top.len() >= 2
        && top.bytes().any(|byte| byte.is_ascii_alphabetic())
}

fn has_luhn_digit(digits: &str) -> bool {
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(index, byte)| {
            let digit = u32::from(byte - b'0');
            match (index % 2 == 1, digit) {
                (false, digit) => digit,
                (true, digit) if digit > 4 => digit * 2 - 9,
                (true, digit) => digit * 2,
            }
        })
        .sum();
    sum.is_multiple_of(10)
}

/// Returns false for a number such as 0000 0000 0000 0000, which has a valid check digit.
fn has_two_digits(digits: &str) -> bool {
    digits.bytes().any(|byte| Some(byte) != digits.bytes().next())
}

fn is_iban(candidate: &str) -> bool {
    let plain: String = candidate.chars().filter(char::is_ascii_alphanumeric).collect();
    if !(15..=34).contains(&plain.len()) {
        return false;
    }
    let rearranged = plain[4..].bytes().chain(plain[..4].bytes());
    let remainder = rearranged.fold(0_u32, |remainder, byte| match byte {
        b'0'..=b'9' => (remainder * 10 + u32::from(byte - b'0')) % 97,
        byte => (remainder * 100 + u32::from(byte - b'A') + 10) % 97,
    });
    remainder == 1
}

fn is_ssn(digits: &str) -> bool {
    // Numbers that are never given to anybody.
    let (area, rest) = digits.split_at(3);
    let (group, serial) = rest.split_at(2);
    !matches!(area, "000" | "666") && !area.starts_with('9') && group != "00" && serial != "0000"
}

fn is_phone_number(candidate: &str, digits: &str) -> bool {
    let has_separator = candidate.bytes().any(|byte| b" ()./-".contains(&byte));
    let is_north_american = |digits: &str| {
        let digits = if digits.len() == 11 { digits.strip_prefix('1').unwrap_or(digits) } else { digits };
        let begins = |at: usize| digits.as_bytes().get(at).is_some_and(|byte| (b'2'..=b'9').contains(byte));
        digits.len() == 10 && begins(0) && begins(3)
    };
    if candidate.starts_with('+') || candidate.starts_with("(+") {
        return (8..=15).contains(&digits.len());
    }
    // Dates and version numbers have separators too.
    let is_date = digits.len() == 8 && !candidate.starts_with('0');
    has_separator
        && !is_date
        && (is_north_american(digits) || digits.starts_with('0') && (9..=13).contains(&digits.len()))
}

#[derive(Debug)]
struct PersonalData {
    categories: BTreeSet<Category>,
    redacts: bool,
    allowed: HashSet<String>,
    not: bool,
    scope: TextScope,
}

/// Something that was found, at a range of a text.
struct Finding {
    range: Range<usize>,
    category: Category,
}

impl PersonalData {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        struct PersonalDataParameters {
            categories: BTreeSet<Category>,
            #[serde(default)]
            redact: bool,
            #[serde(default)]
            allowed: HashSet<String>,
            #[serde(default)]
            not: bool,
            #[serde(default)]
            scope: TextScope,
        }
        let PersonalDataParameters { categories, redact: redacts, allowed, not, scope } = read_parameters(parameters)?;
        Ok(Box::new(Self { categories, redacts, allowed, not, scope }))
    }

    /// Returns what a text has, in order and without overlaps. A category before another in the enum wins.
    fn find(&self, text: &str) -> Vec<Finding> {
        let mut found: Vec<Finding> = Vec::new();
        for category in &self.categories {
            // Both lists are in order, so one walk over them finds all overlaps.
            let (mut next, mut new) = (0, Vec::new());
            for candidate in category.pattern().find_iter(text) {
                let range = candidate.range();
                let digits: String = candidate.as_str().chars().filter(char::is_ascii_digit).collect();
                while found.get(next).is_some_and(|one| one.range.end <= range.start) {
                    next += 1;
                }
                let is_taken = found.get(next).is_some_and(|one| one.range.start < range.end);
                if !is_taken
                    && stands_alone(text, &range)
                    && category.confirms(candidate.as_str(), &digits)
                    && !self.allowed.contains(candidate.as_str())
                {
                    new.push(Finding { range, category: *category });
                }
            }
            found.append(&mut new);
            found.sort_by_key(|finding| finding.range.start);
        }
        found
    }
}

/// Returns true if no letter or digit continues the range on either side.
fn stands_alone(text: &str, range: &Range<usize>) -> bool {
    let continues = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    !continues(text[..range.start].chars().next_back()) && !continues(text[range.end..].chars().next())
}

/// Longest email address: 64 bytes, `@` and a domain. All other categories are shorter.
const LONGEST_VALUE_BYTES: usize = 64 + 1 + 255;

impl WindowCheck for PersonalData {
    fn scope(&self) -> TextScope {
        self.scope
    }

    fn longest_match(&self) -> usize {
        LONGEST_VALUE_BYTES
    }

    fn find(&self, text: &str, settled: usize, names: &mut PlaceholderNames) -> Vec<WindowMatch> {
        let found = self.find(text).into_iter().filter(|finding| finding.range.start < settled);
        found
            .map(|Finding { range, category }| {
                let kind = category.name();
                let name = self.redacts.then(|| names.name_of(kind, &text[range.clone()]).to_owned());
                WindowMatch { range, replacement: name, kind }
            })
            .collect()
    }
}

impl Check for PersonalData {
    fn window(&self) -> Option<&dyn WindowCheck> {
        (!self.not || self.redacts).then_some(self)
    }

    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let indexes = self.scope.select(input.stage, input.texts, false);
        let mut detected = BTreeSet::new();
        let (mut changes, mut names) = (Vec::new(), PlaceholderNames::default());
        for index in &indexes {
            let text = &input.texts[*index].text;
            let found = self.find(text);
            detected.extend(found.iter().map(|finding| finding.category.name()));
            if self.redacts && !found.is_empty() {
                // The same value has the same name everywhere, so that the text keeps its meaning.
                let replacements: Vec<_> = found
                    .iter()
                    .map(|finding| {
                        let name = names.name_of(finding.category.name(), &text[finding.range.clone()]);
                        (finding.range.clone(), name.to_owned())
                    })
                    .collect();
                let replacements = replacements.iter().map(|(range, name)| (range.clone(), name.as_str()));
                changes.push((*index, replace_ranges(text, replacements)));
            }
        }
        let verdict = self.redacts || detected.is_empty() != self.not;
        let explanation = if detected.is_empty() { "no personal data was found" } else { "personal data was found" };
        let categories: Vec<_> = self.categories.iter().map(|category| category.name()).collect();
        // The excerpt shows no value that was found.
        let shown = indexes.first().map(|first| {
            let redacted = changes.iter().find(|(index, _)| index == first).map(|(_, text)| excerpt(text));
            redacted.or_else(|| detected.is_empty().then(|| excerpt(&input.texts[*first].text)))
        });
        let data = json!({"verdict": verdict, "not": self.not, "explanation": explanation,
            "restrictedCategories": categories, "detectedCategories": detected, "textExcerpt": shown.flatten()});
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
        super::{Stage, tests::run_on},
        *,
    };

    fn found(category: &str, text: &str) -> bool {
        let outcome = run_on("gateway.pii", json!({"categories": [category]}), Stage::Output, text).unwrap();
        assert_eq!(outcome.verdict, outcome.data["detectedCategories"] == json!([]));
        !outcome.verdict
    }

    #[test]
    fn every_pattern_compiles() {
        for category in [
            Category::EmailAddress,
            Category::Iban,
            Category::CreditCard,
            Category::IpAddress,
            Category::Ssn,
            Category::PhoneNumber,
        ] {
            assert_ne!(category.pattern().as_str(), "$^", "{category:?}");
        }
    }

    #[test]
    fn categories_are_recognised() {
        for (category, yes, no) in [
            (
                "EMAIL_ADDRESS",
                vec!["a@b.example", "write to o'neil+x@mail.example.org."],
                vec!["a@b", "@user", "a..b@c.example", "x@1.2"],
            ),
            (
                "CREDIT_CARD",
                vec!["4111 1111 1111 1111", "378282246310005", "5555-5555-5555-4444"],
                vec!["4111 1111 1111 1112", "0000000000000000", "123456789012"],
            ),
            (
                "IBAN",
                vec!["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"],
                vec!["DE89 3704 0044 0532 0130 01"],
            ),
            (
                "IP_ADDRESS",
                vec!["at 192.168.1.10.", "2001:db8::1", "::ffff:10.0.0.1"],
                vec!["1.2.3.400", "version 1.2.3", "12:30:45"],
            ),
            (
                "SSN",
                vec!["078-05-1120", "078 05 1120"],
                vec!["000-12-3456", "666-12-3456", "900-12-3456", "123-00-4567", "078051120"],
            ),
            (
                "PHONE_NUMBER",
                vec!["+49 30 901820", "(212) 555-0123", "212-555-0123", "030 / 90 18 20"],
                vec!["2026-11-27", "12345678", "1.2.3.4", "order 1234567890"],
            ),
        ] {
            for text in yes {
                assert!(found(category, text), "{category}: {text}");
            }
            for text in no {
                assert!(!found(category, text), "{category}: {text}");
            }
        }
    }

    #[test]
    fn values_are_replaced_by_their_names() {
        let parameters =
            json!({"categories": ["EMAIL_ADDRESS", "PHONE_NUMBER"], "redact": true, "allowed": ["help@x.example"]});
        let text = "a@x.example, b@x.example, a@x.example, help@x.example, +49 30 901820";
        let outcome = run_on("gateway.pii", parameters, Stage::Input, text).unwrap();
        let expected =
            "{{EMAIL_ADDRESS_1}}, {{EMAIL_ADDRESS_2}}, {{EMAIL_ADDRESS_1}}, help@x.example, {{PHONE_NUMBER_1}}";
        assert_eq!((outcome.verdict, outcome.change), (true, Some(Change::Texts(vec![(0, expected.into())]))));
        assert!(!outcome.data.to_string().contains("a@x.example"));
    }

    #[test]
    fn a_long_text_takes_linear_time() {
        let text = "192.168.1.10 a@x.example ".repeat(40_000);
        let parameters = json!({"categories": ["EMAIL_ADDRESS", "IP_ADDRESS"], "redact": true});
        // Quadratic work on a million bytes would take minutes.
        assert!(run_on("gateway.pii", parameters, Stage::Input, &text).unwrap().change.is_some());
    }
}
