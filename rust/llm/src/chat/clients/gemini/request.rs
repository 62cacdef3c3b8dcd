//! Reads a request for content.

use serde_json::{Value, json};

use super::{parts::REDACTED, schema};
use crate::{
    chat::request::{Asked, Call, Choice, Fields, Message, Part, Refusal, Role, Source, Tool, array, body, object},
    translation::dropped::Lost,
};

/// Parameters of `generationConfig` and their names among those of chat completions.
const GENERATION: &[(&str, &str)] = &[
    ("temperature", "temperature"),
    ("topP", "top_p"),
    ("topK", "top_k"),
    ("maxOutputTokens", "max_tokens"),
    ("candidateCount", "n"),
    ("stopSequences", "stop"),
    ("seed", "seed"),
    ("presencePenalty", "presence_penalty"),
    ("frequencyPenalty", "frequency_penalty"),
    ("responseLogprobs", "logprobs"),
    ("logprobs", "top_logprobs"),
];

/// Fields beside the configuration that some providers know under another name.
const OWN: &[(&str, &str)] =
    &[("safetySettings", "safety_settings"), ("cachedContent", "cached_content"), ("labels", "labels")];

pub fn read(json: &[u8], model: &str, stream: bool) -> Result<Asked, Refusal> {
    let mut fields = body(json)?;
    let mut asked = Asked { model: model.to_owned(), stream, ..Asked::default() };
    // The path names it.
    fields.shift_remove("model");
    if let Some(system) = take(&mut fields, "systemInstruction") {
        let parts = Reading::default().parts(system, "systemInstruction", &mut asked.lost)?;
        asked.messages.push(Message { role: Role::System, parts });
    }
    let mut reading = Reading::default();
    let contents = match take(&mut fields, "contents") {
        Some(one @ Value::Object(_)) => vec![one],
        contents => array(contents, "contents")?,
    };
    for (at, content) in contents.into_iter().enumerate() {
        let message = reading.content(content, &format!("contents[{at}]"), &mut asked.lost)?;
        asked.messages.push(message);
    }
    for (at, tool) in array(take(&mut fields, "tools"), "tools")?.into_iter().enumerate() {
        tools(object(tool, &format!("tools[{at}]"))?, at, &mut asked)?;
    }
    let mut out = Fields::new();
    if let Some(config) = take(&mut fields, "toolConfig") {
        choose(object(config, "toolConfig")?, &mut asked)?;
    }
    if let Some(config) = take(&mut fields, "generationConfig") {
        generation(object(config, "generationConfig")?, &mut out, &mut asked.lost)?;
    }
    for (key, name) in OWN {
        if let Some(value) = take(&mut fields, key) {
            out.insert((*name).to_owned(), value);
        }
    }
    // What else there is has no name elsewhere.
    out.extend(fields);
    asked.fields = out;
    Ok(asked)
}

/// What is to be counted: a request as it would be sent, or what of one there is to read.
pub fn read_counted(json: &[u8], model: &str) -> Result<Asked, Refusal> {
    match take(&mut body(json)?, "generateContentRequest") {
        Some(request) => read(request.to_string().as_bytes(), model, false),
        None => read(json, model, false),
    }
}

/// A field under its name in JSON, or under the one that it has in Google's definitions: both are taken.
pub(crate) fn take(fields: &mut Fields, key: &str) -> Option<Value> {
    let found = fields.shift_remove(key).or_else(|| fields.shift_remove(&snake(key)));
    found.filter(|value| !value.is_null())
}

fn snake(key: &str) -> String {
    let spelt = |one: char| if one.is_ascii_uppercase() { vec!['_', one.to_ascii_lowercase()] } else { vec![one] };
    key.chars().flat_map(spelt).collect()
}

fn text(fields: &mut Fields, key: &str) -> Option<String> {
    match take(fields, key)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn required(fields: &mut Fields, key: &str, path: &str) -> Result<String, Refusal> {
    text(fields, key).ok_or_else(|| Refusal::new(format!("{path}.{key}"), "must be a string"))
}

/// What was read so far: calls have no ids here as a rule, and what a tool gave back is told by its name.
#[derive(Default)]
struct Reading {
    /// Id, name, and whether it was answered.
    calls: Vec<(String, String, bool)>,
}

impl Reading {
    fn content(&mut self, content: Value, path: &str, lost: &mut Lost) -> Result<Message, Refusal> {
        let mut fields = object(content, path)?;
        let role = match text(&mut fields, "role").as_deref() {
            None | Some("" | "user" | "function" | "tool") => Role::User,
            Some("model") => Role::Assistant,
            Some("system") => Role::System,
            Some(other) => {
                let message = format!("`{other}` is not known here: it must be user or model");
                return Err(Refusal::new(format!("{path}.role"), message));
            }
        };
        let parts = self.parts(take(&mut fields, "parts").unwrap_or_default(), path, lost)?;
        lost.rest("contents", &fields);
        Ok(Message { role, parts })
    }

    fn parts(&mut self, content: Value, path: &str, lost: &mut Lost) -> Result<Vec<Part>, Refusal> {
        let items = match content {
            Value::String(text) => return Ok(vec![Part::text(text)]),
            Value::Object(mut fields) => take(&mut fields, "parts"),
            other => Some(other),
        };
        let path = format!("{path}.parts");
        let items = match items {
            Some(one @ Value::Object(_)) => vec![one],
            items => array(items, &path)?,
        };
        let mut parts: Vec<Part> = Vec::new();
        for (at, item) in items.into_iter().enumerate() {
            let seal = seal(&item);
            let part = self.part(item, &format!("{path}[{at}]"), lost)?;
            // A signature may come without the text that it seals.
            let is_silent = matches!(&part, Part::Text { text, .. } if text.is_empty());
            if seal.is_none() || !is_silent {
                join(&mut parts, part);
            }
            parts.extend(seal.map(Part::Seal));
        }
        Ok(parts)
    }

    fn part(&mut self, value: Value, path: &str, lost: &mut Lost) -> Result<Part, Refusal> {
        let mut fields = object(value, path)?;
        let is_thought = take(&mut fields, "thought") == Some(Value::Bool(true));
        let signature = text(&mut fields, "thoughtSignature");
        for key in ["videoMetadata", "mediaResolution"] {
            if take(&mut fields, key).is_some() {
                lost.add(key);
            }
        }
        let Some((kind, value)) = kind(&mut fields) else {
            // A signature may stand alone.
            return Ok(thinking(String::new(), signature));
        };
        let inner = format!("{path}.{kind}");
        // A seal of a text was read already.
        take(&mut fields, "thoughtSignature");
        lost.rest("parts", &fields);
        match (kind, value) {
            ("text", Value::String(text)) if is_thought => Ok(thinking(text, signature)),
            ("text", Value::String(text)) => Ok(Part::text(text)),
            ("inlineData", value) => {
                let mut data = object(value, &inner)?;
                let mime = required(&mut data, "mimeType", &inner)?;
                Ok(of_mime(Source::Data { data: required(&mut data, "data", &inner)?, mime }, &mut data, lost))
            }
            ("fileData", value) => {
                let mut data = object(value, &inner)?;
                let mime = text(&mut data, "mimeType");
                Ok(of_mime(Source::Url { url: required(&mut data, "fileUri", &inner)?, mime }, &mut data, lost))
            }
            ("functionCall", value) => Ok(Part::Call(self.call((object(value, &inner)?, signature), &inner, lost)?)),
            ("functionResponse", value) => self.response(object(value, &inner)?, &inner, lost),
            (kind, _) => Err(Refusal::new(path, format!("this provider has nothing like `{kind}`"))),
        }
    }

    fn call(
        &mut self,
        (mut fields, signature): (Fields, Option<String>),
        path: &str,
        lost: &mut Lost,
    ) -> Result<Call, Refusal> {
        let name = required(&mut fields, "name", path)?;
        let id = text(&mut fields, "id").filter(|id| !id.is_empty());
        let id = id.unwrap_or_else(|| format!("call_{}", self.calls.len()));
        self.calls.push((id.clone(), name.clone(), false));
        let arguments = take(&mut fields, "args").unwrap_or_else(|| json!({})).to_string();
        lost.rest("functionCall", &fields);
        Ok(Call { id, name, arguments, signature, cache: None })
    }

    fn response(&mut self, mut fields: Fields, path: &str, lost: &mut Lost) -> Result<Part, Refusal> {
        let name = required(&mut fields, "name", path)?;
        let id = text(&mut fields, "id").filter(|id| !id.is_empty());
        let is_it = |(known, called, answered): &&mut (String, String, bool)| {
            id.as_ref().map_or(*called == name && !*answered, |id| id == known)
        };
        let call = self.calls.iter_mut().find(is_it);
        let call = call.ok_or_else(|| Refusal::new(path, format!("no call of `{name}` before it waits for it")))?;
        call.2 = true;
        let id = call.0.clone();
        let response = take(&mut fields, "response").unwrap_or_else(|| json!({}));
        let (said, is_error) = match response.as_object().filter(|response| response.len() == 1) {
            Some(one) => match (one.get("output").or_else(|| one.get("result")), one.get("error")) {
                (Some(output), _) => (output.clone(), false),
                (_, Some(error)) => (error.clone(), true),
                _ => (response, false),
            },
            None => (response, false),
        };
        let mut parts = vec![Part::text(said.as_str().map_or_else(|| said.to_string(), ToOwned::to_owned))];
        if let Some(beside) = take(&mut fields, "parts") {
            parts.extend(self.parts(beside, path, lost)?);
        }
        lost.rest("functionResponse", &fields);
        Ok(Part::Result { id, parts, is_error, cache: None })
    }
}

/// What seals a text that is no thought.
fn seal(part: &Value) -> Option<String> {
    let is_thought = part["thought"] == true;
    let signature = part.get("thoughtSignature").or_else(|| part.get("thought_signature"))?.as_str()?;
    (!is_thought && part["text"].is_string()).then(|| signature.to_owned())
}

/// The one field that says what a part is.
fn kind(fields: &mut Fields) -> Option<(&'static str, Value)> {
    const KINDS: [&str; 7] =
        ["text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult"];
    KINDS.into_iter().find_map(|kind| Some((kind, take(fields, kind)?)))
}

fn thinking(text: String, signature: Option<String>) -> Part {
    match signature {
        Some(signature) => match signature.strip_prefix(REDACTED) {
            Some(data) => Part::Redacted { data: data.to_owned() },
            None => Part::Thinking { text, signature: Some(signature) },
        },
        None => Part::Thinking { text, signature: None },
    }
}

/// Thoughts come in runs of any size, with their signature behind them.
fn join(parts: &mut Vec<Part>, part: Part) {
    if let (Some(Part::Thinking { text, signature: open @ None }), Part::Thinking { text: more, signature }) =
        (parts.last_mut(), &part)
    {
        text.push_str(more);
        open.clone_from(signature);
        return;
    }
    parts.push(part);
}

fn of_mime(source: Source, data: &mut Fields, lost: &mut Lost) -> Part {
    let name = text(data, "displayName");
    lost.rest("data", data);
    let mime = match &source {
        Source::Data { mime, .. } | Source::Url { mime: Some(mime), .. } => mime.clone(),
        _ => String::new(),
    };
    let kind = mime.split_once('/').unwrap_or_default();
    if name.is_some() && matches!(kind.0, "audio" | "image") {
        lost.add("displayName");
    }
    match (kind, source) {
        (("audio", format), Source::Data { data, .. }) => {
            let format = if format == "mpeg" { "mp3" } else { format.trim_start_matches("x-") };
            Part::Audio { format: format.to_owned(), data }
        }
        (("image", _), source) => Part::Image { source, detail: None, cache: None },
        (_, source) => Part::Document { source, name, cache: None, more: Box::default() },
    }
}

fn tools(mut fields: Fields, at: usize, asked: &mut Asked) -> Result<(), Refusal> {
    let path = format!("tools[{at}].functionDeclarations");
    for (at, declared) in array(take(&mut fields, "functionDeclarations"), &path)?.into_iter().enumerate() {
        let path = format!("{path}[{at}]");
        let mut declared = object(declared, &path)?;
        let given = take(&mut declared, "parameters").map(schema::plain);
        let given = given.or_else(|| take(&mut declared, "parametersJsonSchema"));
        asked.tools.push(Tool::Function {
            name: required(&mut declared, "name", &path)?,
            description: text(&mut declared, "description"),
            schema: given.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
            strict: None,
            cache: None,
            more: Box::default(),
        });
        asked.lose_rest("functionDeclarations", &declared);
    }
    for (kind, value) in fields {
        asked.tools.push(Tool::Native { kind, fields: value.as_object().cloned().unwrap_or_default() });
    }
    Ok(())
}

fn choose(mut config: Fields, asked: &mut Asked) -> Result<(), Refusal> {
    let Some(calling) = take(&mut config, "functionCallingConfig") else { return Ok(()) };
    let path = "toolConfig.functionCallingConfig";
    let mut calling = object(calling, path)?;
    let names = array(take(&mut calling, "allowedFunctionNames"), "allowedFunctionNames")?;
    let only = if let [Value::String(name)] = names.as_slice() { Some(name.clone()) } else { None };
    asked.choice = match (text(&mut calling, "mode").as_deref(), only) {
        (None | Some("MODE_UNSPECIFIED"), _) => None,
        (Some("AUTO" | "VALIDATED"), _) => Some(Choice::Auto),
        (Some("NONE"), _) => Some(Choice::None),
        (Some("ANY"), Some(name)) => Some(Choice::Tool(name)),
        (Some("ANY"), None) => Some(Choice::Any),
        (Some(_), _) => return Err(Refusal::new(format!("{path}.mode"), "must be AUTO, ANY, VALIDATED or NONE")),
    };
    if names.len() > 1 || names.len() == 1 && !matches!(asked.choice, Some(Choice::Tool(_))) {
        asked.lost.add("allowedFunctionNames");
    }
    asked.lose_rest("functionCallingConfig", &calling);
    if !config.is_empty() {
        asked.lost.add("toolConfig");
    }
    Ok(())
}

fn generation(mut config: Fields, out: &mut Fields, lost: &mut Lost) -> Result<(), Refusal> {
    for (key, name) in GENERATION {
        if let Some(value) = take(&mut config, key) {
            out.insert((*name).to_owned(), value);
        }
    }
    answer_format(&mut config, out);
    if let Some(kinds) = take(&mut config, "responseModalities") {
        let kinds = array(Some(kinds), "generationConfig.responseModalities")?;
        let kinds: Vec<_> = kinds.iter().filter_map(Value::as_str).map(str::to_ascii_lowercase).collect();
        if kinds != ["text"] {
            out.insert("modalities".into(), kinds.into());
        }
    }
    if let Some(thinking) = take(&mut config, "thinkingConfig") {
        think(object(thinking, "generationConfig.thinkingConfig")?, out, lost)?;
    }
    lost.rest("generationConfig", &config);
    Ok(())
}

fn answer_format(config: &mut Fields, out: &mut Fields) {
    let kind = text(config, "responseMimeType");
    let schema = take(config, "responseSchema").map(schema::plain);
    let schema = schema.or_else(|| take(config, "responseJsonSchema"));
    let format = match (kind.as_deref(), schema) {
        (Some("application/json"), Some(schema)) => {
            json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
        }
        (Some("application/json"), None) => json!({"type": "json_object"}),
        (None | Some("text/plain"), None) => return,
        // Nobody else answers with one word of a list.
        (_, schema) => {
            out.insert("responseMimeType".into(), kind.into());
            out.insert("responseSchema".into(), schema.unwrap_or_default());
            return;
        }
    };
    out.insert("response_format".into(), format);
}

/// Whoever says how much is to be thought wants to see it.
fn think(mut config: Fields, out: &mut Fields, lost: &mut Lost) -> Result<(), Refusal> {
    let wrong = || Refusal::new("generationConfig.thinkingConfig.thinkingBudget", "must be an integer");
    let budget = take(&mut config, "thinkingBudget").map(|budget| budget.as_i64().ok_or_else(wrong)).transpose()?;
    let level = text(&mut config, "thinkingLevel").map(|level| level.to_ascii_lowercase());
    let level = level.filter(|level| level != "thinking_level_unspecified");
    if level.is_some() && budget.is_some_and(|budget| budget >= 0) {
        lost.add("thinkingLevel");
    }
    match (budget, level) {
        (Some(0), _) => drop(out.insert("thinking".into(), json!({"type": "disabled"}))),
        (Some(budget), _) if budget > 0 => {
            out.insert("thinking".into(), json!({"type": "enabled", "budget_tokens": budget}));
        }
        (_, Some(level)) => drop(out.insert("reasoning_effort".into(), level.into())),
        // As much as the model likes is what it does anyway.
        _ => (),
    }
    take(&mut config, "includeThoughts");
    lost.rest("thinkingConfig", &config);
    Ok(())
}

/// Whether its caller wants to see what was thought.
pub fn shows_thoughts(asked: &Asked) -> bool {
    let is_told = |thinking: &Value| !thinking.is_null() && thinking["type"] != "disabled";
    asked.fields.get("thinking").is_some_and(is_told) || asked.fields.contains_key("reasoning_effort")
}
