//! Bounds of the usage of a request. Soft budgets reserve the usual amount of requests. Hard budgets reserve the
//! maximum that the request can use, and reject a request without such a bound.

use penstock_llm::{
    api_format::ImageParams,
    operation::{BodyKind, Operation},
    usage::Usage,
};
use penstock_net::body::Body;

use super::body_bounds::BodyBounds;
use crate::{
    accounting::prices::{HighestUsage, RequestPricing, image_prices::ANY},
    limits::{
        limiter::Limiter,
        rule::{Enforcement, LimitRule, Measure},
    },
    request::body_fields::MAX_INLINE_PEEK_BYTES,
    resolve::target_resolver::ClientRequest,
};

/// Assumed number of tokens of a response, if earlier requests give no estimate and the request sets no lower limit.
const USUAL_OUTPUT_TOKENS: u64 = 1024;
/// A request without any estimate of its usage reserves at most a rate limit, divided by this number.
const GUESSED_FRACTION: u64 = 8;
/// Maximum number of tokens of a response if the request sets no limit.
pub const MAX_OUTPUT_TOKENS: u64 = 128_000;
/// Bytes of text for one token, on average.
const BYTES_PER_TOKEN: u64 = 4;
/// Maximum number of tokens of one image in a request.
const MAX_IMAGE_TOKENS: u64 = 50_000;
/// Maximum number of tokens of one generated image.
const MAX_GENERATED_IMAGE_TOKENS: u64 = 16_384;
/// Maximum number of tokens of the instructions that a provider adds to a request with tools.
const MAX_TOOL_PROMPT_TOKENS: u64 = 1024;
/// Maximum number of images that an image edit sends, and that it returns.
const MAX_EDITED_IMAGES: u64 = 16;
/// Maximum number of text tokens in the prompt of an image edit.
const MAX_EDIT_TEXT_TOKENS: u64 = 32_000;
/// Maximum number of tokens of speech for each byte of text, at the lowest speed.
const SPEECH_TOKENS_PER_BYTE: u64 = 16;
/// Minimum number of bytes of documents for which a provider bills one more query. A low estimate.
const MIN_BYTES_PER_BILLED_QUERY: u64 = 200;
/// Amount of a request that has no bound. No limit leaves so much.
pub const UNBOUNDED: u64 = u64::MAX;

/// Prices of an attempt.
pub struct AttemptPrices<'a> {
    pub pricing: RequestPricing,
    pub provider: &'a str,
    pub model: &'a str,
    /// Time for which the prices apply, in Unix seconds.
    pub at: u64,
}

impl AttemptPrices<'_> {
    /// Returns the cost of tokens at the usual rates, in nano-dollars.
    fn usual_cost(&self, input: u64, output: u64, images: Option<&ImageParams>) -> u64 {
        let usage = Usage { input, output, ..Usage::default() };
        let cost = match images {
            Some(images) => self.pricing.image_cost(self.provider, self.model, self.at, Some(&usage), images),
            None => self.pricing.cost(self.provider, self.model, self.at, &usage),
        };
        cost.map_or(0, |cost| cost.nanodollars)
    }

    /// Returns the highest cost of usage within these bounds, in nano-dollars. Usage without a price costs nothing.
    pub fn highest(&self, most: &HighestUsage<'_>) -> u64 {
        self.pricing.highest_cost(self.provider, self.model, self.at, most).unwrap_or(0)
    }
}

/// Upper bounds of a request's usage, as far as its body states them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageBounds {
    /// Number of bytes of text. Each token has at least one byte.
    pub input_bytes: u64,
    /// Maximum number of input tokens that `input_bytes` does not bound, such as those of images.
    pub extra_input: u64,
    /// Maximum number of tokens of all responses together. `None` if the request sets no limit.
    pub output_tokens: Option<u64>,
    /// Number of tokens of all responses together that their bound may not fall below. Some targets respect limits that
    /// the client's API format does not have.
    min_output_tokens: u64,
    /// Number of responses to all prompts.
    choices: u64,
    rankings: u64,
    images: Option<Box<ImageParams>>,
    /// Description of the part of the request whose usage has no bound, for the error message.
    pub unbounded: Option<String>,
    /// True if the request only reads, deletes or stores data at a provider.
    pub uses_nothing: bool,
}

impl UsageBounds {
    /// Reads the bounds of a request. Large bodies are parsed on a blocking thread, so that other requests do not wait.
    pub async fn from_request(client_request: &ClientRequest<'_>, body: &Body, is_socket: bool) -> Self {
        let operation = client_request.requested_operation();
        let length = match body {
            Body::Complete(bytes) => Some(bytes.len() as u64),
            Body::Streamed(_, length) => *length,
        };
        if is_socket || operation == Operation::Realtime {
            return Self::unbounded("a session over a WebSocket");
        }
        let coding = client_request.head.headers.get_str("content-encoding");
        if coding.is_some_and(|coding| !coding.eq_ignore_ascii_case("identity")) {
            return Self::unbounded("a compressed body");
        }
        match operation {
            _ if operation.is_embedding() => Self::of_json(body, operation, Some(0)).await,
            _ if operation.is_chat() => Self::of_json(body, operation, None).await,
            Operation::ImageGenerate => {
                let mut images = ImageParams::from_json(body.complete_bytes());
                let (bounds, parsed) = Self::parse(body, operation).await;
                images.count = images.count.max(parsed.responses());
                let output = images.count.max(1).saturating_mul(MAX_GENERATED_IMAGE_TOKENS);
                Self { images: Some(Box::new(images)), output_tokens: Some(output), ..bounds }
            }
            Operation::ImageEdit => {
                let input = MAX_EDITED_IMAGES * MAX_IMAGE_TOKENS + MAX_EDIT_TEXT_TOKENS;
                let output = MAX_EDITED_IMAGES * MAX_GENERATED_IMAGE_TOKENS;
                // The form is not read yet, so the quality and the size of the images are unknown.
                let images = ImageParams { count: MAX_EDITED_IMAGES, quality: ANY.into(), size: ANY.into() };
                let bounds = Self { extra_input: input, output_tokens: Some(output), ..Self::default() };
                Self { images: Some(Box::new(images)), ..bounds }
            }
            Operation::CreateSpeech => {
                let bounds = Self::of_json(body, operation, Some(0)).await;
                let output = bounds.input_bytes.saturating_mul(SPEECH_TOKENS_PER_BYTE);
                Self { output_tokens: Some(output), ..bounds }
            }
            Operation::CreateTranscription | Operation::CreateTranslation => match length {
                Some(bytes) => Self::of_text(bytes, Some(bytes)),
                None => Self::unbounded("a recording without `content-length`"),
            },
            Operation::Rerank => {
                let bounds = Self::of_json(body, operation, Some(0)).await;
                Self { rankings: 1 + bounds.input_bytes / MIN_BYTES_PER_BILLED_QUERY, ..bounds }
            }
            Operation::Moderate => Self::of_json(body, operation, Some(0)).await,
            _ if uses_nothing(client_request, operation) => {
                Self { output_tokens: Some(0), uses_nothing: true, ..Self::default() }
            }
            Operation::CreateBatch | Operation::CreateBatchJob => Self::unbounded("a batch that a provider runs"),
            Operation::CreateFinetune => Self::unbounded("a fine-tuning job"),
            _ => Self::unbounded(format!("`{} {}`", client_request.head.method, client_request.route.path)),
        }
    }

    /// Returns the bounds of a JSON body. `output_tokens` is the maximum that the operation sets, if it does.
    async fn of_json(body: &Body, operation: Operation, output_tokens: Option<u64>) -> Self {
        let (bounds, parsed) = Self::parse(body, operation).await;
        Self { output_tokens: output_tokens.or_else(|| parsed.output_tokens()), ..bounds }
    }

    /// Reads a JSON body, and returns the bounds of its input too.
    async fn parse(body: &Body, operation: Operation) -> (Self, BodyBounds) {
        let Body::Complete(bytes) = body else {
            return (Self::unbounded("a body that is streamed"), BodyBounds::new(operation));
        };
        let parsed = if bytes.len() <= MAX_INLINE_PEEK_BYTES {
            BodyBounds::parse(bytes, operation)
        } else {
            let copy = bytes.clone();
            match tokio::task::spawn_blocking(move || BodyBounds::parse(&copy, operation)).await {
                Ok(parsed) => parsed,
                Err(_) => return (Self::unbounded("a body that could not be read"), BodyBounds::new(operation)),
            }
        };
        let tools = if parsed.has_tools { MAX_TOOL_PROMPT_TOKENS } else { 0 };
        let bounds = Self {
            input_bytes: bytes.len() as u64,
            extra_input: parsed.images.saturating_mul(MAX_IMAGE_TOKENS).saturating_add(tools),
            min_output_tokens: parsed.min_output_tokens(),
            choices: parsed.responses(),
            unbounded: parsed.unbounded.clone(),
            ..Self::default()
        };
        (bounds, parsed)
    }

    fn of_text(input_bytes: u64, output_tokens: Option<u64>) -> Self {
        Self { input_bytes, output_tokens, ..Self::default() }
    }

    fn unbounded(what: impl Into<String>) -> Self {
        Self { unbounded: Some(what.into()), ..Self::default() }
    }

    /// Sets the maximum tokens of each response.
    pub fn limit_each_response(&mut self, tokens: Option<u64>) {
        let least = self.min_output_tokens;
        self.output_tokens = tokens.map(|tokens| tokens.saturating_mul(self.choices()).max(least));
    }

    /// Returns the number of responses to all prompts.
    pub fn choices(&self) -> u64 {
        self.choices.max(1)
    }

    /// Returns the maximum usage of the request.
    pub fn highest(&self) -> HighestUsage<'_> {
        let unlimited = MAX_OUTPUT_TOKENS.saturating_mul(self.choices()).max(self.min_output_tokens);
        HighestUsage {
            input_tokens: self.input_bytes.saturating_add(self.extra_input),
            output_tokens: self.output_tokens.unwrap_or(unlimited),
            rankings: self.rankings,
            images: self.images.as_deref(),
        }
    }

    /// Returns the amount that a limit reserves for an attempt.
    pub fn amount(&self, rule: &LimitRule, limiter: &Limiter, group: &str, prices: &AttemptPrices<'_>) -> u64 {
        if rule.measure == Measure::Requests {
            return 1;
        }
        if rule.enforcement == Enforcement::Hard {
            return self.highest_amount(rule.measure, prices);
        }
        let input = self.input_bytes / BYTES_PER_TOKEN;
        let output = self.output_tokens.map_or(USUAL_OUTPUT_TOKENS, |most| most.min(USUAL_OUTPUT_TOKENS));
        let usual = match rule.measure {
            Measure::Cost => prices.usual_cost(input, output, self.images.as_deref()),
            Measure::Tokens | Measure::Requests => input.saturating_add(output),
        };
        // The usage of earlier requests is a better estimate than the bounds of this one. Without both, only a part of
        // a rate limit is reserved. Otherwise only an unused window would admit the request.
        let is_guess = self.output_tokens.is_none() && !rule.is_budget();
        let highest = if is_guess { (rule.limit / GUESSED_FRACTION).max(1) } else { rule.limit };
        let bound =
            if rule.is_budget() { rule.limit } else { self.highest_amount(rule.measure, prices).min(rule.limit) };
        limiter.estimate(rule, group).map_or(usual.min(highest), |recent| recent.min(bound))
    }

    fn highest_amount(&self, measure: Measure, prices: &AttemptPrices<'_>) -> u64 {
        if self.unbounded.is_some() {
            return UNBOUNDED;
        }
        let most = self.highest();
        match measure {
            Measure::Cost => prices.highest(&most),
            Measure::Tokens | Measure::Requests => most.input_tokens.saturating_add(most.output_tokens),
        }
    }
}

/// Returns true if a request only reads, deletes or stores data at a provider.
fn uses_nothing(client_request: &ClientRequest<'_>, operation: Operation) -> bool {
    match operation.body_kind() {
        Some(BodyKind::NoBody) => true,
        Some(_) => {
            operation.counts_tokens()
                || operation.is_file_operation()
                || matches!(
                    operation,
                    Operation::PutBatchObject | Operation::CreateBatchDataset | Operation::UploadBatchDataset
                )
        }
        None => matches!(&*client_request.head.method, "GET" | "HEAD" | "DELETE" | "OPTIONS"),
    }
}
