//! API formats of providers: one trait per capability, and `ProviderFormat`, the capabilities of a provider's API. The
//! implementations are in the modules of the capabilities.

use serde_json::Value;

use crate::{
    chat::{event::EventSink, request::ChatRequest},
    embeddings::request::{EmbeddingRequest, EmbeddingResponse},
    errors::{MalformedResponse, RequestError},
    fields::Fields,
    images::request::{ImageRequest, ImageResponse},
    jobs::{batch::BatchRequest, fine_tuning::FineTuningRequest, job_list::JobList},
    model_list::ListedModel,
    operation::Operation,
    reports::DroppedParams,
    rerank::request::{RerankRequest, RerankResponse},
    translation_input::TranslationInput,
};

/// API format of a provider: its capabilities, each `None` if the provider does not have it.
#[derive(Clone, Copy)]
pub struct ProviderFormat {
    pub chat: Option<&'static dyn ChatFormat>,
    pub embeddings: Option<&'static dyn EmbeddingFormat>,
    pub images: Option<&'static dyn ImageFormat>,
    pub rerank: Option<&'static dyn RerankFormat>,
    pub token_count: Option<&'static dyn TokenCountFormat>,
    pub fine_tuning: Option<&'static dyn FineTuningFormat>,
    pub batches: Option<&'static dyn BatchFormat>,
    pub model_list: Option<&'static dyn ModelListFormat>,
    pub pass_through: Option<&'static dyn PassThroughFormat>,
    pub event_framing: EventFraming,
}

impl ProviderFormat {
    /// Format without capabilities, to which a provider's row adds its own.
    pub const NONE: Self = Self {
        chat: None,
        embeddings: None,
        images: None,
        rerank: None,
        token_count: None,
        fine_tuning: None,
        batches: None,
        model_list: None,
        pass_through: None,
        event_framing: EventFraming::ServerSentEvents,
    };

    pub const fn of_chat(format: &'static dyn ChatFormat) -> Self {
        Self { chat: Some(format), ..Self::NONE }
    }

    pub const fn of_embeddings(format: &'static dyn EmbeddingFormat) -> Self {
        Self { embeddings: Some(format), ..Self::NONE }
    }

    pub const fn of_images(format: &'static dyn ImageFormat) -> Self {
        Self { images: Some(format), ..Self::NONE }
    }

    pub const fn of_rerank(format: &'static dyn RerankFormat) -> Self {
        Self { rerank: Some(format), ..Self::NONE }
    }

    pub const fn of_fine_tuning(format: &'static dyn FineTuningFormat) -> Self {
        Self { fine_tuning: Some(format), ..Self::NONE }
    }

    pub const fn of_batches(format: &'static dyn BatchFormat) -> Self {
        Self { batches: Some(format), ..Self::NONE }
    }

    /// Returns true if this model signs its tool calls and expects the signatures back.
    pub fn signs_tool_calls(&self, model: &str) -> bool {
        self.chat.is_some_and(|chat| chat.signs_tool_calls(model))
    }
}

/// Capability that a request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    Chat,
    Embeddings,
    Images,
    Rerank,
    TokenCount,
    FineTuning,
    Batches,
    ModelList,
}

impl Capability {
    /// Returns the error for a provider without this capability.
    pub fn unsupported_error(self) -> RequestError {
        let lacking = match self {
            Self::Chat => "support chat",
            Self::Embeddings => "support embeddings",
            Self::Images => "generate images",
            Self::Rerank => "support rerank",
            Self::TokenCount => "count tokens",
            Self::FineTuning => "support fine-tuning",
            Self::Batches => "support batches",
            Self::ModelList => "list models",
        };
        RequestError::new("$", format!("this provider does not {lacking}"))
    }
}

/// Chat format of a provider: writes its requests and reads its responses.
pub trait ChatFormat: Sync {
    /// Writes the request body. Takes the fields that the format supports out of the request; those that remain are
    /// reported as dropped.
    fn write_request(&self, request: &mut ChatRequest) -> Result<Vec<u8>, RequestError>;

    /// Reads a complete response and emits its events.
    fn read_response(&self, response: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse>;

    /// Creates a decoder for one stream.
    fn stream_decoder(&self) -> Box<dyn StreamDecoder>;

    /// Returns true if this model expects the names of Anthropic betas in the body.
    fn has_betas_in_body(&self, _model: &str) -> bool {
        false
    }

    /// Returns true if this model signs its tool calls and expects the signatures back.
    fn signs_tool_calls(&self, _model: &str) -> bool {
        false
    }
}

/// Embeddings format of a provider.
pub trait EmbeddingFormat: Sync {
    /// Writes the request body. Takes the fields that the format supports out of the request.
    fn write_embedding_request(&self, request: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError>;

    /// Reads the vectors of a response.
    fn read_embeddings(&self, response: &Value) -> Option<EmbeddingResponse>;

    /// Returns true if this model also embeds images.
    fn can_embed_images(&self, _model: &str) -> bool {
        false
    }

    /// Returns true if this model also embeds video.
    fn can_embed_video(&self, _model: &str) -> bool {
        false
    }
}

/// Image generation format of a provider.
pub trait ImageFormat: Sync {
    /// Writes the request body. Takes the fields that the format supports out of the request.
    fn write_image_request(&self, request: &mut ImageRequest) -> Result<Vec<u8>, RequestError>;

    /// Reads the images of a response.
    fn read_images(&self, response: &Value) -> Option<ImageResponse>;

    /// Returns the content type of the request.
    fn image_request_content_type(&self) -> String {
        "application/json".into()
    }
}

/// Rerank format of a provider.
pub trait RerankFormat: Sync {
    /// Writes the request body. Takes the fields that the format supports out of the request.
    fn write_rerank_request(&self, request: &mut RerankRequest) -> Result<Vec<u8>, RequestError>;

    fn read_ranking(&self, response: &Value) -> Option<RerankResponse>;
}

/// Token count format of a provider.
pub trait TokenCountFormat: Sync {
    fn write_count_request(&self, request: &mut ChatRequest) -> Result<Vec<u8>, RequestError>;

    fn read_token_count(&self, response: &Value) -> Option<u64>;
}

/// Format in which a provider lists its jobs.
pub trait JobFormat: Sync {
    /// Reads a list of jobs, and whether more pages follow.
    fn read_job_list<'a>(&self, response: &'a Value) -> Option<JobList<'a>>;
}

/// Fine-tuning format of a provider.
pub trait FineTuningFormat: JobFormat {
    /// Writes the body that creates a fine-tuning job.
    fn write_tuning_request(&self, request: &mut FineTuningRequest<'_>) -> Result<Vec<u8>, RequestError>;

    /// Reads a fine-tuning job into `OpenAI`'s fields.
    fn read_tuning_job(&self, job: &Value) -> Option<Fields>;

    /// Reads the checkpoints that a fine-tuning job has so far.
    fn read_checkpoints(&self, job: &Value) -> Vec<Fields>;
}

/// Batch format of a provider.
pub trait BatchFormat: JobFormat {
    /// Writes the body that creates a batch.
    fn write_batch_request(&self, request: &mut BatchRequest<'_>) -> Result<Vec<u8>, RequestError>;

    /// Reads a batch into `OpenAI`'s fields. Two additional fields are `why`, the reason of a failure, and `ended`, the
    /// time at which the batch ended.
    fn read_batch(&self, job: &Value) -> Option<Fields>;

    /// Returns true if the provider cancels a batch by deleting it, so that its state cannot be read afterwards.
    fn cancels_by_delete(&self) -> bool;
}

/// Model list format of a provider.
pub trait ModelListFormat: Sync {
    fn read_model_list(&self, response: &Value) -> Option<Vec<ListedModel>>;
}

/// Body of a request that is passed through, with the dropped parameters.
pub type PassThroughBody = Result<(Vec<u8>, DroppedParams), RequestError>;

/// Format of a host that serves another provider's API with small differences.
pub trait PassThroughFormat: Sync {
    /// Adapts the client's own body, and returns the parameters that it drops. Returns `None` if the request must be
    /// translated instead.
    fn pass_through_request(&self, input: &TranslationInput<'_>) -> Option<PassThroughBody>;

    /// Adapts the response to a request that was passed through.
    fn pass_through_response(&self, _operation: Operation, response: &[u8]) -> Result<Vec<u8>, MalformedResponse> {
        Ok(response.to_vec())
    }
}

/// Decoder of one provider stream. It receives the events one by one.
pub trait StreamDecoder: Send {
    fn decode(&mut self, data: &[u8], sink: &mut dyn EventSink);

    /// Decodes an event whose frame carries its name.
    fn decode_named(&mut self, _name: &str, data: &[u8], sink: &mut dyn EventSink) {
        self.decode(data, sink);
    }

    /// Emits the remaining events at the end of the stream.
    fn finish_stream(&mut self, _sink: &mut dyn EventSink) {}
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
