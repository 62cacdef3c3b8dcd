//! `OpenAI`'s chat completions, as everybody takes them who is compatible.

mod citations;
pub(crate) mod reasoning_details;
pub(crate) mod request;
pub(crate) mod response;

pub use crate::chat::providers::openai_chat::response::error;

use serde_json::{Value, json};

use super::{Broken, Found, Listener, Wire};
use crate::{
    chat::{
        event::Taker,
        request::{Asked, Refusal},
    },
    embeddings::request::{Texts, Vectors},
    model_list::{self, Listed},
};

pub struct Chat {
    /// What limits an answer's length is called so.
    limit: &'static str,
    /// What the model is called in the body, where its name says more.
    name: fn(&str) -> String,
    /// Where the scale of temperatures ends.
    hottest: i32,
    /// Usage is part of a stream where it was asked for.
    asks_usage: bool,
    thoughts: Thoughts,
    /// What it may be told that others may not.
    more: &'static [&'static str],
}

/// What goes back to a model of what it thought, with what it said then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thoughts {
    Stay,
    Words,
    /// In words of `OpenRouter`'s.
    Details,
}

/// As `OpenAI` has it today.
pub static OPENAI: Chat = Chat {
    limit: "max_completion_tokens",
    name: str::to_owned,
    hottest: 2,
    asks_usage: true,
    thoughts: Thoughts::Stay,
    more: &[],
};
/// As it was when others became compatible with it.
pub static COMPATIBLE: Chat = Chat { limit: "max_tokens", ..OPENAI };
/// Likewise, of those whose streams say what they cost in any case.
pub static UNASKED: Chat = Chat { asks_usage: false, ..COMPATIBLE };
/// Likewise, of those who refuse a turn with tools that comes back without its thoughts.
pub static THOUGHTFUL: Chat = Chat { thoughts: Thoughts::Words, ..COMPATIBLE };
/// Likewise, of who has signatures and sealed thoughts of all makers.
pub static DETAILED: Chat = Chat { thoughts: Thoughts::Details, ..COMPATIBLE };
/// Models of others at Vertex AI: `meta.llama` is `meta/llama` there, and who else publishes says it in the path.
pub static VERTEX: Chat = Chat { name: of_publisher, ..COMPATIBLE };
/// A deployment and an adapter on top of it: the body names the adapter.
pub static ADAPTED: Chat = Chat { name: of_adapter, hottest: 1, more: &["top_k", "best_of"], ..COMPATIBLE };

/// Of those who host models of many makers: `OpenAI`'s newest refuse the old name of the limit, and others know no other.
pub fn of_many(model: &str) -> &'static Chat {
    let name = model.rsplit('/').next().unwrap_or_default();
    let number =
        |rest: &str| rest.split(|one: char| !one.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
    let is_newest = match (name.strip_prefix("gpt-"), name.strip_prefix('o')) {
        (Some(rest), _) => number(rest).is_some_and(|version: u32| version >= 5),
        (None, Some(rest)) => number(rest).is_some(),
        (None, None) => false,
    };
    if is_newest { &OPENAI } else { &COMPATIBLE }
}

fn of_publisher(model: &str) -> String {
    match model.split_once('.') {
        Some(("meta", name)) => format!("meta/{name}"),
        Some(("mistralai" | "endpoints", name)) => name.to_owned(),
        _ => model.to_owned(),
    }
}

fn of_adapter(model: &str) -> String {
    model.split_once(':').map_or_else(String::new, |(_, adapter)| adapter.to_owned())
}

impl Wire for Chat {
    fn write(&self, asked: &mut Asked) -> Result<Vec<u8>, Refusal> {
        asked.model = (self.name)(&asked.model);
        asked.bound("temperature", &(0..=self.hottest));
        let mut written = request::write(asked, self.limit, self.thoughts)?;
        for key in self.more {
            asked.hand(key, &mut written, key);
        }
        if self.asks_usage && written.contains_key("stream") {
            written.insert("stream_options".into(), json!({"include_usage": true}));
        }
        Ok(Value::Object(written).to_string().into_bytes())
    }

    fn read(&self, answer: &[u8], taker: &mut dyn Taker) -> Result<(), Broken> {
        response::read(answer, self.thoughts, taker)
    }

    fn listener(&self) -> Box<dyn Listener> {
        Box::new(response::Hearing::new(self.thoughts))
    }

    fn embed(&self, texts: &mut Texts) -> Result<Vec<u8>, Refusal> {
        let inputs = std::mem::take(&mut texts.inputs);
        let mut out = json!({"model": (self.name)(&texts.model), "input": inputs});
        if let Some(dimensions) = texts.dimensions.take() {
            out["dimensions"] = dimensions;
        }
        Ok(out.to_string().into_bytes())
    }

    fn embedded(&self, answer: &Value) -> Option<Vectors> {
        let mut data: Vec<_> = answer["data"].as_array()?.iter().collect();
        data.sort_by_key(|one| one["index"].as_u64());
        let vectors = data.into_iter().map(|one| one["embedding"].clone()).collect();
        // Some say what it is in all, and nothing else.
        let usage = &answer["usage"];
        let tokens = usage["prompt_tokens"].as_u64().or_else(|| usage["total_tokens"].as_u64());
        Some(Vectors { vectors, tokens, ..Vectors::default() })
    }

    /// Of those whose lists are not `OpenAI`'s.
    fn listed(&self, answer: &Value) -> Option<Vec<Listed>> {
        model_list::bare(answer).or_else(|| model_list::found(answer, "/result", "name", ""))
    }

    fn error(&self, answer: &[u8]) -> Found {
        response::error(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_has_the_name_that_a_model_knows() {
        for (model, limit) in [
            ("gpt-5", "max_completion_tokens"),
            ("openai/gpt-5.1-mini", "max_completion_tokens"),
            ("o1", "max_completion_tokens"),
            ("openai/o4-mini", "max_completion_tokens"),
            ("gpt-4o", "max_tokens"),
            ("gpt-oss-120b", "max_tokens"),
            ("olmo-2", "max_tokens"),
            ("meta/Llama-3.3-70B-Instruct", "max_tokens"),
            ("", "max_tokens"),
        ] {
            assert_eq!(of_many(model).limit, limit, "{model}");
        }
    }
}
