//! Finds personal data by its form, and replaces it.

mod forms;
mod names;

use std::{
    collections::{BTreeSet, HashSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use serde::Deserialize;
use serde_json::{Value, json};

pub(super) use self::forms::Category;
use self::{
    forms::has_word_boundaries,
    names::{NamedValue, NamingModel},
};
use super::{
    allowed_values::AllowedValues,
    default_models::{ModelPurpose, choose_model},
    model_questions::MAX_QUESTION_BYTES,
    replacement::replace_ranges,
};
use crate::guardrails::{
    check::{
        Change, Check, CheckEffects, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stage, Stages,
        excerpt, read_parameters,
    },
    host_access::{CheckJob, HostAccess},
    text_scope::TextScope,
    window::{PlaceholderNames, WindowCheck, WindowMatch},
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "gateway.pii",
    alias: None,
    name: "Personal data",
    description: "fails if the text has personal data of some categories, or replaces it; most categories are recognised by their form, such as check digits, names and addresses by a model",
    stages: Stages::Both,
    secrets: &[],
    schema: r#"{"required":["categories"],"properties":{"categories":{"type":"array","minItems":1,"items":{"enum":["EMAIL_ADDRESS","PHONE_NUMBER","IP_ADDRESS","CREDIT_CARD","SSN","IBAN","NAME","LOCATION_ADDRESS"]},"description":"`NAME` and `LOCATION_ADDRESS` need `model`, or the setting `guardrails.pii_model`"},"redact":{"type":"boolean","default":false,"description":"true: replaces what is found, such as by `{{EMAIL_ADDRESS_1}}`, and passes"},"restore":{"type":"boolean","default":false,"description":"true: the client gets the values back where the response has their names; logs, caches and other guardrails do not"},"allowed":{"type":"array","maxItems":1000,"items":{"type":"string","minLength":1},"description":"texts that are no personal data"},"allowedPatterns":{"type":"array","maxItems":100,"items":{"type":"string","minLength":1},"description":"regular expressions for whole texts that are no personal data"}}}"#,
    shared: &["not", "scope", "model", "timeout=5000"],
    compile: PersonalData::compile,
}];

/// Maximum number of digits for a search on a thread that serves requests. Each digit may begin a candidate.
const MAX_INLINE_DIGITS: usize = 2000;

#[derive(Debug)]
pub(super) struct PersonalData {
    categories: BTreeSet<Category>,
    redacts: bool,
    /// Suffix of the placeholder names, if the response returns the values to the client. `None`: it does not.
    restore_tag: Option<String>,
    allowed: AllowedValues,
    not: bool,
    scope: TextScope,
    /// Model that finds names and addresses. `None`: the check does not search for them.
    model: Option<NamingModel>,
}

/// Personal data at a range of a text.
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
            restore: bool,
            #[serde(default)]
            allowed: HashSet<String>,
            #[serde(default, rename = "allowedPatterns")]
            allowed_patterns: Vec<String>,
            #[serde(default)]
            not: bool,
            #[serde(default)]
            scope: TextScope,
            model: Option<String>,
            timeout: u64,
        }
        // The tag makes names unique: a check with other parameters must not give the same name to another value.
        let tag = format!("_{:04x}", crc32fast::hash(parameters.to_string().as_bytes()) & 0xffff);
        let parameters: PersonalDataParameters = read_parameters(parameters)?;
        let PersonalDataParameters { categories, redact: redacts, restore, allowed, allowed_patterns, not, .. } =
            parameters;
        let by_model: Vec<_> = categories.iter().copied().filter(|category| category.pattern().is_none()).collect();
        let model = if by_model.is_empty() {
            None
        } else {
            let model = choose_model(parameters.model, ModelPurpose::PersonalData)?;
            Some(NamingModel { model, categories: by_model, timeout: Duration::from_millis(parameters.timeout) })
        };
        if restore && !redacts {
            return Err((".restore".to_owned(), "needs `redact`, because only replaced values return".to_owned()));
        }
        let allowed = AllowedValues::compile(allowed, &allowed_patterns)?;
        let restore_tag = restore.then_some(tag);
        let scope = parameters.scope;
        Ok(Box::new(PersonalDataCheck(Arc::new(Self { categories, redacts, restore_tag, allowed, not, scope, model }))))
    }

    /// Returns a finder of these categories by their form.
    pub(super) fn for_categories(categories: BTreeSet<Category>) -> Self {
        let (allowed, scope) = (AllowedValues::default(), TextScope::default());
        Self { categories, redacts: true, restore_tag: None, allowed, not: false, scope, model: None }
    }

    /// Returns the personal data in a text, each with its category, and the text with placeholder names instead of it.
    pub(super) fn classify(&self, text: &str) -> Value {
        let findings = self.find(text);
        let mut names = PlaceholderNames::with_tag("");
        let mut replacements = Vec::with_capacity(findings.len());
        let mut entities = Vec::with_capacity(findings.len());
        for Finding { range, category } in findings {
            let (name, value) = (category.name(), &text[range.clone()]);
            // A match of a pattern has the highest score.
            entities.push(json!({"text": value, "labels": {name: 1}}));
            replacements.push((range, names.name_of(name, value).to_owned()));
        }
        let replaced = replacements.iter().map(|(range, name)| (range.clone(), name.as_str()));
        json!({"entities": entities, "processed_text": replace_ranges(text, replaced)})
    }

    /// Returns the personal data in a text, in order and without overlaps. An earlier category of the enum wins.
    fn find(&self, text: &str) -> Vec<Finding> {
        let mut findings: Vec<Finding> = Vec::new();
        for category in &self.categories {
            let Some(pattern) = category.pattern() else { continue };
            // Both lists are in order, so a single pass over them finds all overlaps.
            let (mut next, mut new, mut at) = (0, Vec::new(), 0);
            while let Some(candidate) = pattern.find_at(text, at) {
                let Some(range) = category.confirm(text, candidate.range()) else {
                    at = category.end_of_rejected(text, candidate.range());
                    continue;
                };
                at = range.end;
                while findings.get(next).is_some_and(|finding| finding.range.end <= range.start) {
                    next += 1;
                }
                let is_taken = findings.get(next).is_some_and(|finding| finding.range.start < range.end);
                if !is_taken && !self.allowed.includes(&text[range.clone()]) {
                    new.push(Finding { range, category: *category });
                }
            }
            findings.append(&mut new);
            findings.sort_by_key(|finding| finding.range.start);
        }
        findings
    }
}

/// Maximum length of an email address: 64 bytes, `@` and a domain. All other categories are shorter.
const LONGEST_VALUE_BYTES: usize = 64 + 1 + 255;

impl WindowCheck for PersonalData {
    fn scope(&self) -> TextScope {
        self.scope
    }

    fn longest_match(&self) -> usize {
        LONGEST_VALUE_BYTES
    }

    fn find(&self, text: &str, settled: usize, names: &mut PlaceholderNames) -> Vec<WindowMatch> {
        let findings = Self::find(self, text).into_iter().filter(|finding| finding.range.start < settled);
        findings
            .map(|Finding { range, category }| {
                let kind = category.name();
                let name = self.redacts.then(|| names.name_of(kind, &text[range.clone()]).to_owned());
                WindowMatch { range, replacement: name, kind }
            })
            .collect()
    }
}

impl PersonalData {
    /// Searches texts, and returns the outcome. `by_model` has the values that a model found.
    fn decide(&self, texts: &[(usize, String)], stage: Stage, by_model: &[NamedValue]) -> CheckOutcome {
        let is_restored = self.restore_tag.is_some() && stage == Stage::Input;
        let tag = self.restore_tag.as_deref().filter(|_| is_restored).unwrap_or_default();
        let mut detected = BTreeSet::new();
        let (mut changes, mut names) = (Vec::new(), PlaceholderNames::with_tag(tag));
        for (index, text) in texts {
            let mut findings = self.find(text);
            self.add_named(text, by_model, &mut findings);
            detected.extend(findings.iter().map(|finding| finding.category.name()));
            if self.redacts && !findings.is_empty() {
                // The same value has the same placeholder name everywhere, so that the text keeps its meaning.
                let replacements: Vec<_> = findings
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
        let excerpt = texts.first().map(|(first, text)| {
            let redacted = changes.iter().find(|(index, _)| index == first).map(|(_, text)| excerpt(text));
            redacted.or_else(|| detected.is_empty().then(|| excerpt(text)))
        });
        let data = json!({"verdict": verdict, "not": self.not, "explanation": explanation,
            "restrictedCategories": categories, "detectedCategories": detected, "textExcerpt": excerpt.flatten()});
        let change = (!changes.is_empty()).then_some(Change::Texts(changes));
        let restorations = if is_restored { names.into_values().collect() } else { Vec::new() };
        CheckOutcome { change, restorations, ..CheckOutcome::new(verdict, data) }
    }

    /// Adds a finding wherever a text contains a value that a model found, unless another finding is there.
    fn add_named(&self, text: &str, values: &[NamedValue], findings: &mut Vec<Finding>) {
        for NamedValue { category, value } in values {
            if self.allowed.includes(value) {
                continue;
            }
            for (start, _) in text.match_indices(value.as_str()) {
                let range = start..start + value.len();
                let is_taken =
                    findings.iter().any(|finding| finding.range.start < range.end && range.start < finding.range.end);
                if !is_taken && has_word_boundaries(text, &range) {
                    findings.push(Finding { range, category: *category });
                }
            }
        }
        findings.sort_by_key(|finding| finding.range.start);
    }

    /// Returns the reason why the response cannot return the values to the client, if there is one. A stored
    /// conversation repeats names of other requests, and a background response comes after this request.
    fn why_unrestorable(&self, input: &CheckInput<'_>) -> Option<&'static str> {
        if self.restore_tag.is_none() || input.stage != Stage::Input {
            return None;
        }
        if input.request["background"] == true {
            return Some("`restore` cannot return values to a response in the background; leave out one of them");
        }
        let continues = ["previous_response_id", "conversation"].iter().any(|name| !input.request[name].is_null());
        continues.then_some("`restore` cannot return values of a stored conversation; send all of its messages")
    }

    fn select_texts(&self, input: &CheckInput<'_>) -> Vec<(usize, String)> {
        let indexes = self.scope.select(input.stage, input.texts, false);
        indexes.into_iter().map(|index| (index, input.texts[index].text.clone())).collect()
    }
}

/// Check for personal data. It is in an `Arc`, because the job that calls a model outlives `Check::job`.
#[derive(Debug)]
struct PersonalDataCheck(Arc<PersonalData>);

impl Check for PersonalDataCheck {
    fn window(&self) -> Option<&dyn WindowCheck> {
        let check = &*self.0;
        (check.model.is_none() && (!check.not || check.redacts)).then_some(check)
    }

    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        match self.0.why_unrestorable(input) {
            Some(reason) => Err(CheckError::not_replaced(reason)),
            None => Ok(self.0.decide(&self.0.select_texts(input), input.stage, &[])),
        }
    }

    fn job(&self, input: &CheckInput<'_>) -> Option<CheckJob> {
        let (check, texts, stage) = (Arc::clone(&self.0), self.0.select_texts(input), input.stage);
        if check.why_unrestorable(input).is_some() {
            return None;
        }
        check.model.as_ref().filter(|_| texts.iter().any(|(_, text)| !text.trim().is_empty()))?;
        Some(Box::new(move |hosts: Arc<dyn HostAccess>| {
            async move {
                let Some(model) = &check.model else { return Ok(check.decide(&texts, stage, &[])) };
                let bytes: usize = texts.iter().map(|(_, text)| text.len()).sum();
                if bytes > MAX_QUESTION_BYTES {
                    let explanation =
                        format!("the text has {bytes} bytes; a model checks at most {MAX_QUESTION_BYTES}");
                    return Ok(CheckOutcome::new(false, json!({"verdict": false, "explanation": explanation})));
                }
                let values = model.find_values(&*hosts, &texts).await?;
                Ok(check.decide(&texts, stage, &values))
            }
            .boxed()
        }))
    }

    fn memory_bytes(&self) -> usize {
        self.0.allowed.memory_bytes()
    }

    fn is_costly(&self, input: &CheckInput<'_>) -> bool {
        let indexes = self.0.scope.select(input.stage, input.texts, false);
        let texts = indexes.into_iter().map(|index| input.texts[index].text.as_bytes());
        texts.map(|text| text.iter().filter(|byte| byte.is_ascii_digit()).count()).sum::<usize>() > MAX_INLINE_DIGITS
    }

    fn may_change(&self) -> bool {
        self.0.redacts
    }

    fn effects(&self) -> CheckEffects<'_> {
        CheckEffects { restoring_tag: self.0.restore_tag.as_deref(), ..CheckEffects::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{run_on, run_on_bodies},
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
            assert_ne!(category.pattern().unwrap().as_str(), "$^", "{category:?}");
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

    /// Examples of the authors of Presidio.
    const VECTORS: &[u8] = include_bytes!("../../data/presidio_vectors.json.gz");

    #[derive(Deserialize)]
    struct Vector {
        category: Category,
        text: String,
        count: usize,
        ranges: Vec<Range2>,
        /// True if Presidio itself gives a match little weight, as nine digits that may be anything.
        weak: bool,
    }

    type Range2 = (usize, usize);

    #[test]
    fn examples_of_presidio_are_found() {
        let vectors: Vec<Vector> = serde_json::from_reader(flate2::read::GzDecoder::new(VECTORS)).unwrap();
        let (mut totals, mut wrong) = (std::collections::BTreeMap::new(), Vec::new());
        for vector in vectors.iter().filter(|vector| !vector.weak) {
            let check = PersonalData {
                categories: BTreeSet::from([vector.category]),
                redacts: false,
                restore_tag: None,
                allowed: AllowedValues::compile(HashSet::new(), &[]).unwrap(),
                not: false,
                scope: TextScope::All,
                model: None,
            };
            let position = |byte: usize| vector.text[..byte].chars().count();
            let ranges: Vec<Range2> = check
                .find(&vector.text)
                .into_iter()
                .map(|finding| (position(finding.range.start), position(finding.range.end)))
                .collect();
            let is_right = ranges.len() == vector.count && (vector.ranges.is_empty() || ranges == vector.ranges);
            let total: &mut (usize, usize) = totals.entry(vector.category).or_default();
            total.0 += 1;
            if !is_right {
                total.1 += 1;
                wrong.push(format!("{:?} {:?}: {ranges:?}, not {:?}", vector.category, vector.text, vector.ranges));
            }
        }
        for (category, (total, failed)) in &totals {
            let most = if *category == Category::PhoneNumber { total / 20 } else { 0 };
            assert!(*failed <= most, "{category:?}: {failed} of {total}\n{}", wrong.join("\n"));
        }
        assert!(totals.len() == 6 && vectors.len() > 480, "{totals:?}");
    }

    #[test]
    fn values_side_by_side_are_all_found() {
        let parameters = json!({"categories": ["CREDIT_CARD"], "redact": true});
        let text = "4012888888881881 4012-8888-8888-1881 1 2 4012 8888 8888 1881 7";
        let outcome = run_on("gateway.pii", parameters, Stage::Input, text).unwrap();
        let expected = "{{CREDIT_CARD_1}} {{CREDIT_CARD_2}} 1 2 {{CREDIT_CARD_3}} 7";
        assert_eq!(outcome.change, Some(Change::Texts(vec![(0, expected.into())])));
    }

    #[test]
    fn values_that_return_have_names_of_their_check() {
        let run = |more: Value| {
            let mut parameters = json!({"categories": ["EMAIL_ADDRESS"], "redact": true, "restore": true});
            parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            run_on("gateway.pii", parameters, Stage::Input, "a@x.example").unwrap().restorations
        };
        let [(name, value)] = &run(json!({}))[..] else { panic!() };
        assert!(name.starts_with("{{EMAIL_ADDRESS_1_") && name.ends_with("}}") && value == "a@x.example", "{name}");
        assert_ne!(&run(json!({"scope": "user"}))[0].0, name);
        let output = json!({"categories": ["EMAIL_ADDRESS"], "redact": true, "restore": true});
        assert!(run_on("gateway.pii", output, Stage::Output, "a@x.example").unwrap().restorations.is_empty());
    }

    #[test]
    fn values_that_cannot_return_are_refused() {
        let parameters = json!({"categories": ["EMAIL_ADDRESS"], "redact": true, "restore": true});
        let mut keeping = parameters.clone();
        keeping["restore"] = json!(false);
        for (name, value) in [
            ("background", json!(true)),
            ("previous_response_id", json!("resp_1")),
            ("conversation", json!({"id": "conv_1"})),
        ] {
            let request = json!({"model": "m", "input": "to a@x.example", name: value});
            let run = |parameters: &Value| {
                run_on_bodies("gateway.pii", parameters.clone(), Stage::Input, &request, &Value::Null)
            };
            assert!(run(&parameters).unwrap_err().must_deny, "{name}");
            assert!(run(&keeping).is_ok(), "{name}");
        }
        let request = json!({"model": "m", "input": "to a@x.example", "background": false, "conversation": null});
        assert!(run_on_bodies("gateway.pii", parameters, Stage::Input, &request, &Value::Null).is_ok());
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
