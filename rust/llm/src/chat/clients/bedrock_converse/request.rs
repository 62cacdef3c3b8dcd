//! Reads a request to converse.

use serde_json::{Value, json};

use crate::chat::clients::bedrock_converse::signature_blocks;
use crate::{
    chat::request::{
        Asked, Call, Choice, Fields, Message, Part, Refusal, Role, Source, Tool, array, body, citations, needed,
        object, of_document, string,
    },
    translation::dropped::Lost,
};

/// Limits of the answer and their names among those of chat completions.
const INFERENCE: &[(&str, &str)] =
    &[("maxTokens", "max_tokens"), ("temperature", "temperature"), ("topP", "top_p"), ("stopSequences", "stop")];

pub fn read(json: &[u8], model: &str, stream: bool) -> Result<Asked, Refusal> {
    let mut fields = body(json)?;
    let mut asked = Asked { model: model.to_owned(), stream, ..Asked::default() };
    // The path names it.
    fields.shift_remove("model");
    let system = blocks(fields.shift_remove("system"), "system", &mut asked.lost)?;
    if !system.is_empty() {
        asked.messages.push(Message { role: Role::System, parts: system });
    }
    for (at, value) in array(fields.shift_remove("messages"), "messages")?.into_iter().enumerate() {
        asked.messages.push(message(value, &format!("messages[{at}]"), &mut asked.lost)?);
    }
    if let Some(config) = taken(&mut fields, "toolConfig") {
        tools(object(config, "toolConfig")?, &mut asked)?;
    }
    let mut out = Fields::new();
    if let Some(inference) = taken(&mut fields, "inferenceConfig") {
        let mut inference = object(inference, "inferenceConfig")?;
        for (key, name) in INFERENCE {
            if let Some(value) = taken(&mut inference, key) {
                out.insert((*name).to_owned(), value);
            }
        }
        asked.lose_rest("inferenceConfig", &inference);
    }
    if let Some(more) = taken(&mut fields, "additionalModelRequestFields") {
        beside(object(more, "additionalModelRequestFields")?, &mut out);
    }
    if let Some(config) = taken(&mut fields, "outputConfig") {
        answer_format(config, &mut out, &mut asked.lost)?;
    }
    if let Some(config) = taken(&mut fields, "performanceConfig").filter(|config| config["latency"] != "standard") {
        out.insert("performance_config".into(), config);
    }
    // What else there is has no name elsewhere.
    out.extend(fields);
    asked.fields = out;
    Ok(asked)
}

fn taken(fields: &mut Fields, key: &str) -> Option<Value> {
    fields.shift_remove(key).filter(|value| !value.is_null())
}

/// What one vendor's models take has the name that chat completions have for it, or none.
fn beside(more: Fields, out: &mut Fields) {
    for (key, value) in more {
        let key = match key.as_str() {
            "reasoning_config" => "thinking".to_owned(),
            _ => key,
        };
        out.entry(key).or_insert(value);
    }
}

fn answer_format(config: Value, out: &mut Fields, lost: &mut Lost) -> Result<(), Refusal> {
    let mut config = object(config, "outputConfig")?;
    if let Some(format) = taken(&mut config, "textFormat") {
        let told = &format["structure"]["jsonSchema"];
        let schema = told["schema"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let path = "outputConfig.textFormat.structure.jsonSchema.schema";
        let schema = schema.ok_or_else(|| Refusal::new(path, "must be a JSON schema, as a string"))?;
        let name = told["name"].as_str().unwrap_or("answer");
        let mut json_schema = json!({"name": name, "schema": schema, "strict": true});
        if let Some(description) = told.get("description").filter(|text| text.is_string()) {
            json_schema["description"] = description.clone();
        }
        out.insert("response_format".into(), json!({"type": "json_schema", "json_schema": json_schema}));
    }
    lost.rest("outputConfig", &config);
    Ok(())
}

fn message(value: Value, path: &str, lost: &mut Lost) -> Result<Message, Refusal> {
    let mut fields = object(value, path)?;
    let role = match needed(&mut fields, "role", path)?.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        other => {
            let message = format!("`{other}` is not known here: it must be user or assistant");
            return Err(Refusal::new(format!("{path}.role"), message));
        }
    };
    let parts = blocks(fields.shift_remove("content"), &format!("{path}.content"), lost)?;
    lost.rest("messages", &fields);
    Ok(Message { role, parts: signature_blocks::opened(parts) })
}

fn blocks(value: Option<Value>, path: &str, lost: &mut Lost) -> Result<Vec<Part>, Refusal> {
    let mut parts = Vec::new();
    for (at, item) in array(value, path)?.into_iter().enumerate() {
        let path = format!("{path}[{at}]");
        let (kind, value) = only(item, &path)?;
        if kind == "cachePoint" {
            mark(&mut parts, &value, lost);
        } else {
            parts.push(block(&kind, value, &path, lost)?);
        }
    }
    Ok(parts)
}

/// The one field that says what a block is.
fn only(item: Value, path: &str) -> Result<(String, Value), Refusal> {
    let mut fields = object(item, path)?.into_iter().filter(|(_, value)| !value.is_null());
    match (fields.next(), fields.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(Refusal::new(path, "must have one field, which says what it is")),
    }
}

/// A point up to which is cached, as a hint.
fn hint(point: &Value) -> Value {
    let mut hint = json!({"type": "ephemeral"});
    if let Some(ttl) = point.get("ttl").filter(|ttl| !ttl.is_null()) {
        hint["ttl"] = ttl.clone();
    }
    hint
}

/// What stands before the point says so.
fn mark(parts: &mut [Part], point: &Value, lost: &mut Lost) {
    let hint = hint(point);
    match parts.last_mut() {
        Some(
            Part::Text { cache, .. }
            | Part::Image { cache, .. }
            | Part::Document { cache, .. }
            | Part::Result { cache, .. }
            | Part::Call(Call { cache, .. }),
        ) => *cache = Some(hint),
        _ => lost.add("cachePoint"),
    }
}

fn block(kind: &str, value: Value, path: &str, lost: &mut Lost) -> Result<Part, Refusal> {
    let path = format!("{path}.{kind}");
    match (kind, value) {
        ("text", Value::String(text)) => Ok(Part::text(text)),
        ("json", value) => Ok(Part::text(value.to_string())),
        ("image", value) => image(object(value, &path)?, &path, lost),
        ("document", value) => document(object(value, &path)?, &path, lost),
        ("toolUse", value) => {
            let mut call = object(value, &path)?;
            let part = Part::Call(Call {
                id: needed(&mut call, "toolUseId", &path)?,
                name: needed(&mut call, "name", &path)?,
                arguments: call.shift_remove("input").unwrap_or_else(|| json!({})).to_string(),
                signature: None,
                cache: None,
            });
            lost.rest(kind, &call);
            Ok(part)
        }
        ("toolResult", value) => {
            let mut result = object(value, &path)?;
            let id = needed(&mut result, "toolUseId", &path)?;
            let is_error = string(&mut result, "status").is_some_and(|status| status == "error");
            let parts = blocks(result.shift_remove("content"), &format!("{path}.content"), lost)?;
            lost.rest(kind, &result);
            Ok(Part::Result { id, parts, is_error, cache: None })
        }
        ("citationsContent", value) => {
            let mut cited = object(value, &path)?;
            let text = array(cited.shift_remove("content"), &format!("{path}.content"))?;
            let text = text.iter().filter_map(|words| words["text"].as_str()).collect();
            let part = Part::Text { text, cache: None, citations: citations(&mut cited) };
            lost.rest(kind, &cited);
            Ok(part)
        }
        ("reasoningContent", value) => thought(object(value, &path)?, &path),
        _ => Err(Refusal::new(path, format!("this provider has nothing like `{kind}`"))),
    }
}

fn thought(mut fields: Fields, path: &str) -> Result<Part, Refusal> {
    if let Some(data) = string(&mut fields, "redactedContent") {
        return Ok(Part::Redacted { data });
    }
    let path = format!("{path}.reasoningText");
    let mut thought = object(fields.shift_remove("reasoningText").unwrap_or_default(), &path)?;
    Ok(Part::Thinking { text: needed(&mut thought, "text", &path)?, signature: string(&mut thought, "signature") })
}

fn image(mut fields: Fields, path: &str, lost: &mut Lost) -> Result<Part, Refusal> {
    let mime = format!("image/{}", needed(&mut fields, "format", path)?);
    let source = source(&mut fields, mime, path)?;
    lost.rest("image", &fields);
    Ok(Part::Image { source, detail: None, cache: None })
}

fn document(mut fields: Fields, path: &str, lost: &mut Lost) -> Result<Part, Refusal> {
    let name = string(&mut fields, "name");
    let mime = of_format(&string(&mut fields, "format").unwrap_or_else(|| "txt".into())).to_owned();
    let (source, more) = (source(&mut fields, mime, path)?, of_document(&mut fields));
    lost.rest("document", &fields);
    Ok(Part::Document { source, name, cache: None, more: more.into() })
}

fn source(fields: &mut Fields, mime: String, path: &str) -> Result<Source, Refusal> {
    let path = format!("{path}.source");
    let (kind, value) = only(fields.shift_remove("source").unwrap_or_default(), &path)?;
    match (kind.as_str(), value) {
        ("bytes", Value::String(data)) => Ok(Source::Data { mime, data }),
        ("text", Value::String(text)) => Ok(Source::Text(text)),
        ("s3Location", value) => {
            let mut place = object(value, &path)?;
            Ok(Source::Url { url: needed(&mut place, "uri", &path)?, mime: Some(mime) })
        }
        _ => Err(Refusal::new(path, "must be bytes, text or a place in S3")),
    }
}

fn of_format(format: &str) -> &str {
    match format {
        "pdf" => "application/pdf",
        "csv" => "text/csv",
        "html" => "text/html",
        "md" => "text/markdown",
        "doc" => "application/msword",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls" => "application/vnd.ms-excel",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        _ => "text/plain",
    }
}

fn tools(mut config: Fields, asked: &mut Asked) -> Result<(), Refusal> {
    for (at, item) in array(config.shift_remove("tools"), "toolConfig.tools")?.into_iter().enumerate() {
        let path = format!("toolConfig.tools[{at}]");
        let (kind, value) = only(item, &path)?;
        match kind.as_str() {
            "toolSpec" => asked.tools.push(tool(object(value, &path)?, &path)?),
            "cachePoint" => match asked.tools.last_mut() {
                Some(Tool::Function { cache, .. }) => *cache = Some(hint(&value)),
                _ => asked.lost.add("cachePoint"),
            },
            _ => asked.tools.push(Tool::Native { kind, fields: value.as_object().cloned().unwrap_or_default() }),
        }
    }
    let choice = taken(&mut config, "toolChoice");
    asked.lose_rest("toolConfig", &config);
    let Some(choice) = choice else { return Ok(()) };
    let (kind, mut value) = only(choice, "toolConfig.toolChoice")?;
    asked.choice = Some(match (kind.as_str(), value.get_mut("name").map(Value::take).unwrap_or_default()) {
        ("auto", _) => Choice::Auto,
        ("any", _) => Choice::Any,
        ("tool", Value::String(name)) => Choice::Tool(name),
        _ => return Err(Refusal::new("toolConfig.toolChoice", "must be auto, any or a tool by name")),
    });
    Ok(())
}

fn tool(mut spec: Fields, path: &str) -> Result<Tool, Refusal> {
    let mut schema = spec.shift_remove("inputSchema").unwrap_or_default();
    Ok(Tool::Function {
        name: needed(&mut spec, "name", path)?,
        description: string(&mut spec, "description"),
        schema: schema.get_mut("json").map(Value::take).unwrap_or_default(),
        strict: spec.shift_remove("strict").filter(|strict| !strict.is_null()),
        cache: None,
        more: spec.into(),
    })
}
