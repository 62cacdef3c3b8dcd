//! Chooses the steps that answer a request. Caches each plan for the next identical request.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::behaviour::{Behaviour, percent_decode};
use crate::faults::Fault;
use crate::ledger::join_headers;
use crate::request::{RequestFlags, decode_head, find_string_field, is_field_true, unescape_json};
use crate::response::{apply_timing, build_contents, build_generated, build_json, build_stream};
use crate::shapes::anthropic::{self, Messages};
use crate::shapes::bedrock::{self, Converse, InvokeModel};
use crate::shapes::cohere;
use crate::shapes::gemini::{self, GenerateContent};
use crate::shapes::objects::{self, ResponseContents, RouteQuery};
use crate::shapes::openai::{self, Completion, OpenAiChat};
use crate::shapes::responses::Responses;
use crate::shapes::{ProviderFamily, ResponseContext, ResponseShape, complete_text};
use crate::steps::Step;

const MAX_CACHED_PLANS: usize = 256;
const MAX_CACHED_PLAN_BYTES: usize = 256 * 1024;

/// Steps that answer one request, and the fault that they contain.
pub struct ResponsePlan {
    pub steps: Vec<Step>,
    pub fault: Option<Fault>,
}

/// Request whose parts are slices of the received bytes.
#[derive(Clone, Copy)]
pub struct RawRequest<'a> {
    pub method: &'a [u8],
    pub target: &'a [u8],
    pub head: &'a [u8],
    pub body: &'a [u8],
    pub flags: RequestFlags,
}

impl RawRequest<'_> {
    /// Returns the raw bytes of the model name, from the path or the body.
    pub fn raw_model_name(&self) -> &[u8] {
        self.model_and_action().map_or_else(
            || find_string_field(self.body, "\"model\"").unwrap_or_default(),
            |(model, _)| model.as_bytes(),
        )
    }

    /// Returns the model and the action that the path names (Gemini and Bedrock), or `None` for other paths.
    fn model_and_action(&self) -> Option<(&str, &str)> {
        let path = self.path();
        let gemini =
            || path.split_once("/models/")?.1.rsplit_once(':').filter(|(_, verb)| GEMINI_ACTIONS.contains(verb));
        let model_and_action = path.strip_prefix("/model/").and_then(|rest| rest.split_once('/')).or_else(gemini);
        model_and_action.filter(|_| self.method == b"POST")
    }

    /// Returns the model name with its escapes decoded.
    fn model_name(&self, raw: &[u8]) -> String {
        match self.model_and_action() {
            Some((model, _)) => percent_decode(model).into_owned(),
            None => unescape_json(raw),
        }
    }

    fn path(&self) -> &str {
        let end = memchr::memchr(b'?', self.target).unwrap_or(self.target.len());
        std::str::from_utf8(&self.target[..end]).unwrap_or_default()
    }

    fn response_shape(&self) -> Option<&'static dyn ResponseShape> {
        if self.method != b"POST" {
            return None;
        }
        match self.path() {
            "/v1/chat/completions" => Some(&OpenAiChat),
            "/v1/completions" => Some(&Completion),
            "/v1/messages" => Some(&Messages),
            "/v1/responses" => Some(&Responses),
            "/v2/chat" => Some(&cohere::CohereChat),
            _ => match self.model_and_action()?.1 {
                "generateContent" | "streamGenerateContent" => Some(&GenerateContent),
                "converse" | "converse-stream" => Some(&Converse),
                "invoke" | "invoke-with-response-stream" => Some(&InvokeModel),
                _ => None,
            },
        }
    }
}

/// Actions on a model that Gemini's paths can name.
const GEMINI_ACTIONS: [&str; 5] =
    ["generateContent", "streamGenerateContent", "embedContent", "batchEmbedContents", "countTokens"];

#[derive(Default)]
pub struct PlanCache {
    cached_plans: RefCell<HashMap<Vec<u8>, Rc<ResponsePlan>>>,
    /// Number of requests per model, counted only for models with `times=`.
    request_counts: RefCell<HashMap<Vec<u8>, u32>>,
    key_buffer: RefCell<Vec<u8>>,
}

impl PlanCache {
    pub fn get_or_build(&self, request: RawRequest<'_>, raw_model: &[u8]) -> Rc<ResponsePlan> {
        let Some(shape) = request.response_shape() else {
            return Rc::new(plan_object_response(
                request,
                &request.model_name(raw_model),
                self.count_request(raw_model),
            ));
        };
        let mut marks = request.flags;
        let streams = request.model_and_action().is_some_and(|(_, verb)| verb.contains("stream"));
        marks.set(RequestFlags::STREAM, streams || is_field_true(request.body, "\"stream\""));
        marks.set(RequestFlags::HAS_TOOL_RESULT, has_tool_result(request.body));
        if let Some(steps) = reject_invalid_request(shape, request, marks) {
            return Rc::new(ResponsePlan { steps, fault: None });
        }
        marks.set(
            RequestFlags::INCLUDE_USAGE,
            marks.has(RequestFlags::STREAM) && is_field_true(request.body, "\"include_usage\""),
        );
        if is_uncacheable(raw_model) {
            let turn = self.count_request(raw_model);
            return Rc::new(plan_text_response(shape, request, &request.model_name(raw_model), marks, turn));
        }
        let mut key = self.key_buffer.borrow_mut();
        write_cache_key(&mut key, request, raw_model, marks);
        if let Some(plan) = self.cached_plans.borrow().get(key.as_slice()) {
            return Rc::clone(plan);
        }
        let plan = Rc::new(plan_text_response(shape, request, &request.model_name(raw_model), marks, 0));
        self.insert(&key, &plan);
        plan
    }

    /// Counts this request and returns how many requests for this model came before; always 0 without `times=`.
    fn count_request(&self, raw_model: &[u8]) -> u32 {
        if memchr::memmem::find(raw_model, b"times=").is_none() {
            return 0;
        }
        let mut counts = self.request_counts.borrow_mut();
        if counts.len() >= MAX_CACHED_PLANS {
            counts.clear();
        }
        let count = counts.entry(raw_model.to_vec()).or_default();
        *count += 1;
        *count - 1
    }

    fn insert(&self, key: &[u8], plan: &Rc<ResponsePlan>) {
        if plan.steps.iter().map(Step::prepared_bytes).sum::<usize>() <= MAX_CACHED_PLAN_BYTES {
            let mut plans = self.cached_plans.borrow_mut();
            if plans.len() >= MAX_CACHED_PLANS {
                plans.clear();
            }
            plans.insert(key.to_vec(), Rc::clone(plan));
        }
    }
}

/// Returns true if the request contains a tool result, in any provider's format.
fn has_tool_result(body: &[u8]) -> bool {
    const TOOL_RESULT_MARKERS: [&str; 5] =
        ["\"tool_call_id\"", "\"tool_result\"", "\"functionResponse\"", "\"toolResult\"", "\"function_call_output\""];
    TOOL_RESULT_MARKERS.iter().any(|marker| memchr::memmem::find(body, marker.as_bytes()).is_some())
}

/// Returns the error response to an invalid request, for providers that validate requests; `None` if the request is
/// valid.
fn reject_invalid_request(
    shape: &dyn ResponseShape,
    request: RawRequest<'_>,
    marks: RequestFlags,
) -> Option<Vec<Step>> {
    if request.model_and_action().is_none() && shape.family() != ProviderFamily::Cohere {
        return None;
    }
    let problem = match serde_json::from_slice(request.body) {
        Ok(body) => shape.validation_error(&body)?,
        Err(error) => error.to_string(),
    };
    let family = shape.family();
    Some(build_json(400, family, &family.error_body(400, &problem), &Behaviour::default(), marks))
}

/// Returns true if the response depends on more than the cache key contains.
fn is_uncacheable(raw_model: &[u8]) -> bool {
    [&b"times="[..], b"prefix=", b"gzip"].iter().any(|key| memchr::memmem::find(raw_model, key).is_some())
}

fn write_cache_key(key: &mut Vec<u8>, request: RawRequest<'_>, raw_model: &[u8], marks: RequestFlags) {
    key.clear();
    key.extend_from_slice(&marks.0.to_le_bytes());
    key.extend_from_slice(request.target);
    key.push(0);
    key.extend_from_slice(raw_model);
    if marks.has(RequestFlags::MOCK_HEADERS) {
        for (name, value) in decode_head(request.head).2.iter().filter(|(name, _)| name.starts_with("x-mock-")) {
            for part in [name, value] {
                key.push(0);
                key.extend_from_slice(part.as_bytes());
            }
        }
    }
}

fn parse_behaviour(request: RawRequest<'_>, model: &str) -> Result<Behaviour, String> {
    let mut behaviour = Behaviour::default();
    behaviour.apply_model(model)?;
    behaviour.apply_query(&String::from_utf8_lossy(request.target))?;
    if request.flags.has(RequestFlags::MOCK_HEADERS) {
        behaviour.apply_headers(&decode_head(request.head).2)?;
    }
    Ok(behaviour)
}

fn plan_text_response(
    shape: &dyn ResponseShape,
    request: RawRequest<'_>,
    model: &str,
    marks: RequestFlags,
    turn: u32,
) -> ResponsePlan {
    build_plan(request, model, turn, |behaviour, status| {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let include_usage = marks.has(RequestFlags::INCLUDE_USAGE);
        let answers_call = marks.has(RequestFlags::HAS_TOOL_RESULT);
        let context = ResponseContext {
            model: strip_mock_options(model),
            include_usage,
            behaviour,
            created,
            has_tool_result: answers_call,
        };
        let response = if marks.has(RequestFlags::STREAM) { build_stream } else { build_generated };
        response(shape, &context, status, marks)
    })
}

fn plan_object_response(request: RawRequest<'_>, model: &str, turn: u32) -> ResponsePlan {
    build_plan(request, model, turn, |behaviour, status| {
        build_contents(status, build_object_response(request, strip_mock_options(model)), behaviour, request.flags)
    })
}

/// Builds the plan of a request. An invalid mock option, a fault that replaces the response and a requested error
/// status take precedence over `response`.
fn build_plan(
    request: RawRequest<'_>,
    model: &str,
    turn: u32,
    response: impl FnOnce(&Behaviour, u32) -> Vec<Step>,
) -> ResponsePlan {
    let family = ProviderFamily::from_path(request.path());
    let mut behaviour = match parse_behaviour(request, model) {
        Ok(behaviour) => behaviour,
        Err(problem) => {
            let steps =
                build_json(400, family, &family.error_body(400, &problem), &Behaviour::default(), request.flags);
            return ResponsePlan { steps, fault: None };
        }
    };
    behaviour.recover_after(turn);
    if behaviour.gzip && accepts_gzip(request.head) {
        behaviour.fault = Some(Fault::Gzip);
    }
    if let Some(is_taken) = behaviour.prefix
        && let Some(beginning) = find_prefill(request.body, &complete_text(&behaviour))
    {
        if !is_taken {
            let error = family.error_body(400, PREFILL_UNSUPPORTED_MESSAGE);
            return ResponsePlan { steps: build_json(400, family, &error, &behaviour, request.flags), fault: None };
        }
        if let Some(rest) = complete_text(&behaviour).strip_prefix(&*beginning) {
            behaviour.continue_with(rest);
        }
    }
    let status = match behaviour.fault {
        Some(Fault::TooManyRequests) => 429,
        Some(Fault::RedirectMetadata) => 302,
        _ => behaviour.status.unwrap_or(200),
    };
    let steps = match behaviour.fault.and_then(|fault| fault.replacement_steps(&behaviour)) {
        Some(steps) => apply_timing(steps, &behaviour),
        None if (200..400).contains(&status) && status != 302 => response(&behaviour, status),
        None => build_json(status, family, &error_body(status, family, &behaviour), &behaviour, request.flags),
    };
    ResponsePlan { steps, fault: behaviour.fault }
}

/// Returns true if the client accepts gzip.
fn accepts_gzip(head: &[u8]) -> bool {
    decode_head(head).2.iter().any(|(name, value)| name == "accept-encoding" && value.contains("gzip"))
}

const PREFILL_UNSUPPORTED_MESSAGE: &str =
    "This model does not support assistant message prefill. The conversation must end with a user message.";

/// Returns the beginning of the response that the request already contains: an assistant prefill, or the end of a
/// prompt.
fn find_prefill(body: &[u8], text: &str) -> Option<String> {
    let request: Value = serde_json::from_slice(body).ok()?;
    if let Some(prompt) = request["prompt"].as_str() {
        let mut beginnings = (1..=text.len()).rev().filter_map(|end| text.get(..end));
        return beginnings.find(|prefix| prompt.ends_with(prefix)).map(str::to_owned);
    }
    let last = [&request["messages"], &request["input"]].into_iter().find_map(Value::as_array)?.last()?;
    let content = &last["content"];
    let text = content.as_str().or_else(|| content.as_array()?.last()?["text"].as_str());
    text.filter(|_| last["role"] == "assistant").map(str::to_owned)
}

fn error_body(status: u32, family: ProviderFamily, behaviour: &Behaviour) -> Value {
    let mut error = family.error_body(status, error_message(status));
    if let Some(code) = &behaviour.code {
        error["error"]["code"] = json!(code);
    }
    error
}

fn error_message(status: u32) -> &'static str {
    match status {
        401 => "Incorrect API key provided.",
        429 => "Rate limit reached for requests.",
        _ => "The mock provider was asked to fail.",
    }
}

fn strip_mock_options(model: &str) -> &str {
    model.split_once('?').map_or(model, |(name, _)| name)
}

fn build_object_response(request: RawRequest<'_>, model: &str) -> ResponseContents {
    let anthropic = request.flags.has(RequestFlags::ANTHROPIC_VERSION);
    let method = std::str::from_utf8(request.method).unwrap_or_default();
    let query = RouteQuery {
        method,
        path: request.path(),
        model,
        is_anthropic: anthropic,
        is_stream: is_stream_request(request.body),
    };
    if let Some(mut response) = objects::find_response(query) {
        if response.content_type == "application/json" && response.body.pop() == Some(b'}') {
            // Echoes the request, so that a test can compare it.
            response.body.extend_from_slice(echo_request(request).to_string().replacen('{', ",", 1).as_bytes());
        }
        return response;
    }
    let (family, body) = generate_object_body(request, model);
    ResponseContents {
        family,
        content_type: "application/json",
        extra_headers: "",
        body: body.to_string().into_bytes(),
    }
}

// A multipart form has the value on a line of its own, below the name. The speech API uses `stream_format` instead of
// `stream`.
fn is_stream_request(body: &[u8]) -> bool {
    is_field_true(body, "\"stream\"")
        || find_string_field(body, "\"stream_format\"") == Some(b"sse")
        || memchr::memmem::find(body, b"name=\"stream\"\r\n\r\ntrue\r\n").is_some()
}

/// Returns the response to an embedding or token-count request whose path names the model (Gemini, Bedrock).
fn embedding_or_token_count(raw_request: RawRequest<'_>) -> Option<(ProviderFamily, Value)> {
    let request = serde_json::from_slice(raw_request.body).unwrap_or_default();
    match raw_request.model_and_action()?.1 {
        "embedContent" => Some((ProviderFamily::Gemini, gemini::embedding_response(&request))),
        "batchEmbedContents" => Some((ProviderFamily::Gemini, gemini::batch_embedding_response(&request))),
        "countTokens" => Some((ProviderFamily::Gemini, gemini::token_count_response())),
        "count-tokens" => Some((ProviderFamily::Bedrock, bedrock::token_count_response())),
        _ => None,
    }
}

/// Returns the response to a Cohere embed or rerank request.
fn cohere_embed_or_rerank(request: RawRequest<'_>) -> Option<(ProviderFamily, Value)> {
    let response = match (request.method, request.path()) {
        (b"POST", "/v2/embed") => cohere::embedding_response,
        (b"POST", "/v2/rerank") => cohere::rerank_response,
        _ => return None,
    };
    Some((ProviderFamily::Cohere, response(&serde_json::from_slice(request.body).unwrap_or_default())))
}

fn generate_object_body(request: RawRequest<'_>, model: &str) -> (ProviderFamily, Value) {
    if let Some(plan) = embedding_or_token_count(request).or_else(|| cohere_embed_or_rerank(request)) {
        return plan;
    }
    let anthropic = request.flags.has(RequestFlags::ANTHROPIC_VERSION);
    let body = match (request.method, request.path()) {
        (b"POST", "/v1/embeddings") => openai::embedding_response(model, request.body),
        (b"POST", "/v1/moderations") => openai::moderation_response(model, request.body),
        (b"GET", "/v1/models") if anthropic => return (ProviderFamily::Anthropic, anthropic::model_list()),
        (b"GET", "/v1/models") => openai::model_list(),
        (b"GET", path) if path.starts_with("/v1/models/") => {
            let id = &path["/v1/models/".len()..];
            if anthropic {
                return (ProviderFamily::Anthropic, anthropic::model_object(id));
            }
            openai::model_object(id)
        }
        _ => echo_request(request),
    };
    (ProviderFamily::OpenAi, body)
}

fn echo_request(request: RawRequest<'_>) -> Value {
    let target = String::from_utf8_lossy(request.target);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let sha = Sha256::digest(request.body).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    json!({
        "method": String::from_utf8_lossy(request.method), "path": path, "query": query,
        "headers": join_headers(&decode_head(request.head).2),
        "body_bytes": request.body.len(), "body_sha": sha,
    })
}
