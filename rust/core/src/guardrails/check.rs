//! A check of a guardrail: its input, its outcome, and its row in the table of checks.

use std::{borrow::Cow, collections::HashMap, fmt::Debug, sync::Arc, time::Duration};

use penstock_llm::{
    catalog::Grant,
    operation::Operation,
    texts::{TextKind, TextPart},
};
use penstock_net::headers::Headers;
use serde::Deserialize;
use serde_json::Value;

use super::{host_access::CheckJob, inline_image::InlineImage, text_scope::TextScope, window::WindowCheck};

/// Maximum number of characters of an excerpt that the results show.
const EXCERPT_CHARS: usize = 100;

/// When a check runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Before the request is sent.
    Input,
    /// After a response with status 200.
    Output,
}

/// Stages in which a check can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stages {
    Input,
    Output,
    Both,
}

impl Stages {
    pub fn includes(self, stage: Stage) -> bool {
        match self {
            Self::Input => stage == Stage::Input,
            Self::Output => stage == Stage::Output,
            Self::Both => true,
        }
    }

    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::Input => &["input"],
            Self::Output => &["output"],
            Self::Both => &["input", "output"],
        }
    }
}

/// The request or response that a check examines.
#[derive(Debug, Clone, Copy)]
pub struct CheckInput<'i> {
    pub stage: Stage,
    pub operation: Operation,
    /// Slug of the provider.
    pub provider: &'i str,
    pub model: &'i str,
    pub is_streaming: bool,
    pub metadata: &'i [(String, String)],
    pub headers: &'i Headers,
    /// Body of the request. `Null` if it is not JSON.
    pub request: &'i Value,
    /// Body of the response. `Null` before there is one, and for a stream.
    pub response: &'i Value,
    /// Texts of the request or of the response, depending on `stage`.
    pub texts: &'i [TextPart],
}

/// Texts that a check examines, joined.
pub struct SelectedText<'i> {
    /// Indexes in `CheckInput::texts`.
    pub indexes: Vec<usize>,
    pub text: Cow<'i, str>,
}

impl<'i> CheckInput<'i> {
    /// Returns the texts in a scope, joined by line breaks. See `TextScope::select` for `measures`.
    pub fn select(&self, scope: TextScope, measures: bool) -> SelectedText<'i> {
        self.join(scope.select(self.stage, self.texts, measures))
    }

    /// Returns the texts in a scope without those of unknown fields, for a check that must find something in a text.
    pub fn select_known_fields(&self, scope: TextScope) -> SelectedText<'i> {
        let mut indexes = scope.select(self.stage, self.texts, false);
        indexes.retain(|index| self.texts[*index].kind != TextKind::Other);
        self.join(indexes)
    }

    fn join(&self, indexes: Vec<usize>) -> SelectedText<'i> {
        let text = match indexes[..] {
            [] => "".into(),
            [only] => self.texts[only].text.as_str().into(),
            _ => {
                let texts: Vec<_> = indexes.iter().map(|index| self.texts[*index].text.as_str()).collect();
                texts.join("\n").into()
            }
        };
        SelectedText { indexes, text }
    }
}

/// Change that a check makes.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// New texts, each with its index in `CheckInput::texts`.
    Texts(Vec<(usize, String)>),
    /// A new body.
    Body(Value),
    /// Images by URL. Each one replaces its URL in the body.
    Images(Arc<HashMap<String, InlineImage>>),
    /// New header fields of the request. They replace fields of the same names.
    Headers(Vec<(String, String)>),
}

/// Why a check has no verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckError {
    pub name: &'static str,
    pub message: String,
    /// True if the check counts as failed even without `failOnError`.
    pub is_failure: bool,
    /// True if the request or response must be denied, even by a hook that does not deny.
    pub must_deny: bool,
}

impl CheckError {
    pub fn new(message: impl Into<String>) -> Self {
        Self { name: "Check error", message: message.into(), is_failure: false, must_deny: false }
    }

    /// Returns the error of a check that could not run because the caller reached a limit. It counts as failed:
    /// otherwise a caller could use up its own limit to avoid the check.
    pub fn limited(message: impl Into<String>) -> Self {
        Self { name: "Limit reached", is_failure: true, ..Self::new(message) }
    }

    /// Returns the error of a check that may not run as it is configured. It counts as failed: otherwise nobody would
    /// notice that it never runs.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self { is_failure: true, ..Self::new(message) }
    }

    /// Returns the error of a check that should have replaced parts of texts but could not search them. It must deny:
    /// otherwise a client could avoid the check with a long text.
    pub fn not_replaced(message: impl Into<String>) -> Self {
        Self { is_failure: true, must_deny: true, ..Self::new(message) }
    }
}

/// Result of a check.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CheckOutcome {
    pub verdict: bool,
    pub data: Value,
    pub error: Option<CheckError>,
    pub change: Option<Change>,
    /// Placeholder names in changed texts, each with the value that replaces the name in the response.
    pub restorations: Vec<(String, String)>,
}

impl CheckOutcome {
    pub fn new(verdict: bool, data: Value) -> Self {
        Self { verdict, data, ..Self::default() }
    }

    pub fn failed(error: CheckError) -> Self {
        Self { error: Some(error), ..Self::default() }
    }
}

/// Function that reads the status and the body of the reply to an `ExternalCall`.
pub type ReadReply = Box<dyn Fn(u16, &[u8]) -> Result<CheckOutcome, CheckError> + Send + Sync>;

/// Keys with which a request to AWS is signed.
pub struct AwsSignature {
    pub service: &'static str,
    pub region: String,
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

/// A request to another host that decides for a check.
pub struct ExternalCall {
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
    pub timeout: Duration,
    /// Keys that sign the request. `None`: the request needs no signature.
    pub signature: Option<AwsSignature>,
    /// How the bearer token of the request is fetched. `None`: the request needs no token.
    pub grant: Option<Grant>,
    pub read: ReadReply,
}

/// Effects of a check that do not depend on its input.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckEffects<'c> {
    /// Suffix of the placeholder names by which the check replaces values. `None` if the client does not get the values
    /// back.
    pub restoring_tag: Option<&'c str>,
    /// Names of the header fields that only the check may set. The provider gets none of them from the client, also if
    /// the check does not run.
    pub reserved_headers: &'c [String],
}

/// A check with its parameters.
pub trait Check: Debug + Send + Sync {
    /// Checks a request or response, and returns the verdict and changes.
    ///
    /// # Errors
    /// If it cannot decide, for example because a text is missing.
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError>;

    /// Returns the call to another host that decides, if there is one.
    fn external_call(&self, _input: &CheckInput<'_>) -> Option<Result<ExternalCall, CheckError>> {
        None
    }

    /// Returns the job that calls other hosts and then decides, if a single `external_call` does not suffice.
    fn job(&self, _input: &CheckInput<'_>) -> Option<CheckJob> {
        None
    }

    /// Returns the approximate memory use in bytes, without the parameters.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// Returns true if the work on an input may take long, or grow faster than the text. Such a check never runs on a
    /// thread that serves requests.
    fn is_costly(&self, _input: &CheckInput<'_>) -> bool {
        false
    }

    /// Returns the check of portions of a stream; `None` if it needs the whole text.
    fn window(&self) -> Option<&dyn WindowCheck> {
        None
    }

    /// Returns true if the check can change texts or bodies.
    fn may_change(&self) -> bool {
        false
    }

    /// Returns the effects of the check that other parts of the gateway must know before it runs.
    fn effects(&self) -> CheckEffects<'_> {
        CheckEffects::default()
    }
}

/// A compiled check, or why its parameters are invalid: the path below the parameters, and a message.
pub type CompileResult = Result<Box<dyn Check>, (String, String)>;

/// Row of a check in the table of checks.
pub struct CheckRow {
    pub id: &'static str,
    /// Another id for the same check.
    pub alias: Option<&'static str>,
    pub name: &'static str,
    pub description: &'static str,
    pub stages: Stages,
    /// Names of the parameters that contain credentials.
    pub secrets: &'static [&'static str],
    /// JSON Schema of the parameters, without those in `shared`.
    pub schema: &'static str,
    /// Names of the parameters that this check shares with others (see `shared_schema`). A number after `=` is the
    /// default.
    pub shared: &'static [&'static str],
    pub compile: fn(Value) -> CompileResult,
}

/// Reads the parameters of a check, which its schema has validated.
pub fn read_parameters<T: for<'de> Deserialize<'de>>(parameters: Value) -> Result<T, (String, String)> {
    serde_json::from_value(parameters).map_err(|error| (String::new(), error.to_string()))
}

/// Returns the beginning of a text, for results.
pub fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
