//! The strategy that asks about a request: the first condition that holds names the target.

use std::{
    cmp::Ordering,
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
};

use serde_json::Value;

use super::pattern::Pattern;
use crate::config::Reading;
use crate::routing::condition_input::{Asked, Found, Source};

/// Conditions in their order, and the place of the target where none holds.
#[derive(Debug, Clone, Default)]
pub struct Conditional {
    conditions: Vec<Condition>,
    /// Where the texts of gates are looked for, each once.
    sources: Vec<Source>,
    default: Option<usize>,
}

#[derive(Debug, Clone)]
struct Condition {
    gate: Option<Gate>,
    query: Query,
    /// Of its target.
    place: usize,
}

/// A text without which a query cannot hold: one of a thousand conditions is passed by without being looked into.
#[derive(Debug, Clone, Copy)]
struct Gate {
    /// Its place among the sources.
    source: usize,
    hash: u64,
}

fn hash(text: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(text)
}

/// As it was written: targets by their names.
#[derive(Debug, Default)]
pub struct Draft {
    conditions: Vec<(Query, String)>,
    default: Option<String>,
}

impl Draft {
    /// An array of `{"query", "then"}`.
    pub fn set_conditions(&mut self, value: &Value, reading: &mut Reading) {
        self.conditions = reading.items(value, "an array of conditions", |reading, item| {
            let (mut query, mut then) = (None, None);
            reading.keys(item, |reading, key, value| {
                match key {
                    "query" => query = Some(Query::parse(value, reading)),
                    "then" => then = reading.text(value),
                    _ => return false,
                }
                true
            });
            if query.is_none() && item.is_object() {
                reading.refuse("needs `query`, an object");
            }
            if then.is_none() && item.is_object() {
                reading.refuse("needs `then`, the name of a target");
            }
            Some((query?, then?))
        });
    }

    pub fn set_default(&mut self, value: &Value, reading: &mut Reading) {
        self.default = reading.text(value);
    }

    /// Finds the targets by their names.
    pub fn resolve<'n>(self, names: impl Iterator<Item = Option<&'n str>>, reading: &mut Reading) -> Conditional {
        let mut places = HashMap::new();
        for (place, name) in names.enumerate() {
            if let Some(name) = name {
                places.entry(name.to_owned()).or_insert(place);
            }
        }
        let mut find = |key: &str, name: &str| {
            if !places.contains_key(name) {
                reading.within(key, |reading| reading.refuse(format!("no target is named `{name}`")));
            }
            places.get(name).copied()
        };
        let mut conditional = Conditional::default();
        for (index, (query, then)) in self.conditions.into_iter().enumerate() {
            if let Some(place) = find(&format!("conditions[{index}].then"), &then) {
                conditional.add(query, place);
            }
        }
        conditional.default = self.default.and_then(|name| find("default", &name));
        conditional
    }

    pub fn has_default(&self) -> bool {
        self.default.is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.default.is_none()
    }
}

impl Conditional {
    fn add(&mut self, query: Query, place: usize) {
        let gate = query.text().map(|(source, text)| Gate { source: self.source(source), hash: hash(text) });
        self.conditions.push(Condition { gate, query, place });
    }

    /// How many parts its conditions have: each query, each operator and each value in a list is one.
    pub fn parts(&self) -> usize {
        self.conditions.iter().map(|condition| condition.query.parts()).sum()
    }

    /// About so many bytes its conditions hold, but for their texts.
    pub fn held(&self) -> usize {
        self.conditions.iter().map(|condition| size_of::<Condition>() + condition.query.held()).sum()
    }

    fn source(&mut self, source: &Source) -> usize {
        self.sources.iter().position(|known| known == source).unwrap_or_else(|| {
            self.sources.push(source.clone());
            self.sources.len() - 1
        })
    }

    /// The place of the target; beside it which condition held.
    pub fn choose(&self, asked: &Asked<'_>) -> Option<(usize, Option<usize>)> {
        let found: Vec<_> = self.sources.iter().map(|source| source.find(asked).as_text().map(hash)).collect();
        let may_hold = |gate: Gate| found[gate.source] == Some(gate.hash);
        let held = |condition: &Condition| condition.gate.is_none_or(may_hold) && condition.query.holds(asked);
        match self.conditions.iter().position(held) {
            Some(index) => Some((self.conditions[index].place, Some(index))),
            None => self.default.map(|place| (place, None)),
        }
    }
}

/// All of these hold.
#[derive(Debug, Clone)]
pub struct Query(Vec<Term>);

#[derive(Debug, Clone)]
enum Term {
    All(Vec<Query>),
    Any(Vec<Query>),
    Tests(Source, Vec<Test>),
}

#[derive(Debug, Clone)]
enum Test {
    Equal(Value),
    Unequal(Value),
    /// How the value may compare to the number.
    Ordered(f64, [Option<Ordering>; 2]),
    Among(Vec<Value>),
    NotAmong(Vec<Value>),
    Matches(Pattern),
}

const OPERATORS: &str = "$eq, $ne, $gt, $gte, $lt, $lte, $in, $nin, $regex";

impl Query {
    pub fn parse(value: &Value, reading: &mut Reading) -> Self {
        let mut terms = Vec::new();
        for (key, value) in reading.object(value).into_iter().flatten() {
            reading.within(key, |reading| match key.as_str() {
                "$and" => terms.push(Term::All(queries(value, reading))),
                "$or" => terms.push(Term::Any(queries(value, reading))),
                _ if key.starts_with('$') => reading.refuse("is no operator here: $and and $or are"),
                _ => {
                    if let Some(source) = Source::parse(key, reading) {
                        terms.push(Term::Tests(source, tests(value, reading)));
                    }
                }
            });
        }
        Self(terms)
    }

    /// A text that has to be found for it to hold.
    fn text(&self) -> Option<(&Source, &str)> {
        self.0.iter().find_map(|term| match term {
            Term::All(queries) => queries.iter().find_map(Self::text),
            Term::Any(_) => None,
            Term::Tests(source, tests) => tests.iter().find_map(|test| match test {
                Test::Equal(Value::String(text)) => Some((source, text.as_str())),
                _ => None,
            }),
        })
    }

    fn parts(&self) -> usize {
        let of = |term: &Term| match term {
            Term::All(queries) | Term::Any(queries) => queries.iter().map(Self::parts).sum(),
            Term::Tests(_, tests) => tests.iter().map(Test::parts).sum::<usize>(),
        };
        1 + self.0.iter().map(of).sum::<usize>()
    }

    fn held(&self) -> usize {
        let of = |term: &Term| match term {
            Term::All(queries) | Term::Any(queries) => queries.iter().map(Self::held).sum(),
            Term::Tests(_, tests) => tests.iter().map(Test::held).sum::<usize>(),
        };
        self.0.iter().map(|term| size_of::<Term>() + of(term)).sum()
    }

    pub fn holds(&self, asked: &Asked<'_>) -> bool {
        self.0.iter().all(|term| match term {
            Term::All(queries) => queries.iter().all(|query| query.holds(asked)),
            Term::Any(queries) => queries.iter().any(|query| query.holds(asked)),
            Term::Tests(source, tests) => {
                let found = source.find(asked);
                tests.iter().all(|test| test.holds(found))
            }
        })
    }
}

fn queries(value: &Value, reading: &mut Reading) -> Vec<Query> {
    reading.items(value, "an array of queries", |reading, item| Some(Query::parse(item, reading)))
}

fn tests(value: &Value, reading: &mut Reading) -> Vec<Test> {
    let Some(operators) = value.as_object() else { return vec![Test::Equal(value.clone())] };
    let each = operators.iter().map(|(key, value)| reading.within(key, |reading| Test::parse(key, value, reading)));
    each.collect::<Vec<_>>().into_iter().flatten().collect()
}

impl Test {
    fn parse(operator: &str, value: &Value, reading: &mut Reading) -> Option<Self> {
        use Ordering::{Equal, Greater, Less};
        match operator {
            "$eq" => Some(Self::Equal(value.clone())),
            "$ne" => Some(Self::Unequal(value.clone())),
            "$gt" => Some(Self::Ordered(bound(value, reading), [Some(Greater), None])),
            "$gte" => Some(Self::Ordered(bound(value, reading), [Some(Greater), Some(Equal)])),
            "$lt" => Some(Self::Ordered(bound(value, reading), [Some(Less), None])),
            "$lte" => Some(Self::Ordered(bound(value, reading), [Some(Less), Some(Equal)])),
            "$in" => Some(Self::Among(reading.items(value, "an array", |_, item| Some(item.clone())))),
            "$nin" => Some(Self::NotAmong(reading.items(value, "an array", |_, item| Some(item.clone())))),
            "$regex" => pattern(value, reading).map(Self::Matches),
            _ => {
                reading.refuse(format!("is no operator: {OPERATORS} are"));
                None
            }
        }
    }

    fn parts(&self) -> usize {
        match self {
            Self::Among(values) | Self::NotAmong(values) => 1 + values.len(),
            _ => 1,
        }
    }

    fn held(&self) -> usize {
        let pattern = if let Self::Matches(pattern) = self { pattern.held() } else { 0 };
        self.parts() * size_of::<Self>() + pattern
    }

    fn holds(&self, found: Found<'_>) -> bool {
        match self {
            Self::Equal(value) => is_equal(found, value),
            Self::Unequal(value) => !is_equal(found, value),
            // What is no number compares to nothing.
            Self::Ordered(number, orders) => {
                number_of(found).partial_cmp(number).is_some_and(|order| orders.contains(&Some(order)))
            }
            Self::Among(values) => values.iter().any(|value| is_equal(found, value)),
            Self::NotAmong(values) => !values.iter().any(|value| is_equal(found, value)),
            Self::Matches(regex) => match found.as_text() {
                Some(text) => regex.is_match(text),
                None => found.text().is_some_and(|text| regex.is_match(&text)),
            },
        }
    }
}

fn pattern(value: &Value, reading: &mut Reading) -> Option<Pattern> {
    let Some(text) = value.as_str() else {
        reading.expected("a regular expression as a string", value);
        return None;
    };
    match reading.patterns.compile(text) {
        Ok(pattern) => Some(pattern),
        Err(message) => {
            if !message.is_empty() {
                reading.refuse(message);
            }
            None
        }
    }
}

/// What is compared to a number, as one. What begins with none compares to nothing: that is a mistake.
fn bound(value: &Value, reading: &mut Reading) -> f64 {
    let number = number_of(Found::Json(value));
    if number.is_nan() && reading.is_strict() {
        reading.expected("a number, or a text that begins with one", value);
    }
    number
}

fn is_equal(found: Found<'_>, value: &Value) -> bool {
    match (found, value) {
        (found, Value::String(value)) => found.as_text() == Some(value),
        (Found::Json(Value::Number(number)), Value::Number(value)) => number.as_f64() == value.as_f64(),
        (Found::Json(found), value) => found == value,
        _ => false,
    }
}

/// The number that a value begins with.
fn number_of(found: Found<'_>) -> f64 {
    match (found.as_text(), found) {
        (Some(text), _) => leading_number(text),
        (None, Found::Json(Value::Number(number))) => number.as_f64().unwrap_or(f64::NAN),
        _ => f64::NAN,
    }
}

/// As JavaScript's `parseFloat` has it: `1e` and `1.5.2` begin with a number too. One pass, however long the text is.
fn leading_number(text: &str) -> f64 {
    let text = text.trim_start();
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_sign = |at: usize| matches!(bytes.get(at), Some(b'+' | b'-'));
    let start = usize::from(is_sign(0));
    let whole = digits(start);
    let mut end = start + whole;
    let fraction = if bytes.get(end) == Some(&b'.') { digits(end + 1) } else { 0 };
    if whole + fraction == 0 {
        return f64::NAN;
    }
    end += if fraction > 0 { fraction + 1 } else { 0 };
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let after = end + 1 + usize::from(is_sign(end + 1));
        let exponent = digits(after);
        end = if exponent > 0 { after + exponent } else { end };
    }
    text[..end].parse().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{accounting::record::metadata::Metadata, config::Unknown};

    /// Whether a query holds for a request with these fields.
    fn holds(query: &Value, params: &Value) -> bool {
        let mut reading = Reading::new(Unknown::Refused);
        let query = Query::parse(query, &mut reading);
        let names = reading.end().unwrap();
        let params: Vec<_> = names.iter().map(|name| params.get(name).cloned()).collect();
        let metadata = Metadata::read(r#"{"plan":"paid","age":"30","a.b":"dotted"}"#);
        query.holds(&Asked { metadata: &metadata, params: &params, path: "/v1/chat/completions" })
    }

    #[test]
    fn a_plain_value_must_be_the_same() {
        let params = json!({"model": "m", "n": 1, "s": true, "deep": {"x": [{"y": 2}]}});
        for (query, expected) in [
            (json!({"metadata.plan": "paid"}), true),
            (json!({"metadata.plan": "free"}), false),
            (json!({"metadata.a.b": "dotted"}), true),
            (json!({"metadata.age": 30}), false),
            (json!({"params.n": 1.0}), true),
            (json!({"params.n": "1"}), false),
            (json!({"params.s": true, "params.model": "m"}), true),
            (json!({"params.s": true, "params.model": "other"}), false),
            (json!({"params.deep.x.0.y": 2}), true),
            (json!({"url.pathname": "/v1/chat/completions"}), true),
            (json!({}), true),
        ] {
            assert_eq!(holds(&query, &params), expected, "{query}");
        }
    }

    #[test]
    fn every_operator_beside_any_other_counts() {
        let params = json!({"n": 5, "t": "7 days", "m": "gpt-5"});
        for (query, expected) in [
            (json!({"params.n": {"$eq": 5, "$ne": 6}}), true),
            (json!({"params.n": {"$gt": 4, "$lte": 5}}), true),
            (json!({"params.n": {"$gt": 4, "$lt": 5}}), false),
            (json!({"params.n": {"$gte": "5"}}), true),
            (json!({"params.t": {"$gt": 6, "$lt": 8}}), true),
            (json!({"params.m": {"$gt": 1}}), false),
            (json!({"params.m": {"$in": ["x", "gpt-5"]}}), true),
            (json!({"params.m": {"$nin": ["x", "gpt-5"]}}), false),
            (json!({"params.m": {"$regex": "^gpt", "$ne": "gpt-5"}}), false),
            (json!({"params.m": {"$regex": "T-5"}}), false),
            (json!({"params.n": {"$regex": "^5$"}}), true),
            (json!({"metadata.age": {"$gte": 30}}), true),
        ] {
            assert_eq!(holds(&query, &params), expected, "{query}");
        }
    }

    #[test]
    fn a_gate_keeps_out_only_what_does_not_hold() {
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
            let mut reading = Reading::new(Unknown::Refused);
            let mut conditional = Conditional::default();
            for place in 0..4 {
                conditional.add(Query::parse(random.choice(&tests).unwrap(), &mut reading), place);
            }
            reading.end().unwrap();
            let metadata = Metadata::read(random.choice([r#"{"plan":"paid"}"#, r#"{"plan":"free"}"#, "{}"]).unwrap());
            let params = [random.choice([None, Some(json!("a")), Some(json!("b")), Some(json!(1))]).unwrap()];
            let asked = Asked { metadata: &metadata, params: &params, path: "/v1/chat/completions" };
            let holds = conditional.conditions.iter().position(|condition| condition.query.holds(&asked));
            assert_eq!(conditional.choose(&asked).and_then(|(_, held)| held), holds, "{conditional:?} {asked:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_only_unequal() {
        for (operator, expected) in [("$eq", false), ("$ne", true), ("$gt", false), ("$lte", false), ("$regex", false)]
        {
            assert_eq!(holds(&json!({"params.x": {operator: "1"}}), &json!({})), expected, "{operator}");
            assert_eq!(holds(&json!({"metadata.x": {operator: "1"}}), &json!({})), expected, "{operator}");
        }
        assert!(
            holds(&json!({"params.x": {"$nin": [1]}}), &json!({}))
                && !holds(&json!({"params.x": {"$in": [1]}}), &json!({}))
        );
    }

    #[test]
    fn and_or_nest_and_their_siblings_count() {
        let params = json!({"a": 1, "b": 2});
        let (a, b, no) = (json!({"params.a": 1}), json!({"params.b": 2}), json!({"params.a": 9}));
        for (query, expected) in [
            (json!({"$and": [a, b]}), true),
            (json!({"$and": [a, no]}), false),
            (json!({"$or": [no, b]}), true),
            (json!({"$or": [no]}), false),
            (json!({"$or": [a], "params.b": 3}), false),
            (json!({"$and": [a], "$or": [no]}), false),
            (json!({"$and": [{"$or": [no, {"$and": [a, b]}]}]}), true),
        ] {
            assert_eq!(holds(&query, &params), expected, "{query}");
        }
    }

    #[test]
    fn what_is_no_query_is_told_with_its_place() {
        let mut reading = Reading::new(Unknown::Refused);
        let query =
            json!({"plan": 1, "$not": [], "$and": [{"params.m": {"$regex": "(?=x)", "$x": 1, "$in": 3}}], "$or": 1});
        Query::parse(&query, &mut reading);
        let paths: Vec<_> = reading.end().unwrap_err().into_iter().map(|problem| problem.path).collect();
        assert_eq!(
            paths,
            [
                "$.plan",
                "$.$not",
                "$.$and[0].params.m.$regex",
                "$.$and[0].params.m.$x",
                "$.$and[0].params.m.$in",
                "$.$or"
            ]
        );
    }

    #[test]
    fn what_begins_with_a_number_is_one() {
        for (text, number) in [
            ("7 days", 7.0),
            (" -1.5.2", -1.5),
            ("+.5x", 0.5),
            ("5.", 5.0),
            ("1e", 1.0),
            ("1e+", 1.0),
            ("2E-1e9", 0.2),
            ("2024-05-01T10:00:00Z", 2024.0),
        ] {
            assert!((leading_number(text) - number).abs() < 1e-12, "{text}");
        }
        for text in ["", ".", "-", "+-1", "e5", "-.e1", "abc"] {
            assert!(leading_number(text).is_nan(), "{text}");
        }
    }

    #[test]
    fn a_long_text_is_looked_through_once_for_its_number() {
        let start = std::time::Instant::now();
        for text in ["9", "+", "1+", "1e", "1.", "-1e+"] {
            let long = json!({"n": text.repeat(1_000_000 / text.len())});
            holds(&json!({"params.n": {"$gt": 1}}), &long);
        }
        assert!(start.elapsed() < std::time::Duration::from_millis(500), "{:?}", start.elapsed());
    }

    #[test]
    fn what_compares_to_nothing_is_refused_where_it_is_saved() {
        for (value, is_good) in [
            (json!("abc"), false),
            (json!(null), false),
            (json!([1]), false),
            (json!("2024-05-01"), true),
            (json!(3), true),
        ] {
            for operator in ["$gt", "$gte", "$lt", "$lte"] {
                let read = |unknown| {
                    let mut reading = Reading::new(unknown);
                    Query::parse(&json!({"params.n": {operator: value}}), &mut reading);
                    reading.end().map_err(|problems| problems[0].path.clone())
                };
                let expected = if is_good { Ok(vec!["n".to_owned()]) } else { Err(format!("$.params.n.{operator}")) };
                assert_eq!(read(Unknown::Refused), expected, "{value}");
                assert!(read(Unknown::Ignored).is_ok());
            }
        }
    }

    #[test]
    fn each_query_operator_and_value_is_a_part() {
        let mut reading = Reading::new(Unknown::Refused);
        let query = json!({"$or": [{"params.a": 1}, {"params.b": {"$in": [1, 2, 3], "$ne": 4}}]});
        assert_eq!(Query::parse(&query, &mut reading).parts(), 1 + 2 + 6);
    }

    #[test]
    fn an_evil_pattern_takes_no_time() {
        let start = std::time::Instant::now();
        let query = json!({"params.t": {"$regex": "^(a+)+$"}});
        assert!(!holds(&query, &json!({"t": "a".repeat(50_000) + "b"})));
        assert!(start.elapsed() < std::time::Duration::from_secs(1));
    }
}
