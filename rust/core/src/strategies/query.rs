//! Query of a condition: parsing, and matching the values of a request.

use std::cmp::Ordering;

use serde_json::Value;

use crate::{
    parse::{bounded_regex::Pattern, document_reader::ConfigReader},
    strategies::condition_input::{ConditionInput, FieldValue, ValueSource},
};

/// Conjunction of terms: matches if every term matches.
#[derive(Debug, Clone)]
pub struct Query(Vec<Term>);

#[derive(Debug, Clone)]
enum Term {
    All(Vec<Query>),
    Any(Vec<Query>),
    Predicates(ValueSource, Vec<Predicate>),
}

#[derive(Debug, Clone)]
enum Predicate {
    Equal(Value),
    NotEqual(Value),
    /// Number to compare with, and the orderings that match.
    Ordered(f64, [Option<Ordering>; 2]),
    In(Vec<Value>),
    NotIn(Vec<Value>),
    Matches(Pattern),
}

const OPERATORS: &str = "$eq, $ne, $gt, $gte, $lt, $lte, $in, $nin, $regex";

impl Query {
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        let mut terms = Vec::new();
        for (key, value) in reading.read_object(value).into_iter().flatten() {
            reading.within_key(key, |reading| match key.as_str() {
                "$and" => terms.push(Term::All(parse_queries(value, reading))),
                "$or" => terms.push(Term::Any(parse_queries(value, reading))),
                _ if key.starts_with('$') => reading.report_problem("is not an operator here; use $and or $or"),
                _ => {
                    if let Some(source) = ValueSource::parse(key, reading) {
                        terms.push(Term::Predicates(source, parse_predicates(value, reading)));
                    }
                }
            });
        }
        Self(terms)
    }

    /// Returns a source and the string that it must have for this query to match, if there is one.
    pub(super) fn required_text(&self) -> Option<(&ValueSource, &str)> {
        self.0.iter().find_map(|term| match term {
            Term::All(queries) => queries.iter().find_map(Self::required_text),
            Term::Any(_) => None,
            Term::Predicates(source, tests) => tests.iter().find_map(|test| match test {
                Predicate::Equal(Value::String(text)) => Some((source, text.as_str())),
                _ => None,
            }),
        })
    }

    pub(super) fn part_count(&self) -> usize {
        let term_parts = |term: &Term| match term {
            Term::All(queries) | Term::Any(queries) => queries.iter().map(Self::part_count).sum(),
            Term::Predicates(_, tests) => tests.iter().map(Predicate::part_count).sum::<usize>(),
        };
        1 + self.0.iter().map(term_parts).sum::<usize>()
    }

    pub(super) fn estimated_bytes(&self) -> usize {
        let term_bytes = |term: &Term| match term {
            Term::All(queries) | Term::Any(queries) => queries.iter().map(Self::estimated_bytes).sum(),
            Term::Predicates(_, tests) => tests.iter().map(Predicate::estimated_bytes).sum::<usize>(),
        };
        self.0.iter().map(|term| size_of::<Term>() + term_bytes(term)).sum()
    }

    /// Passes each pattern to `visit`, with the source of the text to match.
    pub(super) fn visit_patterns<'q>(&'q self, visit: &mut impl FnMut(&'q Pattern, &'q ValueSource)) {
        self.0.iter().for_each(|term| match term {
            Term::All(queries) | Term::Any(queries) => queries.iter().for_each(|query| query.visit_patterns(visit)),
            Term::Predicates(source, tests) => {
                tests.iter().filter_map(Predicate::pattern).for_each(|pattern| visit(pattern, source));
            }
        });
    }

    pub fn matches(&self, input: &ConditionInput<'_>) -> bool {
        self.0.iter().all(|term| match term {
            Term::All(queries) => queries.iter().all(|query| query.matches(input)),
            Term::Any(queries) => queries.iter().any(|query| query.matches(input)),
            Term::Predicates(source, tests) => {
                let field_value = source.resolve(input);
                tests.iter().all(|test| test.known_result(source, input).unwrap_or_else(|| test.matches(field_value)))
            }
        })
    }
}

fn parse_queries(value: &Value, reading: &mut ConfigReader) -> Vec<Query> {
    reading.read_items(value, "an array of queries", |reading, item| Some(Query::parse(item, reading)))
}

fn parse_predicates(value: &Value, reading: &mut ConfigReader) -> Vec<Predicate> {
    let Some(operators) = value.as_object() else { return vec![Predicate::Equal(value.clone())] };
    let each =
        operators.iter().map(|(key, value)| reading.within_key(key, |reading| Predicate::parse(key, value, reading)));
    each.collect::<Vec<_>>().into_iter().flatten().collect()
}

impl Predicate {
    fn parse(operator: &str, value: &Value, reading: &mut ConfigReader) -> Option<Self> {
        use Ordering::{Equal, Greater, Less};
        match operator {
            "$eq" => Some(Self::Equal(value.clone())),
            "$ne" => Some(Self::NotEqual(value.clone())),
            "$gt" => Some(Self::Ordered(parse_bound(value, reading), [Some(Greater), None])),
            "$gte" => Some(Self::Ordered(parse_bound(value, reading), [Some(Greater), Some(Equal)])),
            "$lt" => Some(Self::Ordered(parse_bound(value, reading), [Some(Less), None])),
            "$lte" => Some(Self::Ordered(parse_bound(value, reading), [Some(Less), Some(Equal)])),
            "$in" => Some(Self::In(reading.read_items(value, "an array", |_, item| Some(item.clone())))),
            "$nin" => Some(Self::NotIn(reading.read_items(value, "an array", |_, item| Some(item.clone())))),
            "$regex" => parse_pattern(value, reading).map(Self::Matches),
            _ => {
                reading.report_problem(format!("is not an operator; use one of {OPERATORS}"));
                None
            }
        }
    }

    fn part_count(&self) -> usize {
        match self {
            Self::In(values) | Self::NotIn(values) => 1 + values.len(),
            _ => 1,
        }
    }

    fn estimated_bytes(&self) -> usize {
        let pattern = self.pattern().map_or(0, Pattern::estimated_bytes);
        self.part_count() * size_of::<Self>() + pattern
    }

    fn pattern(&self) -> Option<&Pattern> {
        if let Self::Matches(pattern) = self { Some(pattern) } else { None }
    }

    fn known_result(&self, source: &ValueSource, input: &ConditionInput<'_>) -> Option<bool> {
        self.pattern().and_then(|pattern| input.pattern_result(pattern.number, source))
    }

    fn matches(&self, actual: FieldValue<'_>) -> bool {
        match self {
            Self::Equal(value) => equals_value(actual, value),
            Self::NotEqual(value) => !equals_value(actual, value),
            // A value that is not a number becomes NaN, which is unequal to every number.
            Self::Ordered(number, orders) => {
                numeric_value(actual).partial_cmp(number).is_some_and(|order| orders.contains(&Some(order)))
            }
            Self::In(values) => values.iter().any(|value| equals_value(actual, value)),
            Self::NotIn(values) => !values.iter().any(|value| equals_value(actual, value)),
            Self::Matches(regex) => match actual.as_str() {
                Some(text) => regex.is_match(text),
                None => actual.to_scalar_string().is_some_and(|text| regex.is_match(&text)),
            },
        }
    }
}

fn parse_pattern(value: &Value, reading: &mut ConfigReader) -> Option<Pattern> {
    let Some(text) = value.as_str() else {
        reading.report_expected("a regular expression as a string", value);
        return None;
    };
    match reading.patterns.compile(text) {
        Ok(pattern) => Some(pattern),
        Err(message) => {
            if !message.is_empty() {
                reading.report_problem(message);
            }
            None
        }
    }
}

/// Parses the bound of an ordering operator as a number. In strict mode, rejects a value without a leading number,
/// because such a bound never matches.
fn parse_bound(value: &Value, reading: &mut ConfigReader) -> f64 {
    let number = numeric_value(FieldValue::Json(value));
    if number.is_nan() && reading.is_strict() {
        reading.report_expected("a number, or a string that begins with one", value);
    }
    number
}

fn equals_value(actual: FieldValue<'_>, value: &Value) -> bool {
    match (actual, value) {
        (actual, Value::String(value)) => actual.as_str() == Some(value),
        (FieldValue::Json(Value::Number(number)), Value::Number(value)) => number.as_f64() == value.as_f64(),
        (FieldValue::Json(actual), value) => actual == value,
        _ => false,
    }
}

/// Returns the number that a value is or begins with; NaN if there is none.
fn numeric_value(actual: FieldValue<'_>) -> f64 {
    match (actual.as_str(), actual) {
        (Some(text), _) => parse_leading_number(text),
        (None, FieldValue::Json(Value::Number(number))) => number.as_f64().unwrap_or(f64::NAN),
        _ => f64::NAN,
    }
}

/// Parses the leading number of a text like JavaScript's `parseFloat`: `1e` and `1.5.2` are valid too. Takes one pass,
/// whatever the length of the text.
fn parse_leading_number(text: &str) -> f64 {
    let text = text.trim_start();
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_sign = |at: usize| matches!(bytes.get(at), Some(b'+' | b'-'));
    let start = usize::from(is_sign(0));
    let integer = digits(start);
    let mut end = start + integer;
    let fraction = if bytes.get(end) == Some(&b'.') { digits(end + 1) } else { 0 };
    if integer + fraction == 0 {
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
    use crate::{accounting::record::metadata::Metadata, parse::document_reader::Strictness};

    const PATH: &str = "/v1/chat/completions";

    /// Returns true if the query matches a request with these body fields.
    fn query_matches(query: &Value, params: &Value) -> bool {
        let mut reading = ConfigReader::new(Strictness::Strict);
        let query = Query::parse(query, &mut reading);
        let names = reading.finish().unwrap();
        let params: Vec<_> = names.iter().map(|name| params.get(name).cloned()).collect();
        let metadata = Metadata::parse(r#"{"plan":"paid","age":"30","a.b":"dotted"}"#);
        query.matches(&ConditionInput { metadata: &metadata, params: &params, path: PATH, pattern_results: None })
    }

    #[test]
    fn plain_value_requires_equality() {
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
            assert_eq!(query_matches(&query, &params), expected, "{query}");
        }
    }

    #[test]
    fn all_operators_of_a_field_must_match() {
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
            assert_eq!(query_matches(&query, &params), expected, "{query}");
        }
    }

    #[test]
    fn missing_value_matches_only_negated_operators() {
        for (operator, expected) in [("$eq", false), ("$ne", true), ("$gt", false), ("$lte", false), ("$regex", false)]
        {
            assert_eq!(query_matches(&json!({"params.x": {operator: "1"}}), &json!({})), expected, "{operator}");
            assert_eq!(query_matches(&json!({"metadata.x": {operator: "1"}}), &json!({})), expected, "{operator}");
        }
        assert!(
            query_matches(&json!({"params.x": {"$nin": [1]}}), &json!({}))
                && !query_matches(&json!({"params.x": {"$in": [1]}}), &json!({}))
        );
    }

    #[test]
    fn and_or_nest_and_combine_with_sibling_fields() {
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
            assert_eq!(query_matches(&query, &params), expected, "{query}");
        }
    }

    #[test]
    fn reports_invalid_queries_with_their_paths() {
        let mut reading = ConfigReader::new(Strictness::Strict);
        let query =
            json!({"plan": 1, "$not": [], "$and": [{"params.m": {"$regex": "(?=x)", "$x": 1, "$in": 3}}], "$or": 1});
        Query::parse(&query, &mut reading);
        let paths: Vec<_> = reading.finish().unwrap_err().into_iter().map(|problem| problem.path).collect();
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
    fn parses_leading_number_of_text() {
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
            assert!((parse_leading_number(text) - number).abs() < 1e-12, "{text}");
        }
        for text in ["", ".", "-", "+-1", "e5", "-.e1", "abc"] {
            assert!(parse_leading_number(text).is_nan(), "{text}");
        }
    }

    #[test]
    fn parses_leading_number_of_long_text_in_one_pass() {
        // Linear work, so this takes milliseconds; quadratic work on a megabyte would hang the test.
        for text in ["9", "+", "1+", "1e", "1.", "-1e+"] {
            let long = json!({"n": text.repeat(1_000_000 / text.len())});
            query_matches(&json!({"params.n": {"$gt": 1}}), &long);
        }
    }

    #[test]
    fn rejects_bounds_without_number_in_strict_mode() {
        for (value, is_good) in [
            (json!("abc"), false),
            (json!(null), false),
            (json!([1]), false),
            (json!("2024-05-01"), true),
            (json!(3), true),
        ] {
            for operator in ["$gt", "$gte", "$lt", "$lte"] {
                let read = |unknown| {
                    let mut reading = ConfigReader::new(unknown);
                    Query::parse(&json!({"params.n": {operator: value}}), &mut reading);
                    reading.finish().map_err(|problems| problems[0].path.clone())
                };
                let expected = if is_good { Ok(vec!["n".to_owned()]) } else { Err(format!("$.params.n.{operator}")) };
                assert_eq!(read(Strictness::Strict), expected, "{value}");
                assert!(read(Strictness::Lenient).is_ok());
            }
        }
    }

    #[test]
    fn counts_each_query_operator_and_value_as_one_part() {
        let mut reading = ConfigReader::new(Strictness::Strict);
        let query = json!({"$or": [{"params.a": 1}, {"params.b": {"$in": [1, 2, 3], "$ne": 4}}]});
        assert_eq!(Query::parse(&query, &mut reading).part_count(), 1 + 2 + 6);
    }

    #[test]
    fn matches_pathological_pattern_in_linear_time() {
        // Linear work, so this takes milliseconds; a matcher that backtracks would hang the test.
        let query = json!({"params.t": {"$regex": "^(a+)+$"}});
        assert!(!query_matches(&query, &json!({"t": "a".repeat(50_000) + "b"})));
    }
}
