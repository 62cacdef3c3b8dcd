//! Writes a streamed response: typed events, numbered, and at the end the whole of it.

use std::io::Write;

use serde_json::{Value, json};

use crate::chat::clients::openai_responses::response::{Item, Kind, Whole, all_are_told};
use crate::chat::{
    event::{Piece, Taker},
    response_context::Answering,
    response_writer::Teller,
};

#[derive(Debug)]
pub struct Stream {
    out: Vec<u8>,
    whole: Whole,
    sequence: u64,
    is_begun: bool,
    /// Items so far that were begun, and which of them are over.
    begun: usize,
    done: Vec<bool>,
    over: bool,
}

impl Stream {
    pub fn new(answering: Answering) -> Self {
        Self {
            out: Vec::new(),
            whole: Whole::new(answering),
            sequence: 0,
            is_begun: false,
            begun: 0,
            done: Vec::new(),
            over: false,
        }
    }

    fn event(&mut self, name: &str, fields: Value) {
        let mut data = json!({"type": name, "sequence_number": self.sequence});
        self.sequence += 1;
        if let (Some(data), Value::Object(fields)) = (data.as_object_mut(), fields) {
            data.extend(fields);
        }
        // A Vec takes every write.
        let _ = write!(self.out, "event: {name}\ndata: {data}\n\n");
    }

    fn begin(&mut self) {
        if std::mem::replace(&mut self.is_begun, true) {
            return;
        }
        let response = self.whole.response("in_progress");
        self.event("response.created", json!({"response": response}));
        self.event("response.in_progress", json!({"response": response}));
    }

    /// Tells of the item that was begun, if one was.
    fn follow(&mut self) {
        if self.whole.items.len() == self.begun {
            return;
        }
        self.begin();
        // Calls may be told side by side; nothing else is.
        for at in 0..self.begun {
            if self.whole.items[at].kind != Kind::Call {
                self.close(at);
            }
        }
        let at = self.begun;
        self.begun += 1;
        self.done.push(false);
        let item = &self.whole.items[at];
        let (kind, id) = (item.kind, item.id.clone());
        let mut shown = item.value("in_progress");
        match kind {
            Kind::Call => shown["arguments"] = "".into(),
            Kind::Reasoning => shown["summary"] = json!([]),
            Kind::Text | Kind::Refusal | Kind::Image => (),
        }
        self.event("response.output_item.added", json!({"output_index": at, "item": shown}));
        let part = match kind {
            Kind::Call | Kind::Image => return,
            // What is sealed as a whole has nothing to show.
            Kind::Reasoning if self.whole.items[at].text.is_empty() => return,
            Kind::Reasoning => json!({"type": "summary_text", "text": ""}),
            Kind::Refusal => json!({"type": "refusal", "refusal": ""}),
            Kind::Text => json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []}),
        };
        let (name, index) = part_of(kind);
        self.event(&format!("{name}.added"), json!({"item_id": id, "output_index": at, index: 0, "part": part}));
    }

    fn delta(&mut self, at: usize, text: &str) {
        let Some(item) = self.whole.items.get(at) else { return };
        let (kind, id) = (item.kind, item.id.clone());
        let mut fields = json!({"item_id": id, "output_index": at, "delta": text});
        if kind != Kind::Call {
            fields[part_of(kind).1] = 0.into();
        }
        if kind == Kind::Text {
            fields["logprobs"] = json!([]);
        }
        self.event(&format!("{}.delta", text_of(kind).0), fields);
    }

    /// Tells of where the texts are from that are not over, what is new of it: `told` is how many each had.
    fn annotate(&mut self, told: &[usize]) {
        for (at, told) in told.iter().enumerate().take(self.begun) {
            if self.done[at] {
                continue;
            }
            let Item { id, annotations, .. } = &self.whole.items[at];
            let event = |(index, annotation)| {
                json!({"item_id": id, "output_index": at, "content_index": 0, "annotation_index": index,
                    "annotation": annotation})
            };
            let events: Vec<_> = annotations.iter().enumerate().skip(*told).map(event).collect();
            for event in events {
                self.event("response.output_text.annotation.added", event);
            }
        }
    }

    /// Names in a comment what cannot be told: the head of the answer is long gone.
    fn lose(&mut self, piece: &Piece<'_>) {
        let Answering { strict: true, unsaid, .. } = &self.whole.answering else { return };
        let names = match piece {
            Piece::Aside { name, .. } | Piece::Native { kind: name, .. } => vec![*name],
            Piece::Cites(cites) => cites.unsaid(all_are_told(cites)).collect(),
            _ => return,
        };
        for name in names.into_iter().filter(|name| unsaid.add(name)) {
            let _ = write!(self.out, ": not translated: {name}\n\n");
        }
    }

    fn close(&mut self, at: usize) {
        if std::mem::replace(&mut self.done[at], true) {
            return;
        }
        let item = &self.whole.items[at];
        let (kind, id, part, shown) = (item.kind, item.id.clone(), item.part(), item.value("completed"));
        if kind == Kind::Image || kind == Kind::Reasoning && item.text.is_empty() {
            return self.event("response.output_item.done", json!({"output_index": at, "item": shown}));
        }
        let (name, key) = text_of(kind);
        let mut fields = json!({"item_id": id, "output_index": at, key: item.text});
        if kind != Kind::Call {
            fields[part_of(kind).1] = 0.into();
        }
        if kind == Kind::Text {
            fields["logprobs"] = json!([]);
        }
        self.event(&format!("{name}.done"), fields);
        if kind != Kind::Call {
            let (name, index) = part_of(kind);
            self.event(&format!("{name}.done"), json!({"item_id": id, "output_index": at, index: 0, "part": part}));
        }
        self.event("response.output_item.done", json!({"output_index": at, "item": shown}));
    }

    fn end(&mut self) {
        self.begin();
        self.over = true;
        let status = self.whole.status();
        if status != "failed" {
            (0..self.begun).for_each(|at| self.close(at));
        }
        let response = self.whole.response(status);
        self.event(&format!("response.{status}"), json!({"response": response}));
    }
}

/// What an item's text is called, and under which key it stands.
fn text_of(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Text => ("response.output_text", "text"),
        Kind::Refusal => ("response.refusal", "refusal"),
        Kind::Reasoning => ("response.reasoning_summary_text", "text"),
        Kind::Call => ("response.function_call_arguments", "arguments"),
        // There at once, and never told in parts.
        Kind::Image => ("response.image_generation_call", "result"),
    }
}

/// What the part around an item's text is called, and its number.
fn part_of(kind: Kind) -> (&'static str, &'static str) {
    if kind == Kind::Reasoning {
        return ("response.reasoning_summary_part", "summary_index");
    }
    ("response.content_part", "content_index")
}

impl Taker for Stream {
    fn take(&mut self, piece: Piece<'_>) {
        if self.over {
            return;
        }
        self.lose(&piece);
        if let Piece::Cites(_) = piece {
            let told: Vec<_> = self.whole.items.iter().map(|item| item.annotations.len()).collect();
            self.whole.take(piece);
            return self.annotate(&told);
        }
        self.whole.take(piece);
        match piece {
            Piece::Start { .. } => self.begin(),
            Piece::Text("")
            | Piece::TextBlock
            | Piece::Refusal("")
            | Piece::Thinking("")
            | Piece::Usage(_)
            | Piece::Finish { .. }
            | Piece::Aside { .. }
            | Piece::Cites(_)
            | Piece::Native { .. } => (),
            Piece::Text(text) | Piece::Refusal(text) | Piece::Thinking(text) => {
                self.follow();
                self.delta(self.begun - 1, text);
            }
            Piece::Call { .. } | Piece::Signature(_) | Piece::Redacted(_) | Piece::Seal(_) => self.follow(),
            Piece::Image { .. } => {
                self.follow();
                self.close(self.begun - 1);
            }
            Piece::Arguments { call, json } => {
                if let Some(at) = self.whole.call(call) {
                    self.delta(at, json);
                }
            }
            Piece::End | Piece::Failed { .. } => self.end(),
        }
    }
}

impl Teller for Stream {
    fn told(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}
