//! Writes a request for a chat completion.

use serde_json::{Value, json};

use super::Thoughts;
use crate::chat::providers::openai_chat::reasoning_details;
use crate::chat::{
    call_ids,
    request::{Asked, Choice, Fields, Message, Part, Refusal, Role, Source, Tool, joined},
};

/// What a compatible provider may be told besides what is written here.
const KNOWN: &[&str] = &[
    "temperature",
    "top_p",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "user",
    "seed",
    "response_format",
    "logprobs",
    "top_logprobs",
    "service_tier",
    "parallel_tool_calls",
    "store",
    "metadata",
    "modalities",
    "audio",
    "prediction",
    "reasoning_effort",
    "web_search_options",
    "prompt_cache_key",
    "safety_identifier",
    "verbosity",
];

/// An effort that Claude has, and that is refused by most others who know efforts.
const MAX: &str = "max";

/// `thoughts`: what the model is told again of those it had.
pub fn write(asked: &mut Asked, limit: &str, thoughts: Thoughts) -> Result<Fields, Refusal> {
    // Of several answers one would be told.
    asked.refuse_several()?;
    let mut out = Fields::new();
    out.insert("model".into(), asked.model.as_str().into());
    let mut messages = Vec::new();
    for (at, message) in turns(std::mem::take(&mut asked.messages)) {
        write_message(message, &format!("messages[{at}]"), asked, (thoughts, &mut messages))?;
    }
    if call_ids::of_chat(&asked.model) == call_ids::MISTRAL {
        messages = bridged(messages, asked);
    }
    out.insert("messages".into(), messages.into());
    let tools = std::mem::take(&mut asked.tools).into_iter().enumerate();
    let tools = tools.map(|(at, one)| tool(one, at, asked)).collect::<Result<Vec<_>, _>>()?;
    if !tools.is_empty() {
        out.insert("tools".into(), tools.into());
    }
    let choice = match asked.choice.take() {
        None => None,
        Some(Choice::Auto) => Some("auto".into()),
        Some(Choice::None) => Some("none".into()),
        Some(Choice::Any) => Some("required".into()),
        Some(Choice::Tool(name)) => Some(json!({"type": "function", "function": {"name": name}})),
    };
    if let Some(choice) = choice {
        out.insert("tool_choice".into(), choice);
    }
    asked.hand("max_tokens", &mut out, limit);
    if let Some(budget) = budget(asked).filter(|_| thoughts == Thoughts::Details) {
        asked.fields.shift_remove("thinking");
        out.insert("reasoning".into(), json!({"max_tokens": budget}));
    }
    if thoughts != Thoughts::Words && asked.fields.get("reasoning_effort").is_some_and(|word| word == MAX) {
        asked.fields.insert("reasoning_effort".into(), "high".into());
        asked.lose("reasoning_effort");
    }
    for key in KNOWN {
        asked.hand(key, &mut out, key);
    }
    if asked.stream {
        out.insert("stream".into(), true.into());
    }
    asked.model.clear();
    Ok(out)
}

/// How many tokens may be thought.
fn budget(asked: &Asked) -> Option<Value> {
    let thinking = asked.fields.get("thinking").filter(|thinking| thinking["type"] == "enabled")?;
    thinking.get("budget_tokens").filter(|budget| budget.is_u64()).cloned()
}

/// What one side says in several messages, with where it begins. A message that calls a tool is followed by what the tool gave
/// back, or refused: calls that were told one by one are one message, and so is what came of them.
fn turns(messages: Vec<Message>) -> Vec<(usize, Message)> {
    let gives_back = |message: &Message| message.parts.iter().any(|part| matches!(part, Part::Result { .. }));
    let mut turns: Vec<(usize, Message)> = Vec::new();
    for (at, message) in messages.into_iter().enumerate() {
        match turns.last_mut() {
            Some((_, last))
                if last.role == message.role
                    && (last.role == Role::Assistant || gives_back(last) && gives_back(&message)) =>
            {
                last.parts.extend(message.parts);
            }
            _ => turns.push((at, message)),
        }
    }
    turns
}

/// The messages with a short word of the assistant where a user speaks straight after a tool, which Mistral's models refuse.
fn bridged(messages: Vec<Value>, asked: &mut Asked) -> Vec<Value> {
    let mut told: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        if message["role"] == "user" && told.last().is_some_and(|last| last["role"] == "tool") {
            asked.lose("messages.assistant");
            told.push(json!({"role": "assistant", "content": "OK."}));
        }
        told.push(message);
    }
    told
}

fn write_message(
    message: Message,
    path: &str,
    asked: &mut Asked,
    (thoughts, out): (Thoughts, &mut Vec<Value>),
) -> Result<(), Refusal> {
    let Message { role, parts } = message;
    if role == Role::Assistant {
        out.extend(assistant(parts, path, asked, thoughts)?);
        return Ok(());
    }
    let mut said = Vec::new();
    for part in parts {
        match part {
            // Results are messages of their own, before what the user says to them.
            Part::Result { id, parts, is_error, cache } => {
                hint(cache.as_ref(), asked);
                if is_error {
                    asked.lose("is_error");
                }
                let (texts, others): (Vec<_>, Vec<_>) =
                    parts.into_iter().partition(|part| matches!(part, Part::Text { .. }));
                let content = content(texts, path, asked)?;
                out.push(json!({"role": "tool", "tool_call_id": call_ids::of_chat(&asked.model).fit(&id), "content": content}));
                said.extend(others);
            }
            other => said.push(other),
        }
    }
    if !said.is_empty() {
        let role = if role == Role::System { "system" } else { "user" };
        out.push(json!({"role": role, "content": content(said, path, asked)?}));
    }
    Ok(())
}

/// Nothing where nothing is left to say.
fn assistant(parts: Vec<Part>, path: &str, asked: &mut Asked, again: Thoughts) -> Result<Option<Value>, Refusal> {
    let mut thoughts = String::new();
    let mut details = Vec::new();
    let mut calls = Vec::new();
    let mut said = Vec::new();
    let mut seal = None;
    for part in parts {
        match part {
            Part::Call(call) => {
                hint(call.cache.as_ref(), asked);
                let mut told = json!({"id": call_ids::of_chat(&asked.model).fit(&call.id), "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments}});
                if let Some(signature) = call.signature {
                    told["extra_content"] = json!({"google": {"thought_signature": signature}});
                }
                calls.push(told);
            }
            Part::Thinking { text, .. } if again == Thoughts::Words => thoughts.push_str(&text),
            Part::Thinking { signature, .. } => {
                let told =
                    signature.filter(|_| again == Thoughts::Details).and_then(|sealed| reasoning_details::of(&sealed));
                asked.lose_some("thinking", told.is_none().then_some(&()));
                details.extend(told.unwrap_or_default());
            }
            Part::Redacted { .. } => asked.lose("thinking"),
            Part::Seal(signature) => {
                if seal.replace(signature).is_some() {
                    asked.lose("thought_signature");
                }
            }
            Part::Text { text, .. } if text.is_empty() => (),
            Part::Native { kind, .. } => asked.lose(&kind),
            other => said.push(other),
        }
    }
    if said.is_empty() && calls.is_empty() {
        asked.lose_some("thought_signature", seal.as_ref());
        asked.lose_some("thinking", (!thoughts.is_empty() || !details.is_empty()).then_some(&()));
        return Ok(None);
    }
    let content = if said.is_empty() { Value::Null } else { content(said, path, asked)? };
    let mut message = json!({"role": "assistant", "content": content});
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.into();
    }
    if !details.is_empty() {
        message["reasoning_details"] = details.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    if let Some(signature) = seal {
        message["extra_content"] = json!({"google": {"thought_signature": signature}});
    }
    Ok(Some(message))
}

/// One string where all is text: not everybody takes parts.
fn content(parts: Vec<Part>, path: &str, asked: &mut Asked) -> Result<Value, Refusal> {
    if parts.iter().any(|part| matches!(part, Part::Text { citations: Some(_), .. })) {
        asked.lose("citations");
    }
    if parts.iter().all(|part| matches!(part, Part::Text { .. })) {
        if parts.iter().any(|part| matches!(part, Part::Text { cache: Some(_), .. })) {
            asked.lose("cache_control");
        }
        return Ok(joined(parts).into());
    }
    parts.into_iter().map(|one| part(one, path, asked)).collect()
}

fn part(part: Part, path: &str, asked: &mut Asked) -> Result<Value, Refusal> {
    let refused = |what: &str| Refusal::new(path, format!("this provider does not take {what}"));
    match part {
        Part::Text { text, cache, .. } => {
            hint(cache.as_ref(), asked);
            Ok(json!({"type": "text", "text": text}))
        }
        Part::Image { source, detail, cache } => {
            hint(cache.as_ref(), asked);
            let mut image = json!({"url": source.url().ok_or_else(|| refused("images by id"))?});
            if let Some(detail) = detail {
                image["detail"] = detail;
            }
            Ok(json!({"type": "image_url", "image_url": image}))
        }
        Part::Document { source, name, cache, more } => {
            hint(cache.as_ref(), asked);
            asked.lose_rest("document", &more);
            if name.is_some() && !matches!(source, Source::Data { .. }) {
                asked.lose("filename");
            }
            document(source, name).ok_or_else(|| refused("documents by URL"))
        }
        Part::Audio { data, format } => {
            Ok(json!({"type": "input_audio", "input_audio": {"data": data, "format": format}}))
        }
        _ => Err(refused("this part of a message here")),
    }
}

fn document(source: Source, name: Option<String>) -> Option<Value> {
    let file = match source {
        Source::Text(text) => return Some(json!({"type": "text", "text": text})),
        Source::File(id) => json!({"file_id": id}),
        Source::Url { .. } => return None,
        Source::Data { .. } => {
            json!({"filename": name.unwrap_or_else(|| "document.pdf".into()), "file_data": source.url()})
        }
    };
    Some(json!({"type": "file", "file": file}))
}

/// Caches of these providers need no hint, and take none.
fn hint(cache: Option<&Value>, asked: &mut Asked) {
    if cache.is_some() {
        asked.lose("cache_control");
    }
}

fn tool(tool: Tool, at: usize, asked: &mut Asked) -> Result<Value, Refusal> {
    match tool {
        Tool::Function { name, description, schema, strict, cache, more } => {
            hint(cache.as_ref(), asked);
            asked.lose_rest("tools", &more);
            let mut function = json!({"name": name});
            let schema = Some(schema).filter(|schema| !schema.is_null());
            for (key, value) in
                [("description", description.map(Value::from)), ("parameters", schema), ("strict", strict)]
            {
                if let Some(value) = value {
                    function[key] = value;
                }
            }
            Ok(json!({"type": "function", "function": function}))
        }
        Tool::Native { kind, .. } => {
            Err(Refusal::new(format!("tools[{at}].type"), format!("this provider has nothing like `{kind}`")))
        }
    }
}
