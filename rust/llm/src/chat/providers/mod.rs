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
pub trait ProviderFormat: Sync {
    /// The body to send. It takes of the request what it can say; what it leaves was lost.
    fn write_request(&self, _asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider holds no conversation"))
    }

    /// Whether this model is told in the body which of Anthropic's betas it is asked for.
    fn has_betas_in_body(&self, _model: &str) -> bool {
        false
    }

    /// Whether this model signs the calls that it makes, and wants its signatures back.
    fn signs_tool_calls(&self, _model: &str) -> bool {
        false
    }

    /// A whole answer, in pieces.
    fn read_response(&self, _answer: &[u8], _taker: &mut dyn EventSink) -> Result<(), MalformedResponse> {
        Err(MalformedResponse("it is no conversation".into()))
    }

    /// Who hears one stream.
    fn stream_decoder(&self) -> Box<dyn StreamDecoder> {
        openai_chat::OPENAI.stream_decoder()
    }

    /// What an error says.
    fn parse_error(&self, answer: &[u8]) -> ErrorDetails {
        openai_chat::parse_error(answer)
    }

    /// The body that asks for embeddings.
    fn write_embedding_request(&self, _texts: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider embeds nothing"))
    }

    /// Whether this model embeds pictures too.
    fn can_embed_images(&self, _model: &str) -> bool {
        false
    }

    /// Whether it embeds films besides.
    fn can_embed_video(&self, _model: &str) -> bool {
        false
    }

    /// The vectors of an answer.
    fn read_embeddings(&self, _answer: &Value) -> Option<EmbeddingResponse> {
        None
    }

    /// The caller's own body for who hosts the model, with what must be changed; `None` where it is said anew.
    fn pass_through_request(&self, _question: &TranslationInput<'_>) -> Option<Result<Vec<u8>, RequestError>> {
        None
    }

    /// The answer to a body that was carried.
    fn pass_through_response(&self, _operation: Operation, answer: &[u8]) -> Result<Vec<u8>, MalformedResponse> {
        Ok(answer.to_vec())
    }

    /// The body that asks for images.
    fn write_image_request(&self, _picture: &mut ImageRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider makes no images"))
    }

    /// The images of an answer.
    fn read_images(&self, _answer: &Value) -> Option<ImageResponse> {
        None
    }

    /// The body that asks how well documents answer a query.
    fn write_rerank_request(&self, _ranking: &mut RerankRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider ranks nothing"))
    }

    fn read_ranking(&self, _answer: &Value) -> Option<RerankResponse> {
        None
    }

    /// The body that asks how many tokens a request has.
    fn write_count_request(&self, _asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider counts no tokens"))
    }

    fn read_token_count(&self, _answer: &Value) -> Option<u64> {
        None
    }

    /// The body that begins a job of fine-tuning.
    fn write_tuning_request(&self, _tune: &mut FineTuningRequest<'_>) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider fine-tunes nothing"))
    }

    /// The body that begins a batch.
    fn write_batch_request(&self, _run: &mut BatchRequest<'_>) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider runs no batches"))
    }

    /// What is said of a batch, under `OpenAI`'s names; why it failed as `why`, and when it was over as `ended`.
    fn read_batch(&self, _job: &Value) -> Option<Fields> {
        None
    }

    /// What is said of a job, under `OpenAI`'s names.
    fn read_tuning_job(&self, _job: &Value) -> Option<Fields> {
        None
    }

    /// Whether a batch is ended by deleting it, so that nothing is known of it after that.
    fn cancels_by_delete(&self) -> bool {
        false
    }

    /// The jobs of a list, and whether there are more than fit.
    fn read_job_list<'a>(&self, _answer: &'a Value) -> Option<JobList<'a>> {
        None
    }

    /// The checkpoints that a job has so far.
    fn read_checkpoints(&self, _job: &Value) -> Vec<Fields> {
        Vec::new()
    }

    /// The models of a list.
    fn read_model_list(&self, _answer: &Value) -> Option<Vec<ListedModel>> {
        None
    }

    /// The type of a body that asks for images.
    fn image_request_content_type(&self) -> String {
        "application/json".into()
    }

    /// What a stream is cut into.
    fn event_framing(&self) -> EventFraming {
        EventFraming::ServerSentEvents
    }
}

/// Hears the events of a stream one by one.
pub trait StreamDecoder: Send {
    fn decode(&mut self, data: &[u8], taker: &mut dyn EventSink);

    /// The same, where frames say what they are.
    fn decode_named(&mut self, _name: &str, data: &[u8], taker: &mut dyn EventSink) {
        self.decode(data, taker);
    }

    /// Nothing more comes.
    fn finish_stream(&mut self, _taker: &mut dyn EventSink) {}
}

/// What a stream is cut into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventFraming {
    /// Server-sent events.
    ServerSentEvents,
    /// Amazon's frames, which have checksums.
    AwsEventStream,
}

impl EventFraming {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::ServerSentEvents => "text/event-stream",
            Self::AwsEventStream => "application/vnd.amazon.eventstream",
        }
    }
}

/// An answer that is not what this provider's answers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedResponse(pub String);

impl From<serde_json::Error> for MalformedResponse {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// What an error's body says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorDetails {
    pub message: Option<String>,
    pub kind: Option<String>,
    /// What of the request it is about.
    pub param: Option<String>,
    pub code: Option<String>,
}
