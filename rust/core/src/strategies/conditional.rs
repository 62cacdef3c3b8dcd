//! Conditional routing strategy. Sends a request to the target of the first condition that it matches.

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
};

use serde_json::Value;

use crate::{
    parse::{bounded_regex::Pattern, document_reader::ConfigReader},
    strategies::{
        condition_input::{ConditionInput, ValueSource},
        query::Query,
    },
};

/// Conditions in config order, and the index of the target to use when none matches.
#[derive(Debug, Clone, Default)]
pub struct ConditionalRouting {
    conditions: Vec<Condition>,
    /// Distinct sources that prefilters read, so that each is looked up once per request.
    prefilter_sources: Vec<ValueSource>,
    default_target: Option<usize>,
}

#[derive(Debug, Clone)]
struct Condition {
    prefilter: Option<Prefilter>,
    query: Query,
    /// Index of the target that this condition selects.
    target_index: usize,
}

/// String value that a request must have for the query to match. Lets a config with a thousand conditions skip most of
/// them without evaluating the queries.
#[derive(Debug, Clone, Copy)]
struct Prefilter {
    /// Index into `prefilter_sources`.
    source_index: usize,
    text_hash: u64,
}

fn hash_text(text: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(text)
}

/// Conditions as written in the config, with targets referenced by name.
#[derive(Debug, Default)]
pub struct ConditionalDraft {
    conditions: Vec<(Query, String)>,
    default_target: Option<String>,
}

impl ConditionalDraft {
    /// Parses the `conditions` array; each item is `{"query", "then"}`.
    pub fn set_conditions(&mut self, value: &Value, reading: &mut ConfigReader) {
        self.conditions = reading.read_items(value, "an array of conditions", |reading, item| {
            let (mut query, mut then) = (None, None);
            reading.read_keys(item, |reading, key, value| {
                match key {
                    "query" => query = Some(Query::parse(value, reading)),
                    "then" => then = reading.read_string(value),
                    _ => return false,
                }
                true
            });
            if query.is_none() && item.is_object() {
                reading.report_problem("needs `query`, an object");
            }
            if then.is_none() && item.is_object() {
                reading.report_problem("needs `then`, the name of a target");
            }
            Some((query?, then?))
        });
    }

    pub fn set_default_target(&mut self, value: &Value, reading: &mut ConfigReader) {
        self.default_target = reading.read_string(value);
    }

    /// Replaces target names by indexes; reports names that no target has.
    pub fn resolve_targets<'n>(
        self,
        names: impl Iterator<Item = Option<&'n str>>,
        reading: &mut ConfigReader,
    ) -> ConditionalRouting {
        let mut indices = HashMap::new();
        for (target_index, name) in names.enumerate() {
            if let Some(name) = name {
                indices.entry(name.to_owned()).or_insert(target_index);
            }
        }
        let mut find = |key: &str, name: &str| {
            if !indices.contains_key(name) {
                reading.within_key(key, |reading| reading.report_problem(format!("no target is named `{name}`")));
            }
            indices.get(name).copied()
        };
        let mut conditional = ConditionalRouting::default();
        for (index, (query, then)) in self.conditions.into_iter().enumerate() {
            if let Some(target_index) = find(&format!("conditions[{index}].then"), &then) {
                conditional.push_condition(query, target_index);
            }
        }
        conditional.default_target = self.default_target.and_then(|name| find("default", &name));
        conditional
    }

    pub fn has_default_target(&self) -> bool {
        self.default_target.is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.default_target.is_none()
    }
}

impl ConditionalRouting {
    fn push_condition(&mut self, query: Query, target_index: usize) {
        let gate = query
            .required_text()
            .map(|(source, text)| Prefilter { source_index: self.intern_source(source), text_hash: hash_text(text) });
        self.conditions.push(Condition { prefilter: gate, query, target_index });
    }

    /// Returns the number of parts in all conditions. Each query, each operator and each value of a list counts as one
    /// part.
    pub fn part_count(&self) -> usize {
        self.conditions.iter().map(|condition| condition.query.part_count()).sum()
    }

    /// Passes each pattern of the conditions to `visit`, with the source of the text to match.
    pub fn visit_patterns<'q>(&'q self, visit: &mut impl FnMut(&'q Pattern, &'q ValueSource)) {
        self.conditions.iter().for_each(|condition| condition.query.visit_patterns(visit));
    }

    /// Returns the approximate memory use of the conditions in bytes, without their strings.
    pub fn estimated_bytes(&self) -> usize {
        self.conditions.iter().map(|condition| size_of::<Condition>() + condition.query.estimated_bytes()).sum()
    }

    fn intern_source(&mut self, source: &ValueSource) -> usize {
        self.prefilter_sources.iter().position(|existing| existing == source).unwrap_or_else(|| {
            self.prefilter_sources.push(source.clone());
            self.prefilter_sources.len() - 1
        })
    }

    /// Returns the index of the selected target and the index of the condition that matched (`None` for the default
    /// target).
    pub fn choose_target(&self, input: &ConditionInput<'_>) -> Option<(usize, Option<usize>)> {
        let values: Vec<_> =
            self.prefilter_sources.iter().map(|source| source.resolve(input).as_str().map(hash_text)).collect();
        let may_hold = |gate: Prefilter| values[gate.source_index] == Some(gate.text_hash);
        let holds = |condition: &Condition| condition.prefilter.is_none_or(may_hold) && condition.query.matches(input);
        match self.conditions.iter().position(holds) {
            Some(index) => Some((self.conditions[index].target_index, Some(index))),
            None => self.default_target.map(|target_index| (target_index, None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{accounting::record::metadata::Metadata, parse::document_reader::Strictness};

    const PATH: &str = "/v1/chat/completions";

    #[test]
    fn prefilter_skips_only_conditions_that_do_not_match() {
        let tests = [
            json!({"metadata.plan": "paid"}),
            json!({"metadata.plan": {"$regex": "^p", "$eq": "free"}}),
            json!({"metadata.plan": {"$ne": "free"}, "params.m": "a"}),
            json!({"params.m": 1}),
            json!({"params.m": {"$in": ["a", 1]}}),
            json!({"$or": [{"params.m": "b"}, {"metadata.plan": "free"}]}),
            json!({"$and": [{"$or": [{"params.m": "a"}]}, {"url.pathname": "/v1/chat/completions"}]}),
        ];
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..500 {
            let mut reading = ConfigReader::new(Strictness::Strict);
            let mut conditional = ConditionalRouting::default();
            for target_index in 0..4 {
                conditional.push_condition(Query::parse(random.choice(&tests).unwrap(), &mut reading), target_index);
            }
            reading.finish().unwrap();
            let metadata = Metadata::parse(random.choice([r#"{"plan":"paid"}"#, r#"{"plan":"free"}"#, "{}"]).unwrap());
            let params = [random.choice([None, Some(json!("a")), Some(json!("b")), Some(json!(1))]).unwrap()];
            let input = ConditionInput { metadata: &metadata, params: &params, path: PATH, pattern_results: None };
            let holds = conditional.conditions.iter().position(|condition| condition.query.matches(&input));
            assert_eq!(
                conditional.choose_target(&input).and_then(|(_, held)| held),
                holds,
                "{conditional:?} {input:?}"
            );
        }
    }
}
