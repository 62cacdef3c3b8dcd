//! Writes a whole response; a streamed one ends with the same.

use serde_json::{Value, json};

use crate::{
    api_format::ApiFormat,
    chat::{
        event::{Piece, Taker},
        finish_reason,
        request::Fields,
        response_context::{Answering, merge},
        response_writer::Teller,
    },
    citations::Cites,
    translation::errors,
    usage::Usage,
};

#[derive(Debug)]
pub struct Whole {
    pub(crate) answering: Answering,
    pub(crate) id: String,
    model: String,
    pub(crate) items: Vec<Item>,
    usage: Usage,
    finish: String,
    failed: Option<Value>,
    /// What stands beside the words.
    beside: Fields,
}

/// A thought that was sealed as a whole comes back as what it was.
pub(crate) const REDACTED: &str = "redacted:";
/// And so does what seals the text before it.
pub(crate) const SEAL: &str = "seal:";

/// One thing of the output.
#[derive(Debug)]
pub(crate) struct Item {
    pub kind: Kind,
    pub id: String,
    /// What is said, thought, or given as arguments.
    pub text: String,
    call_id: String,
    name: String,
    /// Of a call, or what seals a thought.
    signature: Option<String>,
    /// How many characters that is, of what is said.
    chars: usize,
    /// Where what is said is from.
    pub annotations: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Refusal,
    Reasoning,
    Call,
    Image,
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Text | Self::Refusal => "msg",
            Self::Reasoning => "rs",
            Self::Call => "fc",
            Self::Image => "ig",
        }
    }
}

impl Item {
    pub fn value(&self, status: &str) -> Value {
        let Self { id, text, .. } = self;
        match self.kind {
            Kind::Text | Kind::Refusal => {
                let content = if status == "in_progress" { json!([]) } else { json!([self.part()]) };
                json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
            }
            Kind::Reasoning => {
                let summary = if text.is_empty() { json!([]) } else { json!([self.part()]) };
                let mut item = json!({"type": "reasoning", "id": id, "summary": summary});
                if let Some(sealed) = &self.signature {
                    item["encrypted_content"] = sealed.clone().into();
                }
                item
            }
            // The kind of image is in the place of a name.
            Kind::Image => json!({"type": "image_generation_call", "id": id, "status": status,
                "result": if status == "in_progress" { Value::Null } else { text.as_str().into() },
                "output_format": self.name}),
            Kind::Call => {
                let mut item = json!({"type": "function_call", "id": id, "call_id": self.call_id, "name": self.name,
                    "arguments": text, "status": status});
                if let Some(signature) = &self.signature {
                    item["extra_content"] = json!({"google": {"thought_signature": signature}});
                }
                item
            }
        }
    }

    /// The part that its text is in.
    pub fn part(&self) -> Value {
        match self.kind {
            Kind::Refusal => json!({"type": "refusal", "refusal": self.text}),
            Kind::Reasoning => json!({"type": "summary_text", "text": self.text}),
            _ => json!({"type": "output_text", "text": self.text, "annotations": self.annotations, "logprobs": []}),
        }
    }
}

impl Whole {
    pub fn new(answering: Answering) -> Self {
        Self {
            id: format!("resp_{}", answering.mark),
            model: answering.model.clone(),
            answering,
            items: Vec::new(),
            usage: Usage::default(),
            finish: String::new(),
            failed: None,
            beside: Fields::new(),
        }
    }

    fn add(&mut self, kind: Kind) -> &mut Item {
        let id = format!("{}_{}_{}", kind.prefix(), self.id.trim_start_matches("resp_"), self.items.len());
        self.items.push(Item {
            kind,
            id,
            text: String::new(),
            chars: 0,
            call_id: String::new(),
            name: String::new(),
            signature: None,
            annotations: Vec::new(),
        });
        let last = self.items.len() - 1;
        &mut self.items[last]
    }

    /// The item that more of this kind goes to.
    fn open(&mut self, kind: Kind) -> &mut Item {
        let is_open = self.items.last().is_some_and(|last| last.kind == kind && last.signature.is_none());
        if !is_open || kind == Kind::Call {
            return self.add(kind);
        }
        let last = self.items.len() - 1;
        &mut self.items[last]
    }

    fn annotate(&mut self, cites: &Cites<'_>) {
        if !cites.cited.is_empty() && !self.items.iter().any(|item| item.kind == Kind::Text) {
            self.add(Kind::Text);
        }
        for one in cites.cited {
            let mut before = 0;
            let mut texts = self.items.iter_mut().filter(|item| item.kind == Kind::Text).peekable();
            while let Some(item) = texts.next() {
                // What ends nowhere is told with the last.
                if one.mark.end <= before + item.chars || texts.peek().is_none() {
                    item.annotations.extend(one.to_response(before));
                    break;
                }
                before += item.chars;
            }
        }
        if self.answering.strict {
            self.answering.lose_of(cites, all_are_told(cites));
        } else if let Some((_, name, json)) = cites.beside_annotations()
            && let Some(value) = self.answering.kept(name, json)
        {
            merge(&mut self.beside, name, value);
        }
    }

    /// Where the call of this number is among the items.
    pub(crate) fn call(&self, number: usize) -> Option<usize> {
        let mut calls = self.items.iter().enumerate().filter(|(_, item)| item.kind == Kind::Call);
        calls.nth(number).map(|(at, _)| at)
    }

    pub(crate) fn status(&self) -> &'static str {
        match finish_reason::to_openai(&self.finish) {
            _ if self.failed.is_some() => "failed",
            "length" | "content_filter" => "incomplete",
            _ => "completed",
        }
    }

    /// The response as it is, in this state.
    pub(crate) fn response(&self, status: &str) -> Value {
        let is_over = status != "in_progress";
        let why =
            if finish_reason::to_openai(&self.finish) == "length" { "max_output_tokens" } else { "content_filter" };
        let items = self.items.iter().filter(|_| is_over).map(|item| item.value("completed"));
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.answering.created, "status": status,
            "error": self.failed, "incomplete_details": null, "model": self.model, "provider": self.answering.provider,
            "output": items.collect::<Vec<_>>(), "instructions": null, "max_output_tokens": null, "metadata": {},
            "parallel_tool_calls": true, "previous_response_id": null, "reasoning": {"effort": null, "summary": null},
            "store": false, "temperature": null, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
            "tools": [], "top_p": null, "truncation": "disabled", "usage": null, "user": null,
        });
        if status == "incomplete" {
            response["incomplete_details"] = json!({"reason": why});
        }
        for (key, value) in self.answering.echo.iter().filter(|(_, value)| !value.is_null()) {
            response[key] = value.clone();
        }
        if is_over {
            response["usage"] = usage(&self.usage);
            for (name, value) in &self.beside {
                response[name] = value.clone();
            }
        }
        response
    }
}

/// Whether this dialect has words for each of them.
pub(crate) fn all_are_told(cites: &Cites<'_>) -> bool {
    cites.cited.iter().all(|one| one.to_response(0).is_some())
}

fn usage(of: &Usage) -> Value {
    let written = of.cache_write_5m.saturating_add(of.cache_write_1h);
    let mut usage = json!({
        "input_tokens": of.total_in(), "input_tokens_details": {"cached_tokens": of.total_cache_read()},
        "output_tokens": of.total_out(), "output_tokens_details": {"reasoning_tokens": of.reasoning},
        "total_tokens": of.total(),
    });
    if written > 0 {
        // In Anthropic's words, as chat completions have it too.
        usage["cache_creation_input_tokens"] = written.into();
        usage["cache_creation"] =
            json!({"ephemeral_5m_input_tokens": of.cache_write_5m, "ephemeral_1h_input_tokens": of.cache_write_1h});
    }
    usage
}

impl Taker for Whole {
    fn take(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Start { id, model } => {
                if !id.is_empty() {
                    self.id = format!("resp_{id}");
                }
                if !model.is_empty() {
                    model.clone_into(&mut self.model);
                }
            }
            Piece::Text("") | Piece::TextBlock | Piece::Refusal("") | Piece::Thinking("") | Piece::End => (),
            Piece::Text(text) => {
                let item = self.open(Kind::Text);
                item.chars += text.chars().count();
                item.text.push_str(text);
            }
            Piece::Refusal(text) => self.open(Kind::Refusal).text.push_str(text),
            Piece::Thinking(text) => self.open(Kind::Reasoning).text.push_str(text),
            Piece::Signature(signature) => self.open(Kind::Reasoning).signature = Some(signature.to_owned()),
            Piece::Redacted(data) => self.add(Kind::Reasoning).signature = Some(format!("{REDACTED}{data}")),
            Piece::Seal(signature) => self.add(Kind::Reasoning).signature = Some(format!("{SEAL}{signature}")),
            Piece::Image { mime, data } => {
                let item = self.add(Kind::Image);
                data.clone_into(&mut item.text);
                mime.trim_start_matches("image/").clone_into(&mut item.name);
            }
            Piece::Cites(cites) => self.annotate(&cites),
            Piece::Aside { name, json, .. } => {
                if let Some(value) = self.answering.kept(name, json) {
                    merge(&mut self.beside, name, value);
                }
            }
            Piece::Native { kind, json } => {
                if let Some(block) = self.answering.kept(kind, json) {
                    merge(&mut self.beside, "content_blocks", vec![block].into());
                }
            }
            Piece::Call { id, name, signature } => {
                let item = self.open(Kind::Call);
                (item.call_id, item.name) = (id.to_owned(), name.to_owned());
                item.signature = signature.map(ToOwned::to_owned);
            }
            Piece::Arguments { call, json } => {
                if let Some(at) = self.call(call) {
                    self.items[at].text.push_str(json);
                }
            }
            Piece::Usage(usage) => self.usage = usage,
            Piece::Finish { reason, .. } => reason.clone_into(&mut self.finish),
            Piece::Failed { kind, message, code } => {
                let code = match errors::on_the_way(ApiFormat::OpenAi, kind, message, code).status {
                    429 => "rate_limit_exceeded",
                    // As it has its own words, and not as Amazon has them.
                    _ => code.filter(|code| code.contains('_')).unwrap_or("server_error"),
                };
                self.failed = Some(json!({"code": code, "message": message}));
            }
        }
    }
}

impl Teller for Whole {
    fn told(&mut self) -> Vec<u8> {
        self.response(self.status()).to_string().into_bytes()
    }
}
