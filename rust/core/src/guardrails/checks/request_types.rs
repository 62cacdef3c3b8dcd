//! Check of the kind of a request.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::guardrails::check::{
    Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, read_parameters,
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "default.allowedRequestTypes",
    alias: None,
    name: "Allowed request types",
    description: "passes if requests of this type are allowed and not blocked; also runs on requests that are only forwarded (`proxy`)",
    stages: Stages::Input,
    secrets: &[],
    schema: r##"{"properties":{"allowedTypes":{"$ref":"#/$defs/types","description":"types such as `chatComplete`; without it, those in the metadata `supported_endpoints`"},"blockedTypes":{"$ref":"#/$defs/types","description":"without it, those in the metadata `blocked_endpoints`"}},"$defs":{"types":{"oneOf":[{"type":"array","items":{"type":"string"}},{"type":"string","description":"separated by commas"}]}}}"##,
    shared: &[],
    compile: AllowedRequestTypes::compile,
}];

#[derive(Debug)]
struct AllowedRequestTypes {
    allowed: Option<Vec<String>>,
    blocked: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Types {
    List(Vec<String>),
    Text(String),
}

impl Types {
    fn into_list(self) -> Vec<String> {
        match self {
            Self::List(list) => list,
            Self::Text(text) => split(&text),
        }
    }
}

fn split(text: &str) -> Vec<String> {
    text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

impl AllowedRequestTypes {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct AllowedRequestTypesParameters {
            allowed_types: Option<Types>,
            blocked_types: Option<Types>,
        }
        let AllowedRequestTypesParameters { allowed_types, blocked_types } = read_parameters(parameters)?;
        let list = |types: Option<Types>| types.map(Types::into_list).filter(|list| !list.is_empty());
        let (allowed, blocked) = (list(allowed_types), list(blocked_types));
        if let Some(both) = allowed.iter().flatten().find(|name| blocked.iter().flatten().any(|other| other == *name)) {
            return Err((".blockedTypes".to_owned(), format!("must not name `{both}`, which is in allowedTypes too")));
        }
        Ok(Box::new(Self { allowed, blocked }))
    }
}

impl Check for AllowedRequestTypes {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let of_metadata = |key: &str| {
            let value = input.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| split(value));
            value.unwrap_or_default()
        };
        let is_own = self.allowed.is_some() || self.blocked.is_some();
        let allowed = self.allowed.clone().unwrap_or_else(|| of_metadata("supported_endpoints"));
        let blocked = self.blocked.clone().unwrap_or_else(|| of_metadata("blocked_endpoints"));
        if let Some(both) = allowed.iter().find(|name| blocked.contains(name)) {
            return Err(CheckError::new(format!("the type `{both}` is both allowed and blocked")));
        }
        let (mode, source) = match (allowed.is_empty(), blocked.is_empty()) {
            (true, true) => ("unrestricted", "default"),
            (false, true) => ("allowlist", if is_own { "parameters" } else { "metadata" }),
            (true, false) => ("blocklist", if is_own { "parameters" } else { "metadata" }),
            (false, false) => ("combined", if is_own { "parameters" } else { "metadata" }),
        };
        let id = input.operation.id();
        let names = [id.to_owned(), format!("stream-{id}")];
        // A streamed request also matches `stream-<operation>`.
        let is_named =
            |list: &[String]| list.iter().any(|name| *name == names[0] || input.is_streaming && *name == names[1]);
        let verdict = !is_named(&blocked) && (allowed.is_empty() || is_named(&allowed));
        let explanation = format!("requests of this type are {}allowed", if verdict { "" } else { "not " });
        Ok(CheckOutcome::new(
            verdict,
            json!({"currentRequestType": id, "allowedTypes": allowed, "blockedTypes": blocked, "verdict": verdict,
                "explanation": explanation, "source": source, "mode": mode}),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Stage, compile_check, tests::run_on},
        *,
    };
    use crate::parse::document_reader::Strictness;

    #[test]
    fn blocked_types_win() {
        let verdict = |parameters: Value| {
            let outcome = run_on("default.allowedRequestTypes", parameters, Stage::Input, "x").unwrap();
            (outcome.verdict, outcome.data["mode"].as_str().unwrap().to_owned())
        };
        assert_eq!(verdict(json!({})), (true, "unrestricted".into()));
        assert_eq!(verdict(json!({"allowedTypes": "embed, chatComplete"})), (true, "allowlist".into()));
        assert_eq!(verdict(json!({"allowedTypes": ["embed"]})), (false, "allowlist".into()));
        assert_eq!(verdict(json!({"blockedTypes": ["chatComplete"]})), (false, "blocklist".into()));
        assert_eq!(verdict(json!({"blockedTypes": ["stream-chatComplete"]})), (true, "blocklist".into()));
        let both = json!({"allowedTypes": ["embed"], "blockedTypes": ["embed"]});
        assert!(compile_check("default.allowedRequestTypes", &both, "$", Strictness::Lenient).is_err());
    }
}
