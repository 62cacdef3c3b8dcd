//! Which steps answer which request; what was prepared for one request is kept for the next that asks for the same.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::answer::{contents, finish, generated, stream, whole};
use crate::behaviour::{Behaviour, decode};
use crate::faults::Fault;
use crate::ledger::join_headers;
use crate::request::{Marks, describe, is_true, string_field, unescape};
use crate::shapes::anthropic::{self, Messages};
use crate::shapes::bedrock::{self, Converse, Invoke};
use crate::shapes::cohere;
use crate::shapes::gemini::{self, Content};
use crate::shapes::objects::{self, Contents, Wanted};
use crate::shapes::openai::{self, Chat, Completion};
use crate::shapes::responses::Responses;
use crate::shapes::{Ask, Family, Shape, text};
use crate::steps::Step;

const KEPT_PLANS: usize = 256;
const KEPT_BYTES: usize = 256 * 1024;

/// How to answer one request.
pub struct Plan {
    pub steps: Vec<Step>,
    pub fault: Option<Fault>,
}

/// A request, still in the bytes it came in.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub method: &'a [u8],
    pub target: &'a [u8],
    pub head: &'a [u8],
    pub body: &'a [u8],
    pub marks: Marks,
}

impl Question<'_> {
    /// The raw text of the body's model.
    pub fn model(&self) -> &[u8] {
        self.named()
            .map_or_else(|| string_field(self.body, "\"model\"").unwrap_or_default(), |(model, _)| model.as_bytes())
    }

    /// What the path names and is to be done with it, where it does: Gemini's way, and Bedrock's.
    fn named(&self) -> Option<(&str, &str)> {
        let path = self.path();
        let gemini = || path.split_once("/models/")?.1.rsplit_once(':').filter(|(_, verb)| GEMINI.contains(verb));
        let found = path.strip_prefix("/model/").and_then(|rest| rest.split_once('/')).or_else(gemini);
        found.filter(|_| self.method == b"POST")
    }

    /// The model's own name.
    fn model_name(&self, raw: &[u8]) -> String {
        match self.named() {
            Some((model, _)) => decode(model).into_owned(),
            None => unescape(raw),
        }
    }

    fn path(&self) -> &str {
        let end = memchr::memchr(b'?', self.target).unwrap_or(self.target.len());
        std::str::from_utf8(&self.target[..end]).unwrap_or_default()
    }

    fn shape(&self) -> Option<&'static dyn Shape> {
        if self.method != b"POST" {
            return None;
        }
        match self.path() {
            "/v1/chat/completions" => Some(&Chat),
            "/v1/completions" => Some(&Completion),
            "/v1/messages" => Some(&Messages),
            "/v1/responses" => Some(&Responses),
            "/v2/chat" => Some(&cohere::Chat),
            _ => match self.named()?.1 {
                "generateContent" | "streamGenerateContent" => Some(&Content),
                "converse" | "converse-stream" => Some(&Converse),
                "invoke" | "invoke-with-response-stream" => Some(&Invoke),
                _ => None,
            },
        }
    }
}

/// What Gemini's paths say is to be done with a model.
const GEMINI: [&str; 5] =
    ["generateContent", "streamGenerateContent", "embedContent", "batchEmbedContents", "countTokens"];

#[derive(Default)]
pub struct Plans {
    kept: RefCell<HashMap<Vec<u8>, Rc<Plan>>>,
    /// How often each model was asked that counts.
    asked: RefCell<HashMap<Vec<u8>, u32>>,
    key: RefCell<Vec<u8>>,
}

impl Plans {
    pub fn find(&self, question: Question<'_>, raw_model: &[u8]) -> Rc<Plan> {
        let Some(shape) = question.shape() else {
            return Rc::new(plan_other(question, &question.model_name(raw_model), self.turn(raw_model)));
        };
        let mut marks = question.marks;
        let streams = question.named().is_some_and(|(_, verb)| verb.contains("stream"));
        marks.set(Marks::STREAM, streams || is_true(question.body, "\"stream\""));
        marks.set(Marks::ANSWERS_CALL, answers_call(question.body));
        if let Some(steps) = refused(shape, question, marks) {
            return Rc::new(Plan { steps, fault: None });
        }
        marks.set(Marks::INCLUDE_USAGE, marks.has(Marks::STREAM) && is_true(question.body, "\"include_usage\""));
        if depends_on_more(raw_model) {
            let turn = self.turn(raw_model);
            return Rc::new(plan_generated(shape, question, &question.model_name(raw_model), (marks, turn)));
        }
        let mut key = self.key.borrow_mut();
        write_key(&mut key, question, raw_model, marks);
        if let Some(plan) = self.kept.borrow().get(key.as_slice()) {
            return Rc::clone(plan);
        }
        let plan = Rc::new(plan_generated(shape, question, &question.model_name(raw_model), (marks, 0)));
        self.keep(&key, &plan);
        plan
    }

    /// How many requests for this model came before, where that matters.
    fn turn(&self, raw_model: &[u8]) -> u32 {
        if memchr::memmem::find(raw_model, b"times=").is_none() {
            return 0;
        }
        let mut asked = self.asked.borrow_mut();
        if asked.len() >= KEPT_PLANS {
            asked.clear();
        }
        let count = asked.entry(raw_model.to_vec()).or_default();
        *count += 1;
        *count - 1
    }

    fn keep(&self, key: &[u8], plan: &Rc<Plan>) {
        if plan.steps.iter().map(Step::size).sum::<usize>() <= KEPT_BYTES {
            let mut kept = self.kept.borrow_mut();
            if kept.len() >= KEPT_PLANS {
                kept.clear();
            }
            kept.insert(key.to_vec(), Rc::clone(plan));
        }
    }
}

/// Whether a request brings what a tool gave back, in any of the providers' words for it.
fn answers_call(body: &[u8]) -> bool {
    const WORDS: [&str; 5] =
        ["\"tool_call_id\"", "\"tool_result\"", "\"functionResponse\"", "\"toolResult\"", "\"function_call_output\""];
    WORDS.iter().any(|word| memchr::memmem::find(body, word.as_bytes()).is_some())
}

/// The answer to a request that is none, from those who look.
fn refused(shape: &dyn Shape, question: Question<'_>, marks: Marks) -> Option<Vec<Step>> {
    if question.named().is_none() && shape.family() != Family::Cohere {
        return None;
    }
    let problem = match serde_json::from_slice(question.body) {
        Ok(body) => shape.fault(&body)?,
        Err(error) => error.to_string(),
    };
    let family = shape.family();
    Some(whole(400, family, &family.error(400, &problem), &Behaviour::default(), marks))
}

/// Whether the answer depends on more than what the plans are kept by.
fn depends_on_more(raw_model: &[u8]) -> bool {
    [&b"times="[..], b"prefix=", b"gzip"].iter().any(|key| memchr::memmem::find(raw_model, key).is_some())
}

fn write_key(key: &mut Vec<u8>, question: Question<'_>, raw_model: &[u8], marks: Marks) {
    key.clear();
    key.extend_from_slice(&marks.0.to_le_bytes());
    key.extend_from_slice(question.target);
    key.push(0);
    key.extend_from_slice(raw_model);
    if marks.has(Marks::MOCK_HEADERS) {
        for (name, value) in describe(question.head).2.iter().filter(|(name, _)| name.starts_with("x-mock-")) {
            for part in [name, value] {
                key.push(0);
                key.extend_from_slice(part.as_bytes());
            }
        }
    }
}

fn behaviour(question: Question<'_>, model: &str) -> Result<Behaviour, String> {
    let mut behaviour = Behaviour::default();
    behaviour.read_model(model)?;
    behaviour.read_target(&String::from_utf8_lossy(question.target))?;
    if question.marks.has(Marks::MOCK_HEADERS) {
        behaviour.read_headers(&describe(question.head).2)?;
    }
    Ok(behaviour)
}

fn plan_generated(shape: &dyn Shape, question: Question<'_>, model: &str, (marks, turn): (Marks, u32)) -> Plan {
    plan(question, model, turn, |behaviour, status| {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let include_usage = marks.has(Marks::INCLUDE_USAGE);
        let answers_call = marks.has(Marks::ANSWERS_CALL);
        let ask = Ask { model: before_keys(model), include_usage, behaviour, created, answers_call };
        let answer = if marks.has(Marks::STREAM) { stream } else { generated };
        answer(shape, &ask, status, marks)
    })
}

fn plan_other(question: Question<'_>, model: &str, turn: u32) -> Plan {
    plan(question, model, turn, |behaviour, status| {
        contents(status, other_answer(question, before_keys(model)), behaviour, question.marks)
    })
}

/// What comes before every answer: a mistake in the keys, a fault in the place of an answer, an error as asked for.
fn plan(question: Question<'_>, model: &str, turn: u32, answer: impl FnOnce(&Behaviour, u32) -> Vec<Step>) -> Plan {
    let family = Family::of(question.path());
    let mut behaviour = match behaviour(question, model) {
        Ok(behaviour) => behaviour,
        Err(problem) => {
            let steps = whole(400, family, &family.error(400, &problem), &Behaviour::default(), question.marks);
            return Plan { steps, fault: None };
        }
    };
    behaviour.recover_after(turn);
    if behaviour.gzip && takes_gzip(question.head) {
        behaviour.fault = Some(Fault::Gzip);
    }
    if let Some(is_taken) = behaviour.prefix
        && let Some(beginning) = beginning(question.body, &text(&behaviour))
    {
        if !is_taken {
            let error = family.error(400, NO_PREFIX);
            return Plan { steps: whole(400, family, &error, &behaviour, question.marks), fault: None };
        }
        if let Some(rest) = text(&behaviour).strip_prefix(&*beginning) {
            behaviour.go_on_with(rest);
        }
    }
    let status = match behaviour.fault {
        Some(Fault::TooManyRequests) => 429,
        Some(Fault::RedirectMetadata) => 302,
        _ => behaviour.status.unwrap_or(200),
    };
    let steps = match behaviour.fault.and_then(|fault| fault.instead(&behaviour)) {
        Some(steps) => finish(steps, &behaviour),
        None if (200..400).contains(&status) && status != 302 => answer(&behaviour, status),
        None => whole(status, family, &error(status, family, &behaviour), &behaviour, question.marks),
    };
    Plan { steps, fault: behaviour.fault }
}

/// Whether who asks reads what is compressed.
fn takes_gzip(head: &[u8]) -> bool {
    describe(head).2.iter().any(|(name, value)| name == "accept-encoding" && value.contains("gzip"))
}

const NO_PREFIX: &str =
    "This model does not support assistant message prefill. The conversation must end with a user message.";

/// The beginning of an answer with which a conversation or a prompt ends.
fn beginning(body: &[u8], text: &str) -> Option<String> {
    let asked: Value = serde_json::from_slice(body).ok()?;
    if let Some(prompt) = asked["prompt"].as_str() {
        let mut beginnings = (1..=text.len()).rev().filter_map(|end| text.get(..end));
        return beginnings.find(|begun| prompt.ends_with(begun)).map(str::to_owned);
    }
    let last = [&asked["messages"], &asked["input"]].into_iter().find_map(Value::as_array)?.last()?;
    let content = &last["content"];
    let text = content.as_str().or_else(|| content.as_array()?.last()?["text"].as_str());
    text.filter(|_| last["role"] == "assistant").map(str::to_owned)
}

fn error(status: u32, family: Family, behaviour: &Behaviour) -> Value {
    let mut error = family.error(status, error_message(status));
    if let Some(code) = &behaviour.code {
        error["error"]["code"] = json!(code);
    }
    error
}

fn error_message(status: u32) -> &'static str {
    match status {
        401 => "Incorrect API key provided.",
        429 => "Rate limit reached for requests.",
        _ => "The pretend provider was asked to fail.",
    }
}

fn before_keys(model: &str) -> &str {
    model.split_once('?').map_or(model, |(name, _)| name)
}

fn other_answer(question: Question<'_>, model: &str) -> Contents {
    let anthropic = question.marks.has(Marks::ANTHROPIC);
    let method = std::str::from_utf8(question.method).unwrap_or_default();
    let wanted = Wanted { method, path: question.path(), model, anthropic, stream: streams(question.body) };
    if let Some(mut found) = objects::find(wanted) {
        if found.kind == "application/json" && found.body.pop() == Some(b'}') {
            // What was asked, for a test to compare.
            found.body.extend_from_slice(echo(question).to_string().replacen('{', ",", 1).as_bytes());
        }
        return found;
    }
    let (family, body) = generated_object(question, model);
    Contents { family, kind: "application/json", extra: "", body: body.to_string().into_bytes() }
}

// A form's field stands alone on a line; speech says its stream by another name.
fn streams(body: &[u8]) -> bool {
    is_true(body, "\"stream\"")
        || string_field(body, "\"stream_format\"") == Some(b"sse")
        || memchr::memmem::find(body, b"name=\"stream\"\r\n\r\ntrue\r\n").is_some()
}

/// What is asked of a model that the path names, and is no conversation.
fn named_object(question: Question<'_>) -> Option<(Family, Value)> {
    let asked = serde_json::from_slice(question.body).unwrap_or_default();
    match question.named()?.1 {
        "embedContent" => Some((Family::Gemini, gemini::embedding(&asked))),
        "batchEmbedContents" => Some((Family::Gemini, gemini::embeddings(&asked))),
        "countTokens" => Some((Family::Gemini, gemini::count())),
        "count-tokens" => Some((Family::Bedrock, bedrock::count())),
        _ => None,
    }
}

/// What is asked of Cohere, and is no conversation.
fn coheres(question: Question<'_>) -> Option<(Family, Value)> {
    let answer = match (question.method, question.path()) {
        (b"POST", "/v2/embed") => cohere::embeddings,
        (b"POST", "/v2/rerank") => cohere::rankings,
        _ => return None,
    };
    Some((Family::Cohere, answer(&serde_json::from_slice(question.body).unwrap_or_default())))
}

fn generated_object(question: Question<'_>, model: &str) -> (Family, Value) {
    if let Some(found) = named_object(question).or_else(|| coheres(question)) {
        return found;
    }
    let anthropic = question.marks.has(Marks::ANTHROPIC);
    let body = match (question.method, question.path()) {
        (b"POST", "/v1/embeddings") => openai::embeddings(model, question.body),
        (b"POST", "/v1/moderations") => openai::moderations(model, question.body),
        (b"GET", "/v1/models") if anthropic => return (Family::Anthropic, anthropic::models()),
        (b"GET", "/v1/models") => openai::models(),
        (b"GET", path) if path.starts_with("/v1/models/") => {
            let id = &path["/v1/models/".len()..];
            if anthropic {
                return (Family::Anthropic, anthropic::model(id));
            }
            openai::model(id)
        }
        _ => echo(question),
    };
    (Family::OpenAi, body)
}

fn echo(question: Question<'_>) -> Value {
    let target = String::from_utf8_lossy(question.target);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let sha = Sha256::digest(question.body).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    json!({
        "method": String::from_utf8_lossy(question.method), "path": path, "query": query,
        "headers": join_headers(&describe(question.head).2),
        "body_bytes": question.body.len(), "body_sha": sha,
    })
}
