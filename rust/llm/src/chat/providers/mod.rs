//! The ways in which providers are spoken to: requests out, answers, streams and errors in.

pub mod anthropic_hosted;
pub mod anthropic_messages;
pub mod bedrock_converse;
pub mod bedrock_invoke;
pub mod cohere;
pub mod gemini;
pub mod openai_chat;
pub mod triton;

use serde_json::Value;

use crate::operation::Operation;
use crate::{
    chat::{
        event::EventSink,
        request::{ChatRequest, Fields, RequestError},
    },
    embeddings::request::{EmbeddingRequest, EmbeddingResponse},
    images::request::{ImageRequest, ImageResponse},
    jobs::{
        batch::BatchRequest,
        fine_tuning::{FineTuningRequest, JobList},
    },
    model_list::ListedModel,
    rerank::request::{RerankRequest, RerankResponse},
    translation::TranslationInput,
};

/// What a provider understands and answers, for operations that talk.
pub trait Wire: Sync {
    /// The body to send. It takes of the request what it can say; what it leaves was lost.
    fn write(&self, _asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider holds no conversation"))
    }

    /// Whether this model is told in the body which of Anthropic's betas it is asked for.
    fn says_betas(&self, _model: &str) -> bool {
        false
    }

    /// Whether this model signs the calls that it makes, and wants its signatures back.
    fn signs(&self, _model: &str) -> bool {
        false
    }

    /// A whole answer, in pieces.
    fn read(&self, _answer: &[u8], _taker: &mut dyn EventSink) -> Result<(), Broken> {
        Err(Broken("it is no conversation".into()))
    }

    /// Who hears one stream.
    fn listener(&self) -> Box<dyn Listener> {
        openai_chat::OPENAI.listener()
    }

    /// What an error says.
    fn error(&self, answer: &[u8]) -> Found {
        openai_chat::parse_error(answer)
    }

    /// The body that asks for embeddings.
    fn embed(&self, _texts: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider embeds nothing"))
    }

    /// Whether this model embeds pictures too.
    fn sees(&self, _model: &str) -> bool {
        false
    }

    /// Whether it embeds films besides.
    fn watches(&self, _model: &str) -> bool {
        false
    }

    /// The vectors of an answer.
    fn embedded(&self, _answer: &Value) -> Option<EmbeddingResponse> {
        None
    }

    /// The caller's own body for who hosts the model, with what must be changed; `None` where it is said anew.
    fn carry(&self, _question: &TranslationInput<'_>) -> Option<Result<Vec<u8>, RequestError>> {
        None
    }

    /// The answer to a body that was carried.
    fn carried(&self, _operation: Operation, answer: &[u8]) -> Result<Vec<u8>, Broken> {
        Ok(answer.to_vec())
    }

    /// The body that asks for images.
    fn draw(&self, _picture: &mut ImageRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider makes no images"))
    }

    /// The images of an answer.
    fn drawn(&self, _answer: &Value) -> Option<ImageResponse> {
        None
    }

    /// The body that asks how well documents answer a query.
    fn rank(&self, _ranking: &mut RerankRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider ranks nothing"))
    }

    fn ranked(&self, _answer: &Value) -> Option<RerankResponse> {
        None
    }

    /// The body that asks how many tokens a request has.
    fn count(&self, _asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider counts no tokens"))
    }

    fn counted(&self, _answer: &Value) -> Option<u64> {
        None
    }

    /// The body that begins a job of fine-tuning.
    fn tune(&self, _tune: &mut FineTuningRequest<'_>) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider fine-tunes nothing"))
    }

    /// The body that begins a batch.
    fn run(&self, _run: &mut BatchRequest<'_>) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider runs no batches"))
    }

    /// What is said of a batch, under `OpenAI`'s names; why it failed as `why`, and when it was over as `ended`.
    fn ran(&self, _job: &Value) -> Option<Fields> {
        None
    }

    /// What is said of a job, under `OpenAI`'s names.
    fn tuned(&self, _job: &Value) -> Option<Fields> {
        None
    }

    /// Whether a batch is ended by deleting it, so that nothing is known of it after that.
    fn deletes(&self) -> bool {
        false
    }

    /// The jobs of a list, and whether there are more than fit.
    fn jobs<'a>(&self, _answer: &'a Value) -> Option<JobList<'a>> {
        None
    }

    /// The checkpoints that a job has so far.
    fn checkpoints(&self, _job: &Value) -> Vec<Fields> {
        Vec::new()
    }

    /// The models of a list.
    fn listed(&self, _answer: &Value) -> Option<Vec<ListedModel>> {
        None
    }

    /// The type of a body that asks for images.
    fn content_type(&self) -> String {
        "application/json".into()
    }

    /// What a stream is cut into.
    fn frames(&self) -> Frames {
        Frames::Events
    }
}

/// Hears the events of a stream one by one.
pub trait Listener: Send {
    fn hear(&mut self, data: &[u8], taker: &mut dyn EventSink);

    /// The same, where frames say what they are.
    fn named(&mut self, _name: &str, data: &[u8], taker: &mut dyn EventSink) {
        self.hear(data, taker);
    }

    /// Nothing more comes.
    fn over(&mut self, _taker: &mut dyn EventSink) {}
}

/// What a stream is cut into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frames {
    /// Server-sent events.
    Events,
    /// Amazon's frames, which have checksums.
    AwsEventStream,
}

impl Frames {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Events => "text/event-stream",
            Self::AwsEventStream => "application/vnd.amazon.eventstream",
        }
    }
}

/// An answer that is not what this provider's answers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

impl From<serde_json::Error> for Broken {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// What an error's body says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    pub message: Option<String>,
    pub kind: Option<String>,
    /// What of the request it is about.
    pub param: Option<String>,
    pub code: Option<String>,
}
