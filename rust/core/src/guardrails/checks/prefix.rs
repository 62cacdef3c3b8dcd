//! Adds a prefix to a message.

use penstock_llm::operation::Operation;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::guardrails::check::{
    Change, Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, read_parameters,
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "default.addPrefix",
    alias: None,
    name: "Add prefix",
    description: "adds a prefix to the first message of a role, or a message if there is none; always passes",
    stages: Stages::Input,
    secrets: &[],
    schema: r#"{"required":["prefix"],"properties":{"prefix":{"type":"string","minLength":1},"applyToRole":{"enum":["user","system","assistant"],"default":"user"},"addToExisting":{"type":"boolean","default":true,"description":"false: always adds a message of its own"},"onlyIfEmpty":{"type":"boolean","default":false,"description":"true: only if the role has no message with content"}}}"#,
    shared: &[],
    compile: AddPrefix::compile,
}];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AddPrefix {
    prefix: String,
    #[serde(default = "user")]
    apply_to_role: String,
    #[serde(default = "default_true")]
    add_to_existing: bool,
    #[serde(default)]
    only_if_empty: bool,
}

fn user() -> String {
    "user".to_owned()
}

fn default_true() -> bool {
    true
}

impl AddPrefix {
    fn compile(parameters: Value) -> CompileResult {
        Ok(Box::new(read_parameters::<Self>(parameters)?))
    }

    fn change(&self, input: &CheckInput<'_>) -> Option<Value> {
        let mut body = input.request.clone();
        if input.operation == Operation::Complete {
            let prompt = body.get_mut("prompt")?;
            let text = prompt.as_str().filter(|text| !self.only_if_empty || text.is_empty())?;
            *prompt = format!("{}{text}", self.prefix).into();
            return Some(body);
        }
        // Anthropic's system prompt is no message.
        if input.operation == Operation::Messages && self.apply_to_role == "system" {
            let system = body.as_object_mut()?.entry("system").or_insert_with(|| "".into());
            return self.change_content(system).then_some(body);
        }
        let messages = body.get_mut("messages")?.as_array_mut()?;
        let existing = messages.iter_mut().find(|message| message["role"] == self.apply_to_role.as_str());
        match existing {
            Some(message) if self.add_to_existing || self.only_if_empty => {
                return self.change_content(message.get_mut("content")?).then_some(body);
            }
            _ => (),
        }
        let message = json!({"role": self.apply_to_role, "content": self.prefix});
        if self.apply_to_role == "system" {
            messages.insert(0, message);
        } else {
            messages.push(message);
        }
        Some(body)
    }

    /// Adds the prefix to the content of a message. Returns false if the content stays unchanged.
    fn change_content(&self, content: &mut Value) -> bool {
        let is_empty = match content {
            Value::String(text) => text.is_empty(),
            Value::Array(parts) => parts.is_empty(),
            _ => true,
        };
        if self.only_if_empty && !is_empty {
            return false;
        }
        match content {
            Value::String(text) => text.insert_str(0, &self.prefix),
            Value::Array(parts) => parts.insert(0, json!({"type": "text", "text": self.prefix})),
            other => *other = self.prefix.clone().into(),
        }
        true
    }
}

impl Check for AddPrefix {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let operation = input.operation;
        let change = if matches!(operation, Operation::ChatComplete | Operation::Complete | Operation::Messages) {
            self.change(input).map(Change::Body)
        } else {
            None
        };
        let data = json!({"prefix": self.prefix, "requestType": operation.id(), "applyToRole": self.apply_to_role,
            "addToExisting": self.add_to_existing, "onlyIfEmpty": self.only_if_empty});
        Ok(CheckOutcome { change, ..CheckOutcome::new(true, data) })
    }

    fn may_change(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Stage, tests::run_on_bodies},
        *,
    };

    #[test]
    fn prefixes_are_added_to_messages() {
        let messages = |parameters: Value| {
            let request = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]});
            match run_on_bodies("default.addPrefix", parameters, Stage::Input, &request, &Value::Null).unwrap().change {
                Some(Change::Body(body)) => body["messages"].clone(),
                _ => Value::Null,
            }
        };
        assert_eq!(messages(json!({"prefix": "P "}))[0]["content"], "P a");
        assert_eq!(messages(json!({"prefix": "P", "applyToRole": "assistant"}))[1]["content"][0]["text"], "P");
        assert_eq!(
            messages(json!({"prefix": "P", "applyToRole": "system"}))[0],
            json!({"role": "system", "content": "P"})
        );
        assert_eq!(
            messages(json!({"prefix": "P", "addToExisting": false}))[2],
            json!({"role": "user", "content": "P"})
        );
        assert_eq!(messages(json!({"prefix": "P", "onlyIfEmpty": true})), Value::Null);
    }
}
