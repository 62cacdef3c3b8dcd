//! Provider formats: request bodies to providers, and their responses, streams and errors.

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

/// API format of a provider: writes its requests and reads its responses. Each method has a default for operations that
/// the format does not support.
pub trait ProviderFormat: Sync {
    /// Writes the request body. Takes the fields that the format supports out of the request; those that remain are
    /// reported as dropped.
    fn write_request(&self, _asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider does not support chat"))
    }

    /// Returns true if this model expects the names of Anthropic betas in the body.
    fn has_betas_in_body(&self, _model: &str) -> bool {
        false
    }

    /// Returns true if this model signs its tool calls and expects the signatures back.
    fn signs_tool_calls(&self, _model: &str) -> bool {
        false
    }

    /// Reads a complete response and emits its events.
    fn read_response(&self, _answer: &[u8], _taker: &mut dyn EventSink) -> Result<(), MalformedResponse> {
        Err(MalformedResponse("it is not a chat response".into()))
    }

    /// Creates a decoder for one stream.
    fn stream_decoder(&self) -> Box<dyn StreamDecoder> {
        openai_chat::OPENAI.stream_decoder()
    }

    /// Reads the details of an error response.
    fn parse_error(&self, response: &[u8]) -> ErrorDetails {
        openai_chat::parse_error(response)
    }

    /// Writes the body of an embeddings request.
    fn write_embedding_request(&self, _texts: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider does not support embeddings"))
    }

    /// Returns true if this model also embeds images.
    fn can_embed_images(&self, _model: &str) -> bool {
        false
    }

    /// Returns true if this model also embeds video.
    fn can_embed_video(&self, _model: &str) -> bool {
        false
    }

    /// Reads the vectors of an embeddings response.
    fn read_embeddings(&self, _answer: &Value) -> Option<EmbeddingResponse> {
        None
    }

    /// Adapts the client's own body to a host of the same API format. Returns `None` if the request must be translated
    /// instead.
    fn pass_through_request(&self, _question: &TranslationInput<'_>) -> Option<Result<Vec<u8>, RequestError>> {
        None
    }

    /// Adapts the response to a request that was passed through.
    fn pass_through_response(&self, _operation: Operation, response: &[u8]) -> Result<Vec<u8>, MalformedResponse> {
        Ok(response.to_vec())
    }

    /// Writes the body of an image generation request.
    fn write_image_request(&self, _picture: &mut ImageRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider does not generate images"))
    }

    /// Reads the images of a response.
    fn read_images(&self, _answer: &Value) -> Option<ImageResponse> {
        None
    }

    /// Writes the body of a rerank request.
    fn write_rerank_request(&self, _ranking: &mut RerankRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider does not support rerank"))
    }

    fn read_ranking(&self, _answer: &Value) -> Option<RerankResponse> {
        None
    }

    /// Writes the body of a token count request.
    fn write_count_request(&self, _asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider does not count tokens"))
    }

    fn read_token_count(&self, _answer: &Value) -> Option<u64> {
        None
    }

    /// Writes the body that creates a fine-tuning job.
    fn write_tuning_request(&self, _tune: &mut FineTuningRequest<'_>) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider does not support fine-tuning"))
    }

    /// Writes the body that creates a batch.
    fn write_batch_request(&self, _run: &mut BatchRequest<'_>) -> Result<Vec<u8>, RequestError> {
        Err(RequestError::new("$", "this provider does not support batches"))
    }

    /// Reads a batch into `OpenAI`'s fields. `why` holds the reason of a failure and `ended` the time at which the
    /// batch ended.
    fn read_batch(&self, _job: &Value) -> Option<Fields> {
        None
    }

    /// Reads a fine-tuning job into `OpenAI`'s fields.
    fn read_tuning_job(&self, _job: &Value) -> Option<Fields> {
        None
    }

    /// Returns true if the provider cancels a batch by deleting it, so that its state cannot be read afterwards.
    fn cancels_by_delete(&self) -> bool {
        false
    }

    /// Reads a list of jobs, and whether more pages follow.
    fn read_job_list<'a>(&self, _answer: &'a Value) -> Option<JobList<'a>> {
        None
    }

    /// Reads the checkpoints that a fine-tuning job has so far.
    fn read_checkpoints(&self, _job: &Value) -> Vec<Fields> {
        Vec::new()
    }

    /// Reads a list of models.
    fn read_model_list(&self, _answer: &Value) -> Option<Vec<ListedModel>> {
        None
    }

    /// Returns the content type of an image generation request.
    fn image_request_content_type(&self) -> String {
        "application/json".into()
    }

    /// Returns how the provider frames its streams.
    fn event_framing(&self) -> EventFraming {
        EventFraming::ServerSentEvents
    }
}

/// Decoder of one provider stream. It receives the events one by one.
pub trait StreamDecoder: Send {
    fn decode(&mut self, data: &[u8], taker: &mut dyn EventSink);

    /// Decodes an event whose frame carries its name.
    fn decode_named(&mut self, _name: &str, data: &[u8], sink: &mut dyn EventSink) {
        self.decode(data, sink);
    }

    /// Emits the remaining events at the end of the stream.
    fn finish_stream(&mut self, _taker: &mut dyn EventSink) {}
}

/// Framing of the events in a provider's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventFraming {
    /// Server-sent events.
    ServerSentEvents,
    /// AWS event stream: binary frames with checksums.
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

/// A response that does not match the provider's format, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedResponse(pub String);

impl From<serde_json::Error> for MalformedResponse {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// Details of a provider's error response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorDetails {
    pub message: Option<String>,
    pub kind: Option<String>,
    /// Request parameter that the error is about.
    pub param: Option<String>,
    pub code: Option<String>,
}
