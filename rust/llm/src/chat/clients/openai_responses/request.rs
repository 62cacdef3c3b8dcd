//! Reads a request for a response.

use serde_json::{Value, json};

use crate::chat::clients::openai_responses::response::{REDACTED, SEAL};
use crate::{
    chat::request::{
        Asked, Call, Choice, Fields, Message, Part, Refusal, Role, Source, Tool, array, body, needed, object, schema,
        some_object, string,
    },
    translation::dropped::Lost,
};

/// What the answer repeats.
const ECHOED: &[&str] = &[
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "user",
];

/// What only those can do who keep responses.
const NATIVE: &[&str] = &["previous_response_id", "conversation", "prompt", "background"];

/// The request, and what its answer repeats of it.
pub fn read(json: &[u8]) -> Result<(Asked, Fields), Refusal> {
    let mut fields = body(json)?;
    for key in NATIVE {
        if fields.shift_remove(*key).is_some_and(|value| !value.is_null() && value != false) {
            return Err(Refusal::new(*key, "this provider keeps no responses: send all of the input"));
        }
    }
    let echo = ECHOED.iter().filter_map(|key| Some(((*key).to_owned(), fields.get(*key)?.clone()))).collect();
    let mut asked = Asked {
        model: string(&mut fields, "model").unwrap_or_default(),
        stream: fields.shift_remove("stream") == Some(Value::Bool(true)),
        ..Asked::default()
    };
    if let Some(text) = string(&mut fields, "instructions") {
        asked.messages.push(Message { role: Role::System, parts: vec![Part::text(text)] });
    }
    match fields.shift_remove("input") {
        Some(Value::String(text)) => asked.messages.push(Message { role: Role::User, parts: vec![Part::text(text)] }),
        input => {
            for (at, value) in array(input, "input")?.into_iter().enumerate() {
                asked.messages.push(item(value, &format!("input[{at}]"), &mut asked.lost)?);
            }
        }
    }
    for (at, value) in array(fields.shift_remove("tools"), "tools")?.into_iter().enumerate() {
        asked.tools.push(tool(value, &format!("tools[{at}]"))?);
    }
    asked.choice = choice(fields.shift_remove("tool_choice"))?;
    rename(&mut fields, &mut asked.lost);
    asked.fields = fields;
    Ok((asked, echo))
}

/// Parameters under the names that chat completions have for them.
fn rename(fields: &mut Fields, lost: &mut Lost) {
    // Nothing is kept here: what would be kept with the answer is only told with it.
    fields.shift_remove("metadata");
    if fields.shift_remove("store") == Some(Value::Bool(true)) {
        lost.add("store");
    }
    if let Some(options) = some_object(fields, "stream_options") {
        lost.rest("stream_options", &options);
    }
    if fields.get("truncation").is_some_and(|word| word == "disabled") {
        fields.shift_remove("truncation");
    }
    // Thoughts that can be shown are, sealed where their provider seals them.
    if fields.get("include") == Some(&json!(["reasoning.encrypted_content"])) {
        fields.shift_remove("include");
    }
    if let Some(most) = fields.shift_remove("max_output_tokens").filter(|most| !most.is_null()) {
        fields.insert("max_tokens".into(), most);
    }
    if let Some(mut reasoning) = some_object(fields, "reasoning") {
        if let Some(effort) = reasoning.shift_remove("effort").filter(|effort| !effort.is_null()) {
            fields.insert("reasoning_effort".into(), effort);
        }
        // Thoughts are told wherever there are any.
        for key in ["summary", "generate_summary"] {
            reasoning.shift_remove(key);
        }
        lost.rest("reasoning", &reasoning);
    }
    if let Some(mut text) = some_object(fields, "text") {
        if let Some(verbosity) = text.shift_remove("verbosity").filter(|word| !word.is_null()) {
            fields.insert("verbosity".into(), verbosity);
        }
        if let Some(format) = text.shift_remove("format").filter(|format| format["type"] != "text") {
            fields.insert("response_format".into(), response_format(format));
        }
        lost.rest("text", &text);
    }
}

/// A schema stands one level deeper in chat completions.
fn response_format(format: Value) -> Value {
    match format {
        Value::Object(mut schema) if schema.get("type") == Some(&json!("json_schema")) => {
            schema.shift_remove("type");
            json!({"type": "json_schema", "json_schema": schema})
        }
        other => other,
    }
}

fn item(value: Value, path: &str, lost: &mut Lost) -> Result<Message, Refusal> {
    let mut fields = object(value, path)?;
    let kind = string(&mut fields, "type").unwrap_or_else(|| "message".into());
    // What an item was called and how it stood says nothing to who did not keep it.
    for key in ["id", "status"] {
        fields.shift_remove(key);
    }
    let (role, parts) = match kind.as_str() {
        "message" => {
            let role = needed(&mut fields, "role", path)?;
            (role_of(&role, path)?, content(fields.shift_remove("content"), &format!("{path}.content"), lost)?)
        }
        "function_call" => {
            let beside = fields.shift_remove("extra_content").unwrap_or_default();
            let signature = beside.pointer("/google/thought_signature").and_then(Value::as_str).map(ToOwned::to_owned);
            let call = Call {
                id: needed(&mut fields, "call_id", path)?,
                name: needed(&mut fields, "name", path)?,
                arguments: string(&mut fields, "arguments").unwrap_or_default(),
                signature,
                cache: None,
            };
            (Role::Assistant, vec![Part::Call(call)])
        }
        "function_call_output" => {
            let id = needed(&mut fields, "call_id", path)?;
            let parts = content(fields.shift_remove("output"), &format!("{path}.output"), lost)?;
            (Role::User, vec![Part::Result { id, parts, is_error: false, cache: None }])
        }
        "image_generation_call" => {
            let data = needed(&mut fields, "result", path)?;
            let mime = format!("image/{}", string(&mut fields, "output_format").unwrap_or_else(|| "png".into()));
            let source = Source::Data { mime, data };
            (Role::Assistant, vec![Part::Image { source, detail: None, cache: None }])
        }
        "reasoning" => {
            let summary = array(fields.shift_remove("summary"), &format!("{path}.summary"))?;
            let text = summary.iter().filter_map(|part| part["text"].as_str()).collect();
            let signature = string(&mut fields, "encrypted_content").filter(|sealed| !sealed.is_empty());
            let unsealed = |prefix| signature.as_deref().and_then(|sealed: &str| sealed.strip_prefix(prefix));
            let part = match (unsealed(REDACTED), unsealed(SEAL)) {
                (Some(data), _) => Part::Redacted { data: data.to_owned() },
                (None, Some(seal)) => Part::Seal(seal.to_owned()),
                (None, None) => Part::Thinking { text, signature },
            };
            (Role::Assistant, vec![part])
        }
        other => return Err(Refusal::new(format!("{path}.type"), format!("this provider has nothing like `{other}`"))),
    };
    lost.rest("input", &fields);
    Ok(Message { role, parts })
}

fn role_of(role: &str, path: &str) -> Result<Role, Refusal> {
    match role {
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "system" | "developer" => Ok(Role::System),
        other => Err(Refusal::new(
            format!("{path}.role"),
            format!("`{other}` is not known here: it must be user, assistant, system or developer"),
        )),
    }
}

fn content(value: Option<Value>, path: &str, lost: &mut Lost) -> Result<Vec<Part>, Refusal> {
    match value {
        Some(Value::String(text)) => Ok(vec![Part::text(text)]),
        value => {
            let items = array(value, path)?.into_iter().enumerate();
            items.map(|(at, value)| part(value, &format!("{path}[{at}]"), lost)).collect()
        }
    }
}

fn part(value: Value, path: &str, lost: &mut Lost) -> Result<Part, Refusal> {
    let mut fields = object(value, path)?;
    let part = match needed(&mut fields, "type", path)?.as_str() {
        "input_text" | "output_text" | "text" => Part::text(needed(&mut fields, "text", path)?),
        "refusal" => Part::text(needed(&mut fields, "refusal", path)?),
        "input_image" => {
            let detail = fields.shift_remove("detail").filter(|detail| detail != "auto" && !detail.is_null());
            let source = match string(&mut fields, "image_url") {
                Some(url) => Source::of_url(url, None),
                None => Source::File(needed(&mut fields, "file_id", path)?),
            };
            Part::Image { source, detail, cache: None }
        }
        "input_file" => {
            let name = string(&mut fields, "filename");
            let source = match (string(&mut fields, "file_data"), string(&mut fields, "file_url")) {
                (Some(data), _) => Source::of_url(data, None),
                (None, Some(url)) => Source::Url { url, mime: None },
                (None, None) => Source::File(needed(&mut fields, "file_id", path)?),
            };
            Part::Document { source, name, cache: None, more: Box::default() }
        }
        other => {
            return Err(Refusal::new(format!("{path}.type"), format!("this provider has nothing like `{other}`")));
        }
    };
    lost.rest("content", &fields);
    Ok(part)
}

fn tool(value: Value, path: &str) -> Result<Tool, Refusal> {
    let mut fields = object(value, path)?;
    let kind = needed(&mut fields, "type", path)?;
    if kind != "function" {
        // Those of one API are not those of another, whatever they are called.
        return Err(Refusal::new(format!("{path}.type"), format!("this provider has nothing like `{kind}`")));
    }
    Ok(Tool::Function {
        name: needed(&mut fields, "name", path)?,
        description: string(&mut fields, "description"),
        schema: schema(&mut fields, "parameters", path)?,
        strict: fields.shift_remove("strict").filter(|strict| !strict.is_null()),
        cache: None,
        more: fields.into(),
    })
}

fn choice(value: Option<Value>) -> Result<Option<Choice>, Refusal> {
    let wrong = || Refusal::new("tool_choice", "must be auto, none, required or a function by name");
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(word)) if word == "auto" => Ok(Some(Choice::Auto)),
        Some(Value::String(word)) if word == "none" => Ok(Some(Choice::None)),
        Some(Value::String(word)) if word == "required" => Ok(Some(Choice::Any)),
        Some(Value::Object(choice)) if choice.get("type") == Some(&json!("function")) => {
            Ok(Some(Choice::Tool(choice.get("name").and_then(Value::as_str).ok_or_else(wrong)?.to_owned())))
        }
        Some(_) => Err(wrong()),
    }
}
