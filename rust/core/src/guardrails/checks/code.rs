//! Checks of JSON and code in texts.

use jsonschema::Validator;
use penstock_llm::texts::json_text::encode_json_text;
use serde::Deserialize;
use serde_json::{Value, json};

use super::text::{Operator, TextParameters};
use crate::guardrails::{
    check::{Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, excerpt, read_parameters},
    text_scope::TextScope,
};

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "default.jsonSchema",
        alias: None,
        name: "JSON schema",
        description: "passes if a JSON object in the text is valid under a JSON Schema (2020-12)",
        stages: Stages::Both,
        secrets: &[],
        schema: r#"{"required":["schema"],"properties":{"schema":{"type":"object"}}}"#,
        shared: &["not", "scope"],
        compile: MatchesSchema::compile,
    },
    CheckRow {
        id: "default.jsonKeys",
        alias: None,
        name: "JSON keys",
        description: "passes if a JSON object in the text has any, all or none of some keys",
        stages: Stages::Both,
        secrets: &[],
        schema: r#"{"required":["keys"],"properties":{"keys":{"type":"array","minItems":1,"maxItems":1000,"items":{"type":"string"}},"operator":{"enum":["any","all","none"],"default":"any"}}}"#,
        shared: &["scope"],
        compile: HasKeys::compile,
    },
    CheckRow {
        id: "default.containsCode",
        alias: None,
        name: "Contains code",
        description: "passes if the text has a fenced block of code in a language",
        stages: Stages::Both,
        secrets: &[],
        schema: r#"{"required":["format"],"properties":{"format":{"enum":["SQL","Python","TypeScript","JavaScript","Java","C#","C++","C","Ruby","PHP","Swift","Kotlin","Go","Rust","Scala","R","Perl","Shell","HTML","CSS","XML","JSON","YAML","Markdown","Dockerfile"]}}}"#,
        shared: &["not", "scope"],
        compile: ContainsCode::compile,
    },
];

/// Returns the fenced blocks of a text, each as the tag after the fence and the content.
fn fenced_blocks(text: &str) -> Vec<(&str, &str)> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some(open) = rest.find("```") {
        let after = &rest[open + 3..];
        let line_end = after.find('\n').unwrap_or(after.len());
        let Some(close) = after.find("```") else { break };
        let (tag, content) = if close < line_end {
            ("", &after[..close])
        } else {
            (after[..line_end].trim(), after.get(line_end + 1..close).unwrap_or_default())
        };
        blocks.push((tag, content));
        rest = &after[close + 3..];
    }
    blocks
}

/// Maximum number of JSON objects that are read from fenced blocks. Also the maximum number of braces at which an
/// object is searched in other text.
const MAX_OBJECTS: usize = 100;

/// Returns the JSON objects in the fenced blocks of a text. Without fenced objects, returns those between an opening
/// brace and its closing brace.
pub(super) fn json_objects(text: &str) -> Vec<Value> {
    let parse = |text: &str| {
        let text = text.trim();
        // The checked text of tool arguments lacks the escapes of JSON strings, so `encode_json_text` restores them.
        let parsed = serde_json::from_str::<Value>(text).or_else(|_| serde_json::from_str(&encode_json_text(text)));
        parsed.ok().filter(Value::is_object)
    };
    let fenced: Vec<_> = fenced_blocks(text).into_iter().filter_map(|(_, content)| parse(content)).collect();
    if !fenced.is_empty() {
        return fenced.into_iter().take(MAX_OBJECTS).collect();
    }
    let mut objects = Vec::new();
    let mut at = 0;
    for _ in 0..MAX_OBJECTS {
        let Some(open) = text[at..].find('{') else { break };
        let start = at + open;
        let length = object_end(&text[start..]);
        objects.extend(length.and_then(|length| parse(&text[start..start + length])));
        at = start + length.unwrap_or(1);
    }
    objects
}

/// Returns the length of the JSON object at the start of a text. Braces within strings do not count.
fn object_end(text: &str) -> Option<usize> {
    let (mut depth, mut is_in_string, mut is_escaped) = (0_usize, false, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in_string => is_escaped = true,
            b'"' => is_in_string = !is_in_string,
            b'{' if !is_in_string => depth += 1,
            b'}' if !is_in_string => {
                depth -= 1;
                if depth == 0 {
                    return Some(index + 1);
                }
            }
            _ => (),
        }
    }
    None
}

#[derive(Debug)]
struct MatchesSchema {
    validator: Validator,
    common: TextParameters,
}

impl MatchesSchema {
    fn compile(mut parameters: Value) -> CompileResult {
        let schema = parameters["schema"].take();
        let invalid = |error: jsonschema::ValidationError<'_>| (".schema".to_owned(), error.to_string());
        let validator = jsonschema::draft202012::new(&schema).map_err(invalid)?;
        Ok(Box::new(Self { validator, common: read_parameters(parameters)? }))
    }
}

impl Check for MatchesSchema {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let selected = input.select(self.common.scope, true);
        let objects = json_objects(&selected.text);
        if objects.is_empty() {
            let data = json!({"matchedJson": null, "not": self.common.not, "explanation": "the text has no JSON object",
                "validationErrors": []});
            return Ok(CheckOutcome::new(false, data));
        }
        let valid = objects.iter().find(|object| self.validator.is_valid(object));
        let matched = valid.unwrap_or(&objects[0]);
        let errors: Vec<_> = self
            .validator
            .iter_errors(matched)
            .take(20)
            .map(|error| json!({"path": error.instance_path().as_str(), "message": error.to_string()}))
            .collect();
        let verdict = valid.is_some() != self.common.not;
        let explanation = if valid.is_some() { "a JSON object is valid" } else { "no JSON object is valid" };
        Ok(CheckOutcome::new(
            verdict,
            json!({"matchedJson": matched, "not": self.common.not, "explanation": explanation, "validationErrors": errors}),
        ))
    }
}

#[derive(Debug)]
struct HasKeys {
    keys: Vec<String>,
    operator: Operator,
    scope: TextScope,
}

impl HasKeys {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        struct HasKeysParameters {
            keys: Vec<String>,
            #[serde(default)]
            operator: Operator,
            #[serde(default)]
            scope: TextScope,
        }
        let HasKeysParameters { keys, operator, scope } = read_parameters(parameters)?;
        Ok(Box::new(Self { keys, operator, scope }))
    }
}

impl Check for HasKeys {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let selected = input.select(self.scope, true);
        let objects = json_objects(&selected.text);
        let present = |object: &Value| self.keys.iter().filter(|key| object.get(key.as_str()).is_some()).count();
        // The object with the largest number of the keys. With `none`, this is the one that violates the check most.
        let best = match self.operator {
            Operator::None => objects.iter().max_by_key(|object| present(object)),
            _ => objects.iter().rev().max_by_key(|object| present(object)),
        };
        let Some(best) = best else {
            let verdict = self.operator == Operator::None;
            let data = json!({"matchedJson": null, "verdict": verdict, "explanation": "the text has no JSON object",
                "presentKeys": [], "missingKeys": self.keys, "operator": self.operator.name(),
                "textExcerpt": excerpt(&selected.text)});
            return Ok(CheckOutcome::new(verdict, data));
        };
        let (present, missing): (Vec<_>, Vec<_>) = self.keys.iter().partition(|key| best.get(key.as_str()).is_some());
        let verdict = self.operator.accepts(present.len(), missing.len());
        let explanation = format!("{} of {} keys are there", present.len(), self.keys.len());
        Ok(CheckOutcome::new(
            verdict,
            json!({"matchedJson": best, "verdict": verdict, "explanation": explanation, "presentKeys": present,
                "missingKeys": missing, "operator": self.operator.name(), "textExcerpt": excerpt(&selected.text)}),
        ))
    }
}

#[derive(Debug)]
struct ContainsCode {
    format: String,
    common: TextParameters,
}

impl ContainsCode {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        struct ContainsCodeParameters {
            format: String,
            #[serde(flatten)]
            common: TextParameters,
        }
        let ContainsCodeParameters { format, common } = read_parameters(parameters)?;
        Ok(Box::new(Self { format, common }))
    }
}

/// Returns the language that the tag of a fence names.
fn language_of_tag(tag: &str) -> Option<&'static str> {
    Some(match tag.to_ascii_lowercase().as_str() {
        "sql" => "SQL",
        "py" | "python" | "gyp" => "Python",
        "ts" | "tsx" | "typescript" => "TypeScript",
        "js" | "jsx" | "javascript" => "JavaScript",
        "java" => "Java",
        "cs" | "csharp" => "C#",
        "cpp" | "c++" => "C++",
        "c" => "C",
        "rb" | "ruby" => "Ruby",
        "php" => "PHP",
        "swift" => "Swift",
        "kt" | "kotlin" => "Kotlin",
        "go" | "golang" => "Go",
        "rs" | "rust" => "Rust",
        "scala" => "Scala",
        "r" => "R",
        "pl" | "perl" => "Perl",
        "sh" | "bash" | "shell" => "Shell",
        "html" => "HTML",
        "css" => "CSS",
        "xml" => "XML",
        "json" => "JSON",
        "yml" | "yaml" => "YAML",
        "md" | "markdown" => "Markdown",
        "dockerfile" => "Dockerfile",
        _ => return None,
    })
}

impl Check for ContainsCode {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let selected = input.select(self.common.scope, true);
        if selected.text.is_empty() {
            return Err(CheckError::new("there is no text to check"));
        }
        let formats: Vec<_> =
            fenced_blocks(&selected.text).into_iter().filter_map(|(tag, _)| language_of_tag(tag)).collect();
        let has_format = formats.contains(&self.format.as_str());
        let verdict = has_format != self.common.not;
        let explanation = format!("the text has {}code in {}", if has_format { "" } else { "no " }, self.format);
        Ok(CheckOutcome::new(
            verdict,
            json!({"explanation": explanation, "searchedFormat": self.format, "not": self.common.not,
                "foundFormats": formats, "textExcerpt": excerpt(&selected.text)}),
        ))
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
    fn objects_are_found_in_fences_and_between_braces() {
        assert_eq!(
            json_objects(r#"see {"a": "}{", "b": {"c": 1}} and {"d": 2}"#),
            [json!({"a": "}{", "b": {"c": 1}}), json!({"d": 2})]
        );
        assert_eq!(json_objects("```json\n{\"a\": 1}\n``` {\"b\": 2}"), [json!({"a": 1})]);
        assert!(
            json_objects("{ {").is_empty()
                && json_objects("{ {\"a\": 1}") == [json!({"a": 1})]
                && json_objects("none").is_empty()
        );
    }

    #[test]
    fn json_is_validated() {
        let schema = json!({"schema": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}});
        assert!(verdict("default.jsonSchema", schema.clone(), r#"{"a": "x"} {"a": 1}"#));
        let outcome = run_on("default.jsonSchema", schema.clone(), Stage::Output, r#"{"a": "x"}"#).unwrap();
        assert!(!outcome.verdict && outcome.data["validationErrors"][0]["path"] == "/a");
        assert!(!verdict("default.jsonSchema", schema, "no json"));
    }

    /// Required tests of the draft, from the authors of JSON Schema.
    const SUITE: &[u8] = include_bytes!("../data/json_schema_suite.json.gz");

    #[test]
    fn schemas_are_read_as_their_authors_mean_them() {
        let suite: Vec<Value> = serde_json::from_reader(flate2::read::GzDecoder::new(SUITE)).unwrap();
        let (mut count, mut fetching, mut wrong) = (0, 0, Vec::new());
        for group in &suite {
            // The gateway never fetches other documents, such as the definition of a custom `$schema`.
            let has_dialect = group["schema"]["$schema"].as_str().is_some_and(|url| url.contains("localhost:1234"));
            let validator = jsonschema::draft202012::new(&group["schema"]).ok().filter(|_| !has_dialect);
            let Some(validator) = validator else {
                assert!(group["schema"].to_string().contains("localhost:1234"), "{group}");
                fetching += 1;
                continue;
            };
            for test in group["tests"].as_array().unwrap() {
                count += 1;
                if test["valid"] != validator.is_valid(&test["data"]) {
                    wrong.push(format!("{} {} {}", group["file"], group["description"], test["description"]));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(count > 1200 && fetching <= 26, "{count} {fetching}");
    }

    #[test]
    fn keys_are_found() {
        let keys = |operator: &str| json!({"keys": ["a", "b"], "operator": operator});
        assert!(verdict("default.jsonKeys", keys("all"), r#"{"a": 1} {"a": 1, "b": 2}"#));
        assert!(
            verdict("default.jsonKeys", keys("any"), r#"{"a": 1}"#)
                && !verdict("default.jsonKeys", keys("any"), r#"{"c": 1}"#)
        );
        assert!(
            !verdict("default.jsonKeys", keys("none"), r#"{"c": 1} {"a": 1}"#)
                && verdict("default.jsonKeys", keys("none"), "x")
        );
    }

    #[test]
    fn code_is_found_by_its_tag() {
        assert!(verdict("default.containsCode", json!({"format": "Python"}), "```py\nx = 1\n```"));
        assert!(!verdict("default.containsCode", json!({"format": "Go"}), "```py\nx = 1\n```"));
        assert!(verdict("default.containsCode", json!({"format": "Go", "not": true}), "text"));
    }
}
