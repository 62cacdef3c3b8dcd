//! In-place edits of a JSON object's bytes. Everything that is not edited keeps its bytes and its order.

use std::{collections::HashMap, ops::Range};

use serde_json::Value;

use super::scan::{ScanError, for_each_element_from, for_each_field, for_each_field_from, string_literal_at};

/// Step of the path to a value that is removed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum PathStep {
    /// A key, or an array index if it is a number.
    Key(String),
    /// An index in brackets.
    Index(usize),
    Wildcard,
}

/// Path of a value in a request: `tools[0].function.strict`, `tools[*].x`, `messages.2.name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldPath(Vec<PathStep>);

impl FieldPath {
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (mut steps, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            rest = match rest.strip_prefix('[') {
                Some(inner) => parse_bracket(inner, &mut steps)?,
                None => parse_name(rest, steps.is_empty(), &mut steps)?,
            };
        }
        if steps.is_empty() { Err("must not be empty") } else { Ok(Self(steps)) }
    }

    /// Returns the top-level field to which the path leads; `*` for any.
    pub fn first_field(&self) -> &str {
        match self.0.first() {
            Some(PathStep::Key(name)) => name,
            _ => "*",
        }
    }

    /// Returns true if the path is this top-level field or leads into it.
    pub fn starts_with_field(&self, field: &str) -> bool {
        matches!(self.0.first(), Some(PathStep::Key(name)) if name == field)
    }
}

fn parse_bracket<'t>(inner: &'t str, steps: &mut Vec<PathStep>) -> Result<&'t str, &'static str> {
    let (text, rest) = match inner.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let (text, rest) = inner[1..].split_once(quote).ok_or("has a quote that is not closed")?;
            steps.push(PathStep::Key(text.to_owned()));
            return rest.strip_prefix(']').ok_or("has a bracket that is not closed");
        }
        _ => inner.split_once(']').ok_or("has a bracket that is not closed")?,
    };
    steps.push(match text {
        "*" => PathStep::Wildcard,
        number => PathStep::Index(number.parse().map_err(|_| "must have a number, `*` or a quoted name in brackets")?),
    });
    Ok(rest)
}

fn parse_name<'t>(text: &'t str, is_first: bool, steps: &mut Vec<PathStep>) -> Result<&'t str, &'static str> {
    let text = if is_first { text } else { text.strip_prefix('.').ok_or("needs a dot between two names")? };
    let (name, rest) = text.split_at(text.find(['.', '[']).unwrap_or(text.len()));
    match name {
        "" => return Err("has an empty name"),
        "*" => steps.push(PathStep::Wildcard),
        name => steps.push(PathStep::Key(name.to_owned())),
    }
    Ok(rest)
}

/// Key of a top-level field and its value as JSON.
pub type JsonField = (String, Box<[u8]>);

/// Builds a field from a key and a value.
pub fn json_field(key: &str, value: &Value) -> JsonField {
    (key.to_owned(), value.to_string().into_bytes().into())
}

/// Sets each field of `always`, and the fields of `missing` that the body does not have. Existing fields are replaced
/// in place; new ones are appended.
pub fn set_fields(body: &[u8], missing: &[JsonField], always: &[JsonField]) -> Result<Vec<u8>, ScanError> {
    let mut out = Vec::with_capacity(body.len() + 64);
    let (mut copied, mut count) = (0, 0);
    let (mut has, mut had) = (vec![false; always.len()], vec![false; missing.len()]);
    let (always_index, missing_index) = (FieldIndex::new(always), FieldIndex::new(missing));
    for_each_field(body, |key, at| {
        count += 1;
        if let Some(index) = missing_index.find(key) {
            had[index] = true;
        }
        if let Some(index) = always_index.find(key) {
            has[index] = true;
            out.extend_from_slice(&body[copied..at.start]);
            out.extend_from_slice(&always[index].1);
            copied = at.end;
        }
        Ok(())
    })?;
    let end = body.iter().rposition(|byte| *byte == b'}').unwrap_or(body.len());
    let before = body[copied..end].trim_ascii_end();
    out.extend_from_slice(before);
    let absent = |fields: &'_ [JsonField], present: &[bool]| -> Vec<usize> {
        (0..fields.len()).filter(|index| !present[*index]).collect()
    };
    let added = absent(missing, &had)
        .into_iter()
        .map(|index| &missing[index])
        .filter(|(key, _)| always_index.find(key.as_bytes()).is_none());
    for (key, value) in added.chain(absent(always, &has).into_iter().map(|index| &always[index])) {
        if count > 0 {
            out.push(b',');
        }
        count += 1;
        out.extend_from_slice(Value::from(key.as_str()).to_string().as_bytes());
        out.push(b':');
        out.extend_from_slice(value);
    }
    out.extend_from_slice(&body[copied + before.len()..]);
    Ok(out)
}

/// Number of fields above which a hash table is faster than a search.
const MAX_SEARCHED_FIELDS: usize = 16;

/// Finds fields by name, in constant time even if there are many. Body and config may both hold thousands.
enum FieldIndex<'f> {
    Few(&'f [JsonField]),
    Many(HashMap<&'f [u8], usize>),
}

impl<'f> FieldIndex<'f> {
    fn new(fields: &'f [JsonField]) -> Self {
        if fields.len() <= MAX_SEARCHED_FIELDS {
            return Self::Few(fields);
        }
        // The first of several fields with the same name counts, so later ones are inserted first.
        Self::Many(fields.iter().enumerate().rev().map(|(index, (name, _))| (name.as_bytes(), index)).collect())
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        match self {
            Self::Few(fields) => fields.iter().position(|(name, _)| name.as_bytes() == key),
            Self::Many(by_name) => by_name.get(key).copied(),
        }
    }
}

/// Edit of a top-level field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldChange {
    Unchanged,
    Removed,
    /// Replaces the key, the value (JSON), or both.
    Replaced {
        key: Option<&'static str>,
        value: Option<Vec<u8>>,
    },
}

/// Applies to each field the edit that `change` returns for its key and value.
pub fn map_fields(body: &[u8], mut change: impl FnMut(&[u8], &[u8]) -> FieldChange) -> Result<Vec<u8>, ScanError> {
    let mut out = Vec::with_capacity(body.len() + 64);
    let first = body.iter().position(|byte| *byte == b'{').map_or(0, |open| open + 1);
    let (mut copied, mut last, mut is_bare) = (0, first, true);
    for_each_field(body, |key, at| {
        let change = change(key, &body[at.clone()]);
        if change == FieldChange::Removed {
            out.extend_from_slice(&body[copied..last]);
            copied = at.end;
        } else if is_bare {
            if last != first {
                // All fields before it were removed, so the comma between them is removed too.
                copied += body[last..].iter().position(|byte| *byte == b',').map_or(0, |comma| comma + 1);
            }
            is_bare = false;
        }
        if let FieldChange::Replaced { key, value } = change {
            if let Some(key) = key {
                let open = last + body[last..].iter().position(|byte| *byte == b'"').unwrap_or_default();
                out.extend_from_slice(&body[copied..open]);
                out.extend_from_slice(Value::from(key).to_string().as_bytes());
                copied = open + string_literal_at(body, open).len();
            }
            if let Some(value) = value {
                out.extend_from_slice(&body[copied..at.start]);
                out.extend_from_slice(&value);
                copied = at.end;
            }
        }
        last = at.end;
        Ok(())
    })?;
    out.extend_from_slice(&body[copied..]);
    Ok(out)
}

/// Replaces values of the field `name` in an array of objects. `replacements` maps old to new values, both as JSON.
/// Other input is returned unchanged.
pub fn replace_values(items: &[u8], name: &str, replacements: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(items.len());
    let mut copied = 0;
    let scan_result = for_each_element_from(items, 0, |item| {
        if items[item.start] != b'{' {
            return Ok(());
        }
        for_each_field_from(items, item.start, |key, at| {
            let matched =
                replacements.iter().find(|(from, _)| key == name.as_bytes() && items[at.clone()] == *from.as_bytes());
            if let Some((_, to)) = matched {
                out.extend_from_slice(&items[copied..at.start]);
                out.extend_from_slice(to.as_bytes());
                copied = at.end;
            }
            Ok(())
        })
        .map(|_| ())
    });
    if scan_result.is_err() {
        return items.to_vec();
    }
    out.extend_from_slice(&items[copied..]);
    out
}

/// Edits the fields of each object in an array. `change` receives the item, the key and the value; item and value are
/// JSON. Input that is not an array is returned unchanged.
pub fn map_item_fields(items: &[u8], mut change: impl FnMut(&[u8], &[u8], &[u8]) -> FieldChange) -> Vec<u8> {
    let mut out = Vec::with_capacity(items.len());
    let mut copied = 0;
    let scan_result = for_each_element_from(items, 0, |at| {
        let item = &items[at.clone()];
        if !item.starts_with(b"{") {
            return Ok(());
        }
        let edited = map_fields(item, |key, value| change(item, key, value))?;
        out.extend_from_slice(&items[copied..at.start]);
        out.extend_from_slice(&edited);
        copied = at.end;
        Ok(())
    });
    if scan_result.is_err() {
        return items.to_vec();
    }
    out.extend_from_slice(&items[copied..]);
    out
}

/// Inserts `other` (JSON) between two adjacent array items where `parts` returns true. Input that is not an array is
/// returned unchanged.
pub fn insert_between(items: &[u8], other: &str, mut parts: impl FnMut(&[u8], &[u8]) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(items.len());
    let (mut copied, mut before) = (0, 0..0);
    let scan_result = for_each_element_from(items, 0, |at| {
        if !before.is_empty() && parts(&items[before.clone()], &items[at.clone()]) {
            out.extend_from_slice(&items[copied..at.start]);
            out.extend_from_slice(other.as_bytes());
            out.push(b',');
            copied = at.start;
        }
        before = at;
        Ok(())
    });
    if scan_result.is_err() {
        return items.to_vec();
    }
    out.extend_from_slice(&items[copied..]);
    out
}

/// Removes the values at these paths; indices refer to the original arrays. Returns `None` if nothing matches.
pub fn remove_paths(body: &[u8], paths: &[FieldPath]) -> Result<Option<Vec<u8>>, ScanError> {
    let mut cuts = Vec::new();
    let step_paths: Vec<&[PathStep]> = paths.iter().map(|path| path.0.as_slice()).collect();
    prune_value(body, 0, &step_paths, &mut cuts)?;
    if cuts.is_empty() {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(body.len());
    let mut copied = 0;
    for cut in cuts {
        out.extend_from_slice(&body[copied..cut.start]);
        copied = cut.end;
    }
    out.extend_from_slice(&body[copied..]);
    Ok(Some(out))
}

/// State of the pruning of one object or array: the paths to remove from its members.
struct Pruner<'p> {
    json: &'p [u8],
    paths: &'p [&'p [PathStep]],
    /// End offset of the previous member.
    previous_end: usize,
    /// True while every member so far was removed.
    is_all_removed: bool,
}

fn prune_value(
    json: &[u8],
    at: usize,
    step_paths: &[&[PathStep]],
    cuts: &mut Vec<Range<usize>>,
) -> Result<(), ScanError> {
    let Some(open) = json[at..].iter().position(|byte| !byte.is_ascii_whitespace()).map(|skipped| at + skipped) else {
        return Ok(());
    };
    let mut pruning = Pruner { json, paths: step_paths, previous_end: open + 1, is_all_removed: true };
    match json[open] {
        b'{' => {
            for_each_field_from(json, open, |key, at| pruning.visit_member(|step| matches_key(step, key), at, cuts))?
        }
        b'[' => {
            let mut index = 0;
            for_each_element_from(json, open, |at| {
                index += 1;
                pruning.visit_member(|step| matches_index(step, index - 1), at, cuts)
            })?
        }
        _ => return Ok(()),
    };
    Ok(())
}

fn matches_key(step: &PathStep, key: &[u8]) -> bool {
    match step {
        PathStep::Key(name) => name.as_bytes() == key,
        PathStep::Wildcard => true,
        PathStep::Index(position) => key == position.to_string().as_bytes(),
    }
}

fn matches_index(step: &PathStep, index: usize) -> bool {
    match step {
        PathStep::Key(name) => name.parse() == Ok(index),
        PathStep::Wildcard => true,
        PathStep::Index(position) => *position == index,
    }
}

impl Pruner<'_> {
    fn visit_member(
        &mut self,
        is_it: impl Fn(&PathStep) -> bool,
        at: Range<usize>,
        cuts: &mut Vec<Range<usize>>,
    ) -> Result<(), ScanError> {
        let onward: Vec<&[PathStep]> = self
            .paths
            .iter()
            .filter_map(|path| path.split_first().filter(|(step, _)| is_it(step)).map(|(_, rest)| rest))
            .collect();
        if onward.iter().any(|rest| rest.is_empty()) {
            cuts.push(self.previous_end..at.end);
        } else {
            if self.is_all_removed && self.json[self.previous_end..at.start].trim_ascii_start().first() == Some(&b',') {
                // All members before it were removed, so the comma between them is removed too.
                let comma = self.json[self.previous_end..].iter().position(|byte| *byte == b',').unwrap_or_default();
                cuts.push(self.previous_end..self.previous_end + comma + 1);
            }
            self.is_all_removed = false;
            if !onward.is_empty() {
                prune_value(self.json, at.start, &onward, cuts)?;
            }
        }
        self.previous_end = at.end;
        Ok(())
    }
}

/// Returns the values of these top-level fields, in the order of `names`; `None` for absent fields.
pub fn pick_values(body: &[u8], names: &[String]) -> Vec<Option<Value>> {
    let mut picked = vec![None; names.len()];
    let read = for_each_field(body, |key, at| {
        if let Some(index) = names.iter().position(|name| name.as_bytes() == key) {
            picked[index] = serde_json::from_slice(&body[at]).ok();
        }
        Ok(())
    });
    // A body that is not an object has no fields.
    if read.is_err() {
        picked.fill(None);
    }
    picked
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn to_json_fields(value: &Value) -> Vec<JsonField> {
        value
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.clone(), value.to_string().into_bytes().into()))
            .collect()
    }

    fn body_with_fields(body: &str, missing: &Value, always: &Value) -> String {
        String::from_utf8(set_fields(body.as_bytes(), &to_json_fields(missing), &to_json_fields(always)).unwrap())
            .unwrap()
    }

    #[test]
    fn replaces_values_in_place_and_appends_new_fields() {
        let none = json!({});
        assert_eq!(
            body_with_fields(r#"{ "a" : 1.50, "b":"é" }"#, &none, &json!({"a": [2]})),
            r#"{ "a" : [2], "b":"é" }"#
        );
        assert_eq!(body_with_fields(r#"{"a":1 }"#, &none, &json!({"b": null})), r#"{"a":1,"b":null }"#);
        assert_eq!(body_with_fields("{}", &json!({"x": 1}), &json!({"y": {"z": 2}})), r#"{"x":1,"y":{"z":2}}"#);
        assert_eq!(body_with_fields("{ }\n", &none, &json!({"y": 2})), "{\"y\":2 }\n");
    }

    #[test]
    fn defaults_do_not_override_existing_or_forced_values() {
        assert_eq!(
            body_with_fields(r#"{"a":null}"#, &json!({"a": 1, "b": 2, "c": 3}), &json!({"b": 4})),
            r#"{"a":null,"c":3,"b":4}"#
        );
    }

    fn body_without_paths(body: &str, paths: &[&str]) -> String {
        let paths: Vec<_> = paths.iter().map(|path| FieldPath::parse(path).unwrap()).collect();
        remove_paths(body.as_bytes(), &paths)
            .unwrap()
            .map_or_else(|| "same".to_owned(), |bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn removes_by_name_by_index_and_by_wildcard() {
        let body = r#"{"tools":[{"f":{"s":true,"n":1}},{"f":{"s":false}}], "m": [0,1,2], "x":1}"#;
        assert_eq!(
            body_without_paths(body, &["tools[0].f.s"]),
            r#"{"tools":[{"f":{"n":1}},{"f":{"s":false}}], "m": [0,1,2], "x":1}"#
        );
        assert_eq!(
            body_without_paths(body, &["tools[*].f.s"]),
            r#"{"tools":[{"f":{"n":1}},{"f":{}}], "m": [0,1,2], "x":1}"#
        );
        assert_eq!(
            body_without_paths(body, &["m[0]", "m.1"]),
            r#"{"tools":[{"f":{"s":true,"n":1}},{"f":{"s":false}}], "m": [2], "x":1}"#
        );
        assert_eq!(body_without_paths(body, &["tools", "x"]), r#"{ "m": [0,1,2]}"#);
        assert_eq!(
            body_without_paths(body, &["['tools'][1]", "m[2]", "x"]),
            r#"{"tools":[{"f":{"s":true,"n":1}}], "m": [0,1]}"#
        );
        assert_eq!(body_without_paths(body, &["*"]), "{}");
    }

    #[test]
    fn paths_without_match_change_nothing() {
        assert_eq!(
            body_without_paths(r#"{"a":{"b":1},"c":[1]}"#, &["x", "a.x", "a.b.c", "c[7]", "c.d", "a[0]"]),
            "same"
        );
    }

    #[test]
    fn rejects_malformed_paths() {
        for text in ["", ".a", "a.", "a..b", "a[", "a[x]", "a['b]", "a['b'", "a[1]b"] {
            assert!(FieldPath::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn map_fields_edits_fields_and_preserves_other_bytes() {
        let changed = |body: &str| {
            let edited = map_fields(body.as_bytes(), |key, value| match key {
                b"gone" => FieldChange::Removed,
                b"named" => FieldChange::Replaced { key: Some("called"), value: None },
                b"put" => FieldChange::Replaced { key: Some("in"), value: Some([b"[", value, b"]"].concat()) },
                b"is" => FieldChange::Replaced { key: None, value: Some(b"\"b\"".to_vec()) },
                _ => FieldChange::Unchanged,
            });
            String::from_utf8(edited.unwrap()).unwrap()
        };
        for (body, expected) in [
            (r#"{ "a" : 1.50, "named" : 2 ,"is":"a" }"#, r#"{ "a" : 1.50, "called" : 2 ,"is":"b" }"#),
            (r#"{"gone":1, "gone" : 2 , "named":3,"gone":{"gone":1} }"#, r#"{ "called":3 }"#),
            (r#"{"a":"é","gone":[1,2],"put" :  1}"#, r#"{"a":"é","in" :  [1]}"#),
            (r#"{"n\u0061med":1}"#, r#"{"called":1}"#),
            (r#"{"gone":1}"#, "{}"),
            ("{ }\n", "{ }\n"),
        ] {
            assert_eq!(changed(body), expected);
        }
    }

    #[test]
    fn replaces_values_only_in_their_field() {
        let replacements = [(r#""a""#, r#""b""#)];
        let replaced =
            |items: &str| String::from_utf8(replace_values(items.as_bytes(), "role", &replacements)).unwrap();
        assert_eq!(
            replaced(r#" [{"role": "a","x":"a"},"a",{"x":{"role":"a"}, "role":"a"}]"#),
            r#" [{"role": "b","x":"a"},"a",{"x":{"role":"a"}, "role":"b"}]"#
        );
        assert_eq!(replaced(r#"{"role":"a"}"#), r#"{"role":"a"}"#);
    }

    #[test]
    fn inserts_an_item_only_between_matching_neighbours() {
        let inserted = |items: &str| {
            let bytes = insert_between(items.as_bytes(), "0", |before, after| before == b"1" && after == b"2");
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(inserted("[1, 2,1,1 ,2, 3]"), "[1, 0,2,1,1 ,0,2, 3]");
        for same in ["[]", "[1]", "[2,1]", "{}", "[1,2"] {
            assert_eq!(inserted(same), same);
        }
    }

    #[test]
    fn picks_values_by_name() {
        let names = ["b", "z", "a"].map(ToOwned::to_owned);
        assert_eq!(pick_values(br#"{"a":[1],"b":"x"}"#, &names), [Some(json!("x")), None, Some(json!([1]))]);
        assert_eq!(pick_values(b"[]", &names), [None, None, None]);
    }
}
