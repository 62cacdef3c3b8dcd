//! Reads a request for a message.

use serde_json::{Value, json};

use crate::{
    chat::request::{
        Asked, Call, Choice, Fields, Message, Part, Refusal, Role, Source, Tool, array, body, citations, needed,
        object, of_document, schema, some_object, string,
    },
    translation::dropped::Lost,
};

/// What seals a text comes as a block that every client of this dialect gives back unread.
pub(crate) const SEAL: &str = "seal:";

pub fn read(json: &[u8]) -> Result<Asked, Refusal> {
    let mut fields = body(json)?;
    let mut asked = Asked {
        model: string(&mut fields, "model").unwrap_or_default(),
        stream: fields.shift_remove("stream") == Some(Value::Bool(true)),
        ..Asked::default()
    };
    let system = parts(fields.shift_remove("system"), "system", &mut asked.lost)?;
    if !system.is_empty() {
        asked.messages.push(Message { role: Role::System, parts: system });
    }
    for (at, value) in array(fields.shift_remove("messages"), "messages")?.into_iter().enumerate() {
        asked.messages.push(message(value, &format!("messages[{at}]"), &mut asked.lost)?);
    }
    for (at, value) in array(fields.shift_remove("tools"), "tools")?.into_iter().enumerate() {
        asked.tools.push(tool(value, &format!("tools[{at}]"))?);
    }
    if let Some(choice) = fields.shift_remove("tool_choice").filter(|choice| !choice.is_null()) {
        choose(choice, &mut asked, &mut fields)?;
    }
    rename(&mut fields, &mut asked.lost);
    asked.fields = fields;
    Ok(asked)
}

/// Parameters under the names that chat completions have for them.
fn rename(fields: &mut Fields, lost: &mut Lost) {
    if let Some(stop) = fields.shift_remove("stop_sequences") {
        fields.insert("stop".into(), stop);
    }
    if let Some(mut metadata) = some_object(fields, "metadata") {
        if let Some(user) = metadata.shift_remove("user_id").filter(|user| !user.is_null()) {
            fields.insert("user".into(), user);
        }
        lost.rest("metadata", &metadata);
    }
    // The words behind it are not those of others.
    if fields.shift_remove("service_tier").is_some_and(|tier| tier != "auto") {
        lost.add("service_tier");
    }
    let Some(mut config) = some_object(fields, "output_config") else { return };
    if let Some(effort) = config.shift_remove("effort") {
        fields.insert("reasoning_effort".into(), effort);
    }
    if config.get("format").is_some_and(|format| format["type"] == "json_schema")
        && let Some(mut format) = some_object(&mut config, "format")
    {
        let schema = format.shift_remove("schema").unwrap_or_default();
        let schema = json!({"name": "answer", "schema": schema, "strict": true});
        fields.insert("response_format".into(), json!({"type": "json_schema", "json_schema": schema}));
    }
    lost.rest("output_config", &config);
}

fn message(value: Value, path: &str, lost: &mut Lost) -> Result<Message, Refusal> {
    let mut fields = object(value, path)?;
    let role = match needed(&mut fields, "role", path)?.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        other => {
            let message = format!("`{other}` is not known here: it must be user or assistant");
            return Err(Refusal::new(format!("{path}.role"), message));
        }
    };
    let parts = parts(fields.shift_remove("content"), &format!("{path}.content"), lost)?;
    lost.rest("messages", &fields);
    Ok(Message { role, parts })
}

fn parts(value: Option<Value>, path: &str, lost: &mut Lost) -> Result<Vec<Part>, Refusal> {
    match value {
        Some(Value::String(text)) => Ok(vec![Part::text(text)]),
        value => {
            let items = array(value, path)?.into_iter().enumerate();
            items.map(|(at, item)| part(item, &format!("{path}[{at}]"), lost)).collect()
        }
    }
}

fn part(value: Value, path: &str, lost: &mut Lost) -> Result<Part, Refusal> {
    let mut fields = object(value, path)?;
    let kind = needed(&mut fields, "type", path)?;
    let cache = fields.shift_remove("cache_control").filter(|cache| !cache.is_null());
    let part = match kind.as_str() {
        "text" => Part::Text { text: needed(&mut fields, "text", path)?, cache, citations: citations(&mut fields) },
        "image" => Part::Image { source: source(&mut fields, path)?, detail: None, cache },
        "document" => {
            let name = string(&mut fields, "title");
            Part::Document { source: source(&mut fields, path)?, name, cache, more: of_document(&mut fields).into() }
        }
        "tool_use" => Part::Call(Call {
            id: needed(&mut fields, "id", path)?,
            name: needed(&mut fields, "name", path)?,
            arguments: fields.shift_remove("input").unwrap_or_else(|| json!({})).to_string(),
            signature: string(&mut fields, "thought_signature"),
            cache,
        }),
        "tool_result" => Part::Result {
            id: needed(&mut fields, "tool_use_id", path)?,
            is_error: fields.shift_remove("is_error") == Some(Value::Bool(true)),
            parts: parts(fields.shift_remove("content"), &format!("{path}.content"), lost)?,
            cache,
        },
        "thinking" => Part::Thinking {
            text: string(&mut fields, "thinking").unwrap_or_default(),
            signature: string(&mut fields, "signature").filter(|signature| !signature.is_empty()),
        },
        "redacted_thinking" => {
            let data = needed(&mut fields, "data", path)?;
            match data.strip_prefix(SEAL) {
                Some(signature) => Part::Seal(signature.to_owned()),
                None => Part::Redacted { data },
            }
        }
        other => {
            return Err(Refusal::new(format!("{path}.type"), format!("this provider has nothing like `{other}`")));
        }
    };
    lost.rest(&kind, &fields);
    Ok(part)
}

fn source(fields: &mut Fields, path: &str) -> Result<Source, Refusal> {
    let path = format!("{path}.source");
    let mut source = object(fields.shift_remove("source").unwrap_or_default(), &path)?;
    let kind = needed(&mut source, "type", &path)?;
    match kind.as_str() {
        "base64" => Ok(Source::Data {
            mime: needed(&mut source, "media_type", &path)?,
            data: needed(&mut source, "data", &path)?,
        }),
        "url" => Ok(Source::Url { url: needed(&mut source, "url", &path)?, mime: None }),
        "text" => Ok(Source::Text(needed(&mut source, "data", &path)?)),
        "file" => Ok(Source::File(needed(&mut source, "file_id", &path)?)),
        other => Err(Refusal::new(format!("{path}.type"), format!("this provider has nothing like `{other}`"))),
    }
}

fn tool(value: Value, path: &str) -> Result<Tool, Refusal> {
    let mut fields = object(value, path)?;
    if let Some(kind) = string(&mut fields, "type").filter(|kind| kind != "custom") {
        return Ok(Tool::Native { kind, fields });
    }
    Ok(Tool::Function {
        name: needed(&mut fields, "name", path)?,
        description: string(&mut fields, "description"),
        schema: schema(&mut fields, "input_schema", path)?,
        strict: fields.shift_remove("strict").filter(|strict| !strict.is_null()),
        cache: fields.shift_remove("cache_control").filter(|cache| !cache.is_null()),
        more: fields.into(),
    })
}

fn choose(value: Value, asked: &mut Asked, fields: &mut Fields) -> Result<(), Refusal> {
    let mut choice = object(value, "tool_choice")?;
    if let Some(Value::Bool(is_alone)) = choice.shift_remove("disable_parallel_tool_use") {
        fields.insert("parallel_tool_calls".into(), (!is_alone).into());
    }
    asked.choice = Some(match needed(&mut choice, "type", "tool_choice")?.as_str() {
        "auto" => Choice::Auto,
        "none" => Choice::None,
        "any" => Choice::Any,
        "tool" => Choice::Tool(needed(&mut choice, "name", "tool_choice")?),
        _ => return Err(Refusal::new("tool_choice.type", "must be auto, any, tool or none")),
    });
    asked.lose_rest("tool_choice", &choice);
    Ok(())
}
