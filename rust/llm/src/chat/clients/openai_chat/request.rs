//! Reads a request for a chat completion.

use serde_json::Value;

use crate::{
    chat::request::{
        Asked, Call, Choice, Fields, Message, Part, Refusal, Role, Source, Tool, array, body, citations, decoded,
        needed, object, schema, some_object, string,
    },
    translation::dropped::Lost,
};

pub fn read(json: &[u8]) -> Result<Asked, Refusal> {
    let mut fields = body(json)?;
    let mut lost = Lost::default();
    let messages = array(fields.shift_remove("messages"), "messages")?;
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(at, value)| message(value, &format!("messages[{at}]"), &mut lost));
    let messages = messages.collect::<Result<_, _>>()?;
    let mut asked = Asked { messages, lost, ..Asked::default() };
    asked.model = string(&mut fields, "model").unwrap_or_default();
    asked.stream = fields.shift_remove("stream") == Some(Value::Bool(true));
    asked.tools = tools(fields.shift_remove("tools"), &mut asked.lost)?;
    asked.choice = choice(fields.shift_remove("tool_choice"))?;
    // Usage is always asked for; who wants to see it says this.
    if let Some(mut options) = some_object(&mut fields, "stream_options") {
        options.shift_remove("include_usage");
        asked.lost.rest("stream_options", &options);
    }
    if let Some(most) = fields.shift_remove("max_completion_tokens").filter(|value| !value.is_null()) {
        let other = fields.insert("max_tokens".into(), most).filter(|other| !other.is_null());
        asked.lose_some("max_tokens", other.filter(|other| *other != fields["max_tokens"]).as_ref());
    }
    for legacy in ["functions", "function_call"] {
        if fields.get(legacy).is_some_and(|value| !value.is_null()) {
            return Err(Refusal::new(legacy, "this provider takes `tools`"));
        }
    }
    asked.fields = fields;
    Ok(asked)
}

fn message(value: Value, path: &str, lost: &mut Lost) -> Result<Message, Refusal> {
    let mut fields = object(value, path)?;
    let role = needed(&mut fields, "role", path)?;
    let cache = cache(&mut fields);
    let (role, parts) = match role.as_str() {
        "system" | "developer" => (Role::System, content(&mut fields, path, cache, lost)?),
        "user" => (Role::User, content(&mut fields, path, cache, lost)?),
        "assistant" => (Role::Assistant, assistant(&mut fields, path, cache, lost)?),
        "tool" => {
            let id = needed(&mut fields, "tool_call_id", path)?;
            let is_error = fields.shift_remove("is_error") == Some(Value::Bool(true));
            let parts = content(&mut fields, path, None, lost)?;
            (Role::User, vec![Part::Result { id, parts, is_error, cache }])
        }
        other => {
            return Err(Refusal::new(
                format!("{path}.role"),
                format!("`{other}` is not known here: it must be system, developer, user, assistant or tool"),
            ));
        }
    };
    lost.rest("messages", &fields);
    Ok(Message { role, parts })
}

fn assistant(fields: &mut Fields, path: &str, cache: Option<Value>, lost: &mut Lost) -> Result<Vec<Part>, Refusal> {
    if fields.get("function_call").is_some_and(|call| !call.is_null()) {
        return Err(Refusal::new(format!("{path}.function_call"), "this provider takes `tool_calls`"));
    }
    let thought = string(fields, "reasoning_content").filter(|text| !text.is_empty());
    let blocks = fields.shift_remove("content_blocks").filter(|blocks| !blocks.is_null());
    let mut parts = if let Some(blocks) = blocks {
        let blocks = array(Some(blocks), &format!("{path}.content_blocks"))?;
        let path = |at| format!("{path}.content_blocks[{at}]");
        // They say all that is said.
        fields.shift_remove("content");
        if cache.is_some() {
            lost.add("cache_control");
        }
        blocks.into_iter().enumerate().map(|(at, value)| block(value, &path(at), lost)).collect::<Result<_, _>>()?
    } else {
        let mut parts: Vec<_> = thought.map(|text| Part::Thinking { text, signature: None }).into_iter().collect();
        parts.extend(content(fields, path, cache, lost)?);
        parts
    };
    if let Some(text) = string(fields, "refusal") {
        parts.push(Part::text(text));
    }
    let beside = fields.shift_remove("extra_content").unwrap_or_default();
    if let Some(signature) = beside.pointer("/google/thought_signature").and_then(Value::as_str) {
        parts.push(Part::Seal(signature.to_owned()));
    }
    for (at, value) in array(fields.shift_remove("tool_calls"), &format!("{path}.tool_calls"))?.into_iter().enumerate()
    {
        parts.push(Part::Call(call(value, &format!("{path}.tool_calls[{at}]"), lost)?));
    }
    Ok(parts)
}

fn call(value: Value, path: &str, lost: &mut Lost) -> Result<Call, Refusal> {
    let mut fields = object(value, path)?;
    let id = needed(&mut fields, "id", path)?;
    let cache = cache(&mut fields);
    let beside = fields.shift_remove("extra_content");
    let inner = format!("{path}.function");
    let mut function = object(fields.shift_remove("function").unwrap_or_default(), &inner)?;
    let name = needed(&mut function, "name", &inner)?;
    let arguments = string(&mut function, "arguments").unwrap_or_default();
    let beside = beside.and_then(|extra| extra.pointer("/google/thought_signature")?.as_str().map(ToOwned::to_owned));
    let signature = string(&mut function, "thought_signature").or(beside);
    // They say again what and where it is.
    for key in ["type", "index"] {
        fields.shift_remove(key);
    }
    lost.rest("tool_calls", &fields);
    lost.rest("tool_calls.function", &function);
    Ok(Call { id, name, arguments, signature, cache })
}

/// The content of a message; what was said of the message as a whole about caching goes to its last part.
fn content(fields: &mut Fields, path: &str, cache: Option<Value>, lost: &mut Lost) -> Result<Vec<Part>, Refusal> {
    let path = format!("{path}.content");
    let mut parts = match fields.shift_remove("content") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![Part::text(text)],
        Some(Value::Array(items)) => {
            let items = items.into_iter().enumerate();
            items.map(|(at, item)| part(item, &format!("{path}[{at}]"), lost)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(Refusal::new(path, "must be a string or an array of parts")),
    };
    match (cache, parts.last_mut()) {
        (
            Some(cache),
            Some(Part::Text { cache: slot, .. } | Part::Image { cache: slot, .. } | Part::Document { cache: slot, .. }),
        ) => *slot = Some(cache),
        (Some(_), _) => lost.add("cache_control"),
        (None, _) => (),
    }
    Ok(parts)
}

/// Kinds of blocks that messages may have whoever answered them.
const KINDS: [&str; 7] = ["text", "refusal", "image_url", "input_audio", "file", "thinking", "redacted_thinking"];

/// A block as it was told: one of a kind that nobody else has comes back as it was.
fn block(value: Value, path: &str, lost: &mut Lost) -> Result<Part, Refusal> {
    match value.get("type").and_then(Value::as_str) {
        Some(kind) if !KINDS.contains(&kind) => {
            let kind = kind.to_owned();
            let mut fields = object(value, path)?;
            fields.shift_remove("type");
            Ok(Part::Native { kind, fields })
        }
        _ => part(value, path, lost),
    }
}

fn part(value: Value, path: &str, lost: &mut Lost) -> Result<Part, Refusal> {
    let mut fields = object(value, path)?;
    let kind = needed(&mut fields, "type", path)?;
    let cache = cache(&mut fields);
    let part = match kind.as_str() {
        "text" | "refusal" => {
            Part::Text { text: needed(&mut fields, &kind, path)?, cache, citations: citations(&mut fields) }
        }
        "image_url" => image(&mut fields, path, cache, lost)?,
        "input_audio" => {
            let mut audio = object(fields.shift_remove("input_audio").unwrap_or_default(), path)?;
            let (data, format) = (needed(&mut audio, "data", path)?, needed(&mut audio, "format", path)?);
            lost.rest(&kind, &audio);
            Part::Audio { data, format }
        }
        "file" => file(object(fields.shift_remove("file").unwrap_or_default(), path)?, path, cache, lost)?,
        "thinking" => Part::Thinking {
            text: string(&mut fields, "thinking").unwrap_or_default(),
            signature: string(&mut fields, "signature"),
        },
        "redacted_thinking" => Part::Redacted { data: needed(&mut fields, "data", path)? },
        other => {
            return Err(Refusal::new(
                format!("{path}.type"),
                format!("`{other}` is not known here: it must be text, image_url, input_audio, file or refusal"),
            ));
        }
    };
    lost.rest("content", &fields);
    Ok(part)
}

fn image(fields: &mut Fields, path: &str, cache: Option<Value>, lost: &mut Lost) -> Result<Part, Refusal> {
    let path = format!("{path}.image_url");
    let mut image = match fields.shift_remove("image_url") {
        Some(Value::String(url)) => Fields::from_iter([("url".to_owned(), Value::String(url))]),
        other => object(other.unwrap_or_default(), &path)?,
    };
    let mime = string(&mut image, "mime_type");
    let source = Source::of_url(needed(&mut image, "url", &path)?, mime);
    let detail = image.shift_remove("detail").filter(|detail| detail != "auto" && !detail.is_null());
    lost.rest("image_url", &image);
    // A document may come where images do; providers want to be told.
    match &source {
        Source::Data { mime, .. } if mime == "application/pdf" => {
            if detail.is_some() {
                lost.add("image_url.detail");
            }
            Ok(Part::Document { source, name: None, cache, more: Box::default() })
        }
        _ => Ok(Part::Image { source, detail, cache }),
    }
}

fn file(mut file: Fields, path: &str, cache: Option<Value>, lost: &mut Lost) -> Result<Part, Refusal> {
    let name = string(&mut file, "filename").or_else(|| string(&mut file, "file_name"));
    let mime = string(&mut file, "mime_type");
    let source = if let Some(data) = string(&mut file, "file_data") {
        let mime = mime.unwrap_or_else(|| "application/pdf".into());
        match mime.as_str() {
            _ if data.starts_with("data:") => Source::of_url(data, None),
            // Some write out what a text says.
            "text/plain" if decoded(&data).is_none() => Source::Text(data),
            _ => Source::Data { mime, data },
        }
    } else if let Some(url) = string(&mut file, "file_url") {
        Source::of_url(url, mime)
    } else {
        Source::File(needed(&mut file, "file_id", &format!("{path}.file"))?)
    };
    lost.rest("file", &file);
    Ok(Part::Document { source, name, cache, more: Box::default() })
}

fn cache(fields: &mut Fields) -> Option<Value> {
    fields.shift_remove("cache_control").filter(|cache| !cache.is_null())
}

fn tools(value: Option<Value>, lost: &mut Lost) -> Result<Vec<Tool>, Refusal> {
    let tools = array(value, "tools")?.into_iter().enumerate();
    tools.map(|(at, value)| tool(value, &format!("tools[{at}]"), lost)).collect()
}

fn tool(value: Value, path: &str, lost: &mut Lost) -> Result<Tool, Refusal> {
    let mut fields = object(value, path)?;
    let kind = needed(&mut fields, "type", path)?;
    if kind != "function" {
        return Ok(Tool::Native { kind, fields });
    }
    let cache = cache(&mut fields);
    let path = format!("{path}.function");
    let mut function = object(fields.shift_remove("function").unwrap_or_default(), &path)?;
    let tool = Tool::Function {
        name: needed(&mut function, "name", &path)?,
        description: string(&mut function, "description"),
        schema: schema(&mut function, "parameters", &path)?,
        strict: function.shift_remove("strict").filter(|strict| !strict.is_null()),
        cache: cache.or_else(|| self::cache(&mut function)),
        more: fields.into(),
    };
    lost.rest("tools.function", &function);
    Ok(tool)
}

fn choice(value: Option<Value>) -> Result<Option<Choice>, Refusal> {
    let wrong = || Refusal::new("tool_choice", "must be auto, none, required or a function by name");
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(Some(Choice::Auto)),
            "none" => Ok(Some(Choice::None)),
            "required" => Ok(Some(Choice::Any)),
            _ => Err(wrong()),
        },
        Some(Value::Object(choice)) => {
            let name = choice.get("function").and_then(|function| function.get("name")).and_then(Value::as_str);
            Ok(Some(Choice::Tool(name.ok_or_else(wrong)?.to_owned())))
        }
        Some(_) => Err(wrong()),
    }
}
