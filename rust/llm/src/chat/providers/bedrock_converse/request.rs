//! Writes a request to converse.

use serde_json::{Value, json};

use crate::chat::providers::bedrock_converse::{
    document_names,
    vendor_fields::{self, Place, Vendor},
};
use crate::{
    chat::{
        providers::{anthropic_messages, openai_chat::reasoning_details},
        request::{Asked, Choice, Fields, Message, Part, Refusal, Role, Source, Tool},
    },
    citations,
};

/// What limits and steers the answer, whoever's model it is.
const INFERENCE: &[(&str, &str)] = &[("max_tokens", "maxTokens"), ("temperature", "temperature"), ("top_p", "topP")];

/// Fields that Bedrock itself has, under either spelling.
const OWN: &[(&str, &str)] = &[
    ("guardrailConfig", "guardrailConfig"),
    ("guardrail_config", "guardrailConfig"),
    ("performance_config", "performanceConfig"),
    ("additionalModelResponseFieldPaths", "additionalModelResponseFieldPaths"),
    ("additional_model_response_field_paths", "additionalModelResponseFieldPaths"),
];

pub fn write(asked: &mut Asked) -> Result<Fields, Refusal> {
    asked.refuse_several()?;
    let mut out = Fields::new();
    let may_think = vendor_fields::may_think(asked);
    messages(asked, &mut out)?;
    let native = tools(asked, &mut out)?;
    let mut inference = Fields::new();
    for key in ["temperature", "top_p"] {
        asked.bound(key, &(0..=1));
    }
    vendor_fields::think(asked, may_think)?;
    for (key, name) in INFERENCE {
        asked.hand(key, &mut inference, name);
    }
    match asked.take("stop") {
        Some(Value::String(stop)) => drop(inference.insert("stopSequences".into(), json!([stop]))),
        Some(stop) => drop(inference.insert("stopSequences".into(), stop)),
        None => (),
    }
    if !inference.is_empty() {
        out.insert("inferenceConfig".into(), inference.into());
    }
    for (key, name) in OWN {
        asked.hand(key, &mut out, name);
    }
    format(asked, &mut out);
    vendor_fields::write(asked, native, &mut out);
    // In the path, both.
    asked.model.clear();
    asked.stream = false;
    Ok(out)
}

/// A schema that the answer keeps to.
fn format(asked: &mut Asked, out: &mut Fields) {
    let Some(format) = asked.take("response_format") else { return };
    let told = &format["json_schema"];
    if told["schema"].is_object() {
        let mut structure = json!({"schema": told["schema"].to_string()});
        for key in ["name", "description"] {
            if told[key].is_string() {
                structure[key] = told[key].clone();
            }
        }
        let format = json!({"type": "json_schema", "structure": {"jsonSchema": structure}});
        out.insert("outputConfig".into(), json!({"textFormat": format}));
    } else if format["type"] != "text" {
        asked.fields.insert("response_format".into(), format);
    }
}

fn messages(asked: &mut Asked, out: &mut Fields) -> Result<(), Refusal> {
    let mut system = Vec::new();
    let mut turns: Vec<(Role, Vec<Value>)> = Vec::new();
    let were = asked.messages.len();
    for (at, message) in std::mem::take(&mut asked.messages).into_iter().enumerate() {
        let Message { role, parts } = message;
        let mut said = Vec::new();
        for part in parts {
            write_part(part, &format!("messages[{at}]"), asked, &mut said)?;
        }
        match turns.last_mut() {
            _ if role == Role::System => system.extend(said),
            Some((last, turn)) if *last == role => turn.extend(said),
            _ => turns.push((role, said)),
        }
    }
    turns.retain(|(_, blocks)| !blocks.is_empty());
    Asked::refuse_silence(were, turns.len())?;
    if vendor_fields::may_be_claude(&asked.model) {
        anthropic_messages::end_in_words(&mut turns);
    }
    document_names::name_apart(system.iter_mut().chain(turns.iter_mut().flat_map(|(_, blocks)| blocks)));
    let turn =
        |(role, blocks)| json!({"role": if role == Role::User { "user" } else { "assistant" }, "content": blocks});
    out.insert("messages".into(), turns.into_iter().map(turn).collect());
    if !system.is_empty() {
        out.insert("system".into(), system.into());
    }
    Ok(())
}

fn write_part(part: Part, path: &str, asked: &mut Asked, out: &mut Vec<Value>) -> Result<(), Refusal> {
    let refused = |what: &str| Refusal::new(path, format!("this provider does not take {what}"));
    let (block, cache) = match part {
        // A text of nothing but space is refused.
        Part::Text { text, .. } if text.trim().is_empty() => return Ok(()),
        Part::Text { text, cache, citations } => match citations.as_ref().map(citations::again_to_converse) {
            Some(Some(own)) => (json!({"citationsContent": {"content": [{"text": text}], "citations": own}}), cache),
            told => {
                asked.lose_some("citations", told.as_ref());
                (json!({"text": text}), cache)
            }
        },
        Part::Image { source: Source::Data { mime, data }, cache, detail } => {
            asked.lose_some("image_url.detail", detail.as_ref());
            (picture(&mime, &data).ok_or_else(|| refused(&mime))?, cache)
        }
        Part::Image { .. } => return Err(refused("images by URL: send their bytes")),
        Part::Document { source, name, cache, more } => {
            let mut block = document(source, name).ok_or_else(|| refused("this document"))?;
            for (key, value) in *more {
                block["document"][key] = value;
            }
            (block, cache)
        }
        Part::Audio { .. } => return Err(refused("audio")),
        Part::Thinking { text, signature: Some(signature) } if !reasoning_details::are_in(&signature) => {
            (json!({"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}), None)
        }
        Part::Thinking { .. } => {
            asked.lose("reasoning_content");
            return Ok(());
        }
        Part::Redacted { data } => (json!({"reasoningContent": {"redactedContent": data}}), None),
        Part::Seal(_) => {
            asked.lose("thought_signature");
            return Ok(());
        }
        Part::Native { kind, .. } => {
            asked.lose(&kind);
            return Ok(());
        }
        Part::Call(call) => {
            let input = call.input();
            let input = input.ok_or_else(|| Refusal::new(path, "arguments of a tool call must be a JSON object"))?;
            let id = vendor_fields::ids(&asked.model).fit(&call.id);
            (json!({"toolUse": {"toolUseId": id, "name": call.name, "input": input}}), call.cache)
        }
        Part::Result { id, parts, is_error, cache } => {
            let (beside, within) = within_result(parts, path, asked)?;
            let cache = cache.or(within);
            let mut result = json!({"toolUseId": vendor_fields::ids(&asked.model).fit(&id), "content": beside});
            if is_error {
                result["status"] = "error".into();
            }
            (json!({"toolResult": result}), cache)
        }
    };
    out.push(block);
    point(cache.as_ref(), Place::Talk, asked, out);
    Ok(())
}

/// What a tool gave back, and the last hint about caching in it: that has no place there, and stands behind it.
fn within_result(parts: Vec<Part>, path: &str, asked: &mut Asked) -> Result<(Vec<Value>, Option<Value>), Refusal> {
    let (mut inner, mut beside, mut hint) = (Vec::new(), Vec::new(), None);
    for mut part in parts {
        if let Part::Text { cache, .. } | Part::Image { cache, .. } | Part::Document { cache, .. } = &mut part {
            hint = cache.take().or(hint);
        }
        // Images that are not here cannot be put into a result; the model may be told where they are.
        match part {
            Part::Image { source: Source::Url { url, .. }, .. } => inner.push(json!({"text": url})),
            part => write_part(part, path, asked, &mut beside)?,
        }
    }
    beside.append(&mut inner);
    Ok((beside, hint))
}

/// A hint about caching is a block of its own here, where the model takes one.
fn point(cache: Option<&Value>, place: Place, asked: &mut Asked, out: &mut Vec<Value>) {
    let Some(cache) = cache else { return };
    if !vendor_fields::caches(&asked.model, place) {
        return asked.lose("cache_control");
    }
    let mut point = json!({"type": "default"});
    match cache.get("ttl") {
        Some(ttl) if vendor_fields::caches_long(&asked.model) => point["ttl"] = ttl.clone(),
        Some(ttl) if ttl != "5m" => asked.lose("cache_control.ttl"),
        _ => (),
    }
    out.push(json!({"cachePoint": point}));
}

/// An image or a video, by its type; what says none is taken for an image.
fn picture(mime: &str, data: &str) -> Option<Value> {
    let (kind, format) = match mime {
        "" | "image/png" => ("image", "png"),
        "image/jpeg" | "image/jpg" => ("image", "jpeg"),
        "image/gif" => ("image", "gif"),
        "image/webp" => ("image", "webp"),
        "video/mp4" => ("video", "mp4"),
        "video/quicktime" => ("video", "mov"),
        "video/x-matroska" => ("video", "mkv"),
        "video/webm" => ("video", "webm"),
        "video/x-flv" => ("video", "flv"),
        "video/mpeg" => ("video", "mpeg"),
        "video/x-ms-wmv" => ("video", "wmv"),
        "video/3gpp" => ("video", "three_gp"),
        _ => return None,
    };
    let mut out = Fields::new();
    out.insert(kind.into(), json!({"format": format, "source": {"bytes": data}}));
    Some(out.into())
}

fn document(source: Source, name: Option<String>) -> Option<Value> {
    let (format, place) = match source {
        Source::Data { mime, data } => (of_mime(&mime)?, json!({"bytes": data})),
        Source::Text(text) => ("txt", json!({"text": text})),
        Source::Url { url, mime } if url.starts_with("s3://") => {
            (mime.as_deref().map_or(Some("pdf"), of_mime)?, json!({"s3Location": {"uri": url}}))
        }
        _ => return None,
    };
    let name = name.unwrap_or_default();
    Some(json!({"document": {"format": format, "name": name, "source": place}}))
}

fn of_mime(mime: &str) -> Option<&'static str> {
    Some(match mime {
        "application/pdf" => "pdf",
        "text/plain" => "txt",
        "text/markdown" => "md",
        "text/csv" => "csv",
        "text/html" => "html",
        "application/msword" => "doc",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document" => "docx",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" => "xlsx",
        _ => return None,
    })
}

/// Who talks of tools must say that there are some: where the caller has none left, those that were called.
fn remembered(asked: &mut Asked, out: &mut Fields) {
    let mut names: Vec<&Value> = Vec::new();
    let messages = out.get("messages").and_then(Value::as_array).into_iter().flatten();
    for block in messages.flat_map(|message| message["content"].as_array().into_iter().flatten()) {
        let name = &block["toolUse"]["name"];
        if name.is_string() && !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return;
    }
    let schema = json!({"json": {"type": "object", "properties": {}}});
    let tools: Vec<_> = names.iter().map(|name| json!({"toolSpec": {"name": name, "inputSchema": schema}})).collect();
    // It may call them again.
    asked.lose("tools");
    out.insert("toolConfig".into(), json!({"tools": tools}));
}

/// Writes functions; gives back those tools that Anthropic runs itself, for models that know them.
fn tools(asked: &mut Asked, out: &mut Fields) -> Result<Vec<Value>, Refusal> {
    let (mut tools, mut native) = (Vec::new(), Vec::new());
    for (at, tool) in std::mem::take(&mut asked.tools).into_iter().enumerate() {
        let (name, description, schema, strict, cache, more) = match tool {
            Tool::Function { name, description, schema, strict, cache, more } => {
                (name, description, schema, strict, cache, more)
            }
            Tool::Native { kind, fields } if Vendor::of(&asked.model) == Vendor::Anthropic => {
                native.push(anthropic_messages::native(&kind, fields));
                continue;
            }
            Tool::Native { .. } => {
                return Err(Refusal::new(format!("tools[{at}].type"), "this provider takes functions only"));
            }
        };
        asked.lose_rest("tools", &more);
        let schema = if schema.is_object() { schema } else { json!({"type": "object", "properties": {}}) };
        let mut spec = json!({"name": name});
        // An empty description is refused.
        if let Some(description) = description.filter(|text| !text.is_empty()) {
            spec["description"] = description.into();
        }
        spec["inputSchema"] = json!({"json": schema});
        if strict == Some(Value::Bool(true)) {
            spec["strict"] = true.into();
        }
        tools.push(json!({"toolSpec": spec}));
        point(cache.as_ref(), Place::Tools, asked, &mut tools);
    }
    if asked.take("parallel_tool_calls") == Some(Value::Bool(false)) {
        asked.lose("parallel_tool_calls");
    }
    let choice = asked.choice.take();
    if tools.is_empty() {
        remembered(asked, out);
        match choice {
            Some(Choice::Any | Choice::Tool(_)) if native.is_empty() => {
                return Err(Refusal::new("tool_choice", "there are no tools"));
            }
            // It is among functions.
            Some(Choice::Any | Choice::Tool(_) | Choice::None) if !native.is_empty() => asked.lose("tool_choice"),
            _ => (),
        }
        return Ok(native);
    }
    let mut config = json!({"tools": tools});
    match choice {
        None => (),
        Some(Choice::Auto) => config["toolChoice"] = json!({"auto": {}}),
        Some(Choice::Any) => config["toolChoice"] = json!({"any": {}}),
        Some(Choice::Tool(name)) => config["toolChoice"] = json!({"tool": {"name": name}}),
        Some(Choice::None) => return Err(Refusal::new("tool_choice", "this provider cannot be told to use no tool")),
    }
    out.insert("toolConfig".into(), config);
    Ok(native)
}
