//! Translation of requests and responses between API formats, so that any client format works with any provider.
//!
//! A client's request becomes a `ChatRequest`, and a provider's response becomes a sequence of `ResponseEvent`s.
//! Modules for client formats and modules for provider formats each know one side only. Requests that need no
//! translation do not come here.

mod client_format;
pub(crate) mod normalise;
mod synthetic_response;
mod usage_estimate;

pub use crate::chat::response_context::ResponseContext;
pub use crate::chat::tool_call_signatures::{ScopedSignatures, SignatureCache};
pub use crate::chat::transcoder::Transcoder;
pub use crate::errors::{MalformedResponse, RequestError};
pub use crate::reports::{DroppedParams, ResponseReport};
pub use crate::translation::{
    normalise::{Normaliser, error_message, hidden_error_status, may_begin_error, may_hide_errors},
    synthetic_response::{SyntheticResponse, write_synthetic_response},
    usage_estimate::UsageEstimate,
};

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{
    api_format::format::ApiFormat,
    chat::{
        clients::{anthropic_messages, bedrock_converse, gemini},
        providers::openai_chat,
        response_writer::{RecordingWriter, ResponseWriter},
        thinking_param::normalise_thinking,
    },
    embeddings::request::{EmbeddingRequest, VectorEncoding},
    error_details::{ErrorDetails, parse_error},
    error_response::{self, ErrorFallback, ErrorOrigin},
    fields::Fields,
    images::request::{ImageRequest, ImageResponse},
    jobs::{
        batch::BatchRequest, batch_response, fine_tuning::FineTuningRequest, fine_tuning_response, job_list::PageQuery,
    },
    model_list::{ListedModel, ModelListShape},
    operation::Operation,
    provider_format::{
        BatchFormat, Capability, ChatFormat, EmbeddingFormat, EventFraming, FineTuningFormat, ImageFormat,
        ModelListFormat, PassThroughFormat, ProviderFormat, RerankFormat, TokenCountFormat,
    },
    rerank::request::{DOCUMENTS_KEY, RerankRequest},
    translation::client_format::{ClientChatFormat, ClientFormat, CountFormat},
    translation_input::TranslationInput,
};

/// Number of bytes at the start of a response that decide if it may be an error.
const MAX_ERROR_START_BYTES: usize = 4096;

/// Formats of the client and of the provider for the capability that a request uses.
enum FormatPair {
    Chat(ClientChatFormat, &'static dyn ChatFormat),
    Embeddings(VectorEncoding, &'static dyn EmbeddingFormat),
    Images(&'static dyn ImageFormat),
    Rerank(&'static dyn RerankFormat),
    TokenCount(&'static dyn TokenCountFormat),
    ModelList(&'static dyn ModelListFormat),
    FineTuning(&'static dyn FineTuningFormat),
    Batches(&'static dyn BatchFormat),
    /// Request and response keep the client's format and only change where the host of the model requires it.
    PassThrough(&'static dyn PassThroughFormat),
}

/// Translated request, and the state that is needed to translate its response.
pub struct Translation {
    formats: FormatPair,
    event_framing: EventFraming,
    error_fallback: ErrorFallback,
    operation: Operation,
    /// Format in which the client expects model lists.
    model_list_shape: ModelListShape,
    /// True if only the gateway requested the usage of the stream. It is removed from the stream after it has been
    /// read.
    pub should_hide_usage: bool,
    page: PageQuery,
    /// Beta features of Anthropic's API to request in a header, in addition to those in the client's header.
    pub anthropic_betas: Option<String>,
    /// Version of Anthropic's API that the body requests, if no header does.
    pub anthropic_version: Option<String>,
    /// Token of the model list page to request; `None` for the first page.
    pub next_page_token: Option<String>,
    pub response_context: ResponseContext,
    pub dropped_params: DroppedParams,
}

impl Translation {
    /// Translates a request; also returns the body to send. The error states which part of the request this provider
    /// does not support.
    pub fn translate_request(
        input: &TranslationInput<'_>,
        provider_format: &ProviderFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let operation = input.operation;
        let unknown =
            || RequestError::new("$", format!("{} cannot be translated to this provider's API", operation.id()));
        let client_format = ClientFormat::from_operation(operation).ok_or_else(unknown)?;
        if let Some(format) = provider_format.pass_through
            && let Some(adapted) = format.pass_through_request(input)
        {
            let (body, dropped_params) = adapted?;
            let plain = Self::new(input, FormatPair::PassThrough(format), provider_format);
            return Ok((Self { dropped_params, ..plain }, body));
        }
        let (translation, body) = match client_format {
            ClientFormat::Chat(client) => {
                let format = provider_format.chat.ok_or_else(|| Capability::Chat.unsupported_error())?;
                let plain = Self::new(input, FormatPair::Chat(client, format), provider_format);
                plain.translate_chat_request(input, client, format)?
            }
            ClientFormat::Embeddings(encoding) => {
                let format = provider_format.embeddings.ok_or_else(|| Capability::Embeddings.unsupported_error())?;
                let plain = Self::new(input, FormatPair::Embeddings(encoding, format), provider_format);
                plain.translate_embedding_request(input, encoding, format)?
            }
            ClientFormat::Images => {
                let format = provider_format.images.ok_or_else(|| Capability::Images.unsupported_error())?;
                Self::new(input, FormatPair::Images(format), provider_format).translate_image_request(input, format)?
            }
            ClientFormat::Rerank => {
                let format = provider_format.rerank.ok_or_else(|| Capability::Rerank.unsupported_error())?;
                Self::new(input, FormatPair::Rerank(format), provider_format).translate_rerank_request(input, format)?
            }
            ClientFormat::CountTokens(client) => {
                let format = provider_format.token_count.ok_or_else(|| Capability::TokenCount.unsupported_error())?;
                let plain = Self::new(input, FormatPair::TokenCount(format), provider_format);
                plain.translate_count_request(input, client, format)?
            }
            ClientFormat::FineTuning => {
                let format = provider_format.fine_tuning.ok_or_else(|| Capability::FineTuning.unsupported_error())?;
                let plain = Self::new(input, FormatPair::FineTuning(format), provider_format);
                plain.translate_tuning_request(input, format)?
            }
            ClientFormat::Batches => {
                let format = provider_format.batches.ok_or_else(|| Capability::Batches.unsupported_error())?;
                Self::new(input, FormatPair::Batches(format), provider_format).translate_batch_request(input, format)?
            }
            ClientFormat::ModelList => {
                let format = provider_format.model_list.ok_or_else(|| Capability::ModelList.unsupported_error())?;
                (Self::new(input, FormatPair::ModelList(format), provider_format), Vec::new())
            }
        };
        Ok((translation, body))
    }

    fn translate_chat_request(
        self,
        input: &TranslationInput<'_>,
        client: ClientChatFormat,
        format: &dyn ChatFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let (mut request, echoed_fields) = client.parse_request(input)?;
        request.drop_choice_without_tools();
        normalise_thinking(&mut request);
        let should_show_images = !input.strict || request.has_image_modality();
        let context = ResponseContext {
            model: request.model.clone(),
            should_show_thinking: should_show_images || client.should_show_thinking(&request),
            should_show_images,
            echoed_fields,
            document_names: request.document_names(),
            ..self.response_context
        };
        if let Some(effective_model) = input.hints.effective_model {
            effective_model.clone_into(&mut request.model);
        }
        request.tool_call_signatures.clone_from(&context.tool_call_signatures);
        request.max_stop_sequences = input.provider.max_stop_sequences;
        if let Some(betas) = input.hints.anthropic_betas
            && format.has_betas_in_body(&request.model)
            && !request.fields.contains_key("anthropic_beta")
        {
            request.fields.insert("anthropic_beta".into(), betas.into());
        }
        let should_hide_usage = client.has_optional_stream_usage() && request.stream && !requests_usage(input.body);
        let has_version = input.hints.anthropic_version.is_some() || input.hints.is_anthropic_client;
        let dropped_version = has_version.then(|| request.take_param("anthropic_version")).flatten();
        let body = format.write_request(&mut request)?;
        request.record_dropped_if_set("anthropic_version", dropped_version.as_ref());
        let (anthropic_betas, anthropic_version) = (request.betas.take(), request.api_version.take());
        let context = ResponseContext {
            renamed_tools: std::mem::take(&mut request.renamed_tools).into(),
            client_tools: Arc::new(std::mem::take(&mut request.client_tools)),
            ..context
        };
        let mut dropped_params = request.into_dropped_params();
        let body = apply_param_rules(input, Operation::ChatComplete, body, &mut dropped_params);
        let translation = Self {
            should_hide_usage,
            anthropic_betas,
            anthropic_version,
            response_context: context,
            dropped_params,
            ..self
        };
        Ok((translation, body))
    }

    fn translate_embedding_request(
        self,
        input: &TranslationInput<'_>,
        encoding: VectorEncoding,
        format: &'static dyn EmbeddingFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut texts = match encoding {
            VectorEncoding::GeminiSingle => gemini::texts::parse_embed_request(input.body, input.model)?,
            VectorEncoding::GeminiBatch => gemini::texts::parse_batch_embed_request(input.body, input.model)?,
            VectorEncoding::Floats | VectorEncoding::Base64 => EmbeddingRequest::parse(input.body)?,
        };
        if !texts.multimodal_inputs.is_empty() && !format.can_embed_images(&texts.model) {
            return Err(RequestError::new(
                texts.input_path,
                "this model embeds only text; it must be a string, or an array of strings",
            ));
        }
        let first_video = texts.multimodal_inputs.iter().position(|item| item.video.is_some());
        if let Some(at) = first_video.filter(|_| !format.can_embed_video(&texts.model)) {
            return Err(RequestError::new(
                format!("{}[{at}].video", texts.input_path),
                "this model does not embed videos; use `text` or `image`",
            ));
        }
        let body = format.write_embedding_request(&mut texts)?;
        let formats = FormatPair::Embeddings(texts.format, format);
        let mut dropped_params = texts.into_dropped_params();
        let body = apply_param_rules(input, Operation::Embed, body, &mut dropped_params);
        Ok((Self { formats, dropped_params, ..self }, body))
    }

    fn translate_image_request(
        self,
        input: &TranslationInput<'_>,
        format: &dyn ImageFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut request = ImageRequest::parse(input.body)?;
        let body = format.write_image_request(&mut request)?;
        Ok((Self { dropped_params: request.into_dropped_params(), ..self }, body))
    }

    fn translate_rerank_request(
        self,
        input: &TranslationInput<'_>,
        format: &dyn RerankFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut request = RerankRequest::parse(input.body)?;
        let mut echoed_fields = Fields::default();
        if request.should_return_documents {
            echoed_fields.insert(DOCUMENTS_KEY.into(), request.documents.clone().into());
        }
        let body = format.write_rerank_request(&mut request)?;
        Ok((Self { dropped_params: request.into_dropped_params(), ..self.with_echoed_fields(echoed_fields) }, body))
    }

    fn translate_count_request(
        self,
        input: &TranslationInput<'_>,
        client: CountFormat,
        format: &dyn TokenCountFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut request = match client {
            CountFormat::AnthropicMessages => anthropic_messages::parse_request(input.body)?,
            CountFormat::Gemini => gemini::parse_count_request(input.body, input.model)?,
            CountFormat::BedrockConverse => bedrock_converse::count_tokens::parse_request(input.body, input.model)?,
        };
        request.drop_choice_without_tools();
        normalise_thinking(&mut request);
        let body = format.write_count_request(&mut request)?;
        let anthropic_betas = request.betas.take();
        Ok((Self { anthropic_betas, dropped_params: request.dropped_params, ..self }, body))
    }

    /// Translates a request for a batch. Only a request that creates one has a body.
    fn translate_batch_request(
        mut self,
        input: &TranslationInput<'_>,
        format: &dyn BatchFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        self.page = PageQuery::parse(input.operation, input.hints.query)?;
        if input.operation != Operation::CreateBatch {
            return Ok((self, Vec::new()));
        }
        let mut batch = BatchRequest::parse(input)?;
        let echoed_fields = batch.echoed_fields();
        let body = format.write_batch_request(&mut batch)?;
        Ok((Self { dropped_params: batch.into_dropped_params(), ..self.with_echoed_fields(echoed_fields) }, body))
    }

    /// Translates a request for a fine-tuning job. Only a request that creates one has a body.
    fn translate_tuning_request(
        mut self,
        input: &TranslationInput<'_>,
        format: &dyn FineTuningFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        self.page = PageQuery::parse(input.operation, input.hints.query)?;
        if input.operation != Operation::CreateFinetune {
            return Ok((self, Vec::new()));
        }
        let mut job = FineTuningRequest::parse(input)?;
        let mut echoed_fields = job.echoed_fields();
        let body = format.write_tuning_request(&mut job)?;
        if let Some(name) = &job.job_name {
            echoed_fields.insert("id".into(), name.as_str().into());
        }
        Ok((Self { dropped_params: job.into_dropped_params(), ..self.with_echoed_fields(echoed_fields) }, body))
    }

    /// Creates a translation with the values that apply to all operations.
    fn new(input: &TranslationInput<'_>, formats: FormatPair, provider_format: &ProviderFormat) -> Self {
        let effective_model = input.hints.effective_model.unwrap_or(input.model);
        let response_context = ResponseContext {
            provider: input.provider.slug,
            model: input.model.to_owned(),
            created: input.now_ms / 1000,
            id_suffix: format!("{}-{:x}", input.now_ms, input.nonce),
            is_strict: input.strict,
            should_show_thinking: false,
            should_show_images: false,
            echoed_fields: Fields::default(),
            document_names: Arc::default(),
            renamed_tools: Arc::default(),
            client_tools: Arc::default(),
            report: ResponseReport::default(),
            tool_call_signatures: input
                .hints
                .tool_call_signatures
                .filter(|_| provider_format.signs_tool_calls(effective_model))
                .cloned(),
        };
        Self {
            formats,
            event_framing: provider_format.event_framing,
            error_fallback: input.provider.error_fallback,
            operation: input.operation,
            model_list_shape: input.hints.model_list_shape,
            should_hide_usage: false,
            page: PageQuery::default(),
            anthropic_betas: None,
            anthropic_version: None,
            next_page_token: None,
            response_context,
            dropped_params: DroppedParams::default(),
        }
    }

    fn with_echoed_fields(self, echoed_fields: Fields) -> Self {
        Self { response_context: ResponseContext { echoed_fields, ..self.response_context }, ..self }
    }

    /// Translates a complete response that has a success status. If the body is an error, or reports that the
    /// generation failed, returns the error in the client's format, with its own status.
    pub fn translate_response_or_failure(&self, body: &[u8]) -> Result<(u16, Vec<u8>), MalformedResponse> {
        let translate_hidden_error = || {
            let status = error_response::error_status(self.response_operation(), body)?;
            Some((status, self.translate_error(status, body, None)))
        };
        // Formats whose fields are all optional would read an error as an empty response.
        if may_begin_error(&body[..body.len().min(MAX_ERROR_START_BYTES)])
            && let Some(failure) = translate_hidden_error()
        {
            return Ok(failure);
        }
        let failure = match self.try_translate_response(body) {
            Ok(translated) => return Ok((200, translated)),
            Err(failure) => failure,
        };
        if let Some(failure) = translate_hidden_error() {
            return Ok(failure);
        }
        let message = match failure {
            ResponseFailure::FailedGeneration(message) => message,
            ResponseFailure::Malformed(fault) => return Err(fault),
        };
        let origin = ErrorOrigin {
            provider: self.response_context.provider,
            status: error_response::FAILED_GENERATION_STATUS,
            fallback: self.error_fallback,
            request_id: None,
        };
        let details = ErrorDetails { message: Some(message), ..ErrorDetails::default() };
        let api_format = self.operation.api_format().unwrap_or(ApiFormat::OpenAi);
        Ok((origin.status, error_response::translate_error(api_format, origin, details, body)))
    }

    /// Returns the operation whose response the provider sent. For a cancellation, this is the one that retrieves the
    /// job.
    fn response_operation(&self) -> Operation {
        match self.operation {
            Operation::CancelBatch => Operation::RetrieveBatch,
            Operation::CancelFinetune => Operation::RetrieveFinetune,
            operation => operation,
        }
    }

    /// Translates a complete response to the client's format.
    pub fn translate_response(&self, body: &[u8]) -> Result<Vec<u8>, MalformedResponse> {
        self.try_translate_response(body).map_err(Into::into)
    }

    /// Translates a complete response, and distinguishes a failed generation from a malformed response.
    fn try_translate_response(&self, body: &[u8]) -> Result<Vec<u8>, ResponseFailure> {
        if let FormatPair::Chat(client, format) = &self.formats {
            let context = &self.response_context;
            let mut writer = RecordingWriter::new(client.response_builder(context.clone()), context)
                .with_object_arguments(client.has_object_arguments());
            format.read_response(body, &mut writer)?;
            writer.reject_empty_response();
            return match writer.failure() {
                Some(message) => Err(ResponseFailure::FailedGeneration(message.to_owned())),
                None => Ok(writer.take_output()),
            };
        }
        Ok(self.translate_other_response(body)?)
    }

    /// Translates a complete response of an operation other than chat.
    fn translate_other_response(&self, body: &[u8]) -> Result<Vec<u8>, MalformedResponse> {
        let lacks = |missing: &str| MalformedResponse(format!("the response has no {missing}"));
        let read = || serde_json::from_slice::<serde_json::Value>(body);
        let context = &self.response_context;
        match &self.formats {
            FormatPair::PassThrough(format) => format.pass_through_response(self.operation, body),
            FormatPair::Chat(..) => Err(lacks("format other than chat")),
            FormatPair::Embeddings(encoding, format) => {
                let vectors = format.read_embeddings(&read()?).ok_or_else(|| lacks("vectors"))?;
                vectors.into_client_json(context, *encoding)
            }
            FormatPair::Images(format) => {
                let images = format.read_images(&read()?).ok_or_else(|| lacks("images"))?;
                if let Some(usage) = images.usage {
                    context.report.set_usage(usage);
                }
                Ok(images.into_client_json(context))
            }
            FormatPair::Rerank(format) => {
                let ranking = format.read_ranking(&read()?).ok_or_else(|| lacks("ranks"))?;
                Ok(ranking.into_client_json(context))
            }
            FormatPair::TokenCount(format) => {
                let count = format.read_token_count(&read()?).ok_or_else(|| lacks("count"))?;
                Ok(encode_token_count(self.operation, count))
            }
            FormatPair::ModelList(format) => {
                let listed = format.read_model_list(&read()?).ok_or_else(|| lacks("models"))?;
                Ok(self.encode_model_list(listed))
            }
            FormatPair::FineTuning(format) => {
                let parsed = if body.trim_ascii().is_empty() { serde_json::json!({}) } else { read()? };
                fine_tuning_response::encode_response(*format, &parsed, context, self.operation, &self.page)
            }
            FormatPair::Batches(format) => {
                batch_response::write_batch_response(*format, &read()?, context, self.operation, &self.page)
            }
        }
    }

    /// Returns true if the provider's response is already in the client's format.
    pub fn is_passthrough(&self) -> bool {
        matches!(self.formats, FormatPair::PassThrough(_))
    }

    /// Returns true if the request cancels a batch and the provider deletes cancelled batches.
    pub fn deletes_batch(&self) -> bool {
        self.operation == Operation::CancelBatch
            && matches!(&self.formats, FormatPair::Batches(format) if format.cancels_by_delete())
    }

    /// Returns true if the request generates images.
    pub fn generates_images(&self) -> bool {
        matches!(self.formats, FormatPair::Images(_))
    }

    /// Returns the response for an image that the provider sent as raw bytes.
    pub fn wrap_raw_image(&self, bytes: &[u8]) -> Vec<u8> {
        let images = vec![serde_json::json!({"b64_json": STANDARD.encode(bytes)})];
        ImageResponse { images, usage: None }.into_client_json(&self.response_context)
    }

    /// Merges the pages of a model list and returns it in the client's format.
    pub fn merge_model_pages(&self, pages: &[impl AsRef<[u8]>]) -> Result<Vec<u8>, MalformedResponse> {
        let mut models = Vec::new();
        for page in pages {
            let listed = match &self.formats {
                FormatPair::ModelList(format) => format.read_model_list(&serde_json::from_slice(page.as_ref())?),
                _ => None,
            };
            models.extend(listed.ok_or_else(|| MalformedResponse("the response has no models".into()))?);
        }
        Ok(self.encode_model_list(models))
    }

    fn encode_model_list(&self, models: Vec<ListedModel>) -> Vec<u8> {
        crate::model_list::encode_list(self.model_list_shape, models, self.response_context.provider)
    }

    /// Stores the token of the next page of a model list; returns true if there is another page.
    pub fn advance_page(&mut self, page: &[u8]) -> bool {
        self.next_page_token = crate::model_list::next_page_token(page);
        self.next_page_token.is_some()
    }

    /// Returns the transcoder from the provider's stream to the client's. Only chat defines streams; a stream in
    /// response to another request is read and written as chat completions.
    pub fn transcoder(&self) -> Transcoder {
        let (client, decoder) = match &self.formats {
            FormatPair::PassThrough(_) => return Transcoder::passthrough(self.event_framing),
            FormatPair::Chat(client, format) => (*client, format.stream_decoder()),
            _ => (ClientChatFormat::OpenAiChat, openai_chat::stream_decoder()),
        };
        let writer = RecordingWriter::new(client.stream_writer(self.response_context.clone()), &self.response_context)
            .with_object_arguments(client.streams_object_arguments());
        Transcoder::new(self.event_framing, decoder, writer)
    }

    /// Translates a provider's error to the client's format. The status does not change. `request_id` is the ID that
    /// the provider assigned, if known.
    pub fn translate_error(&self, status: u16, response: &[u8], request_id: Option<&str>) -> Vec<u8> {
        if self.is_passthrough() && is_anthropic_error(response) {
            return response.to_vec();
        }
        let origin =
            ErrorOrigin { provider: self.response_context.provider, status, fallback: self.error_fallback, request_id };
        let api_format = self.operation.api_format().unwrap_or(ApiFormat::OpenAi);
        error_response::translate_error(api_format, origin, parse_error(response), response)
    }

    /// Returns the content type of streams that are sent to the client.
    pub fn client_stream_type(&self) -> &'static str {
        let framing = match self.formats {
            FormatPair::Chat(client, _) if client.has_aws_event_stream() => EventFraming::AwsEventStream,
            _ => EventFraming::ServerSentEvents,
        };
        framing.content_type()
    }

    /// Returns the content type of streams that the provider sends.
    pub fn provider_stream_type(&self) -> &'static str {
        self.event_framing.content_type()
    }

    /// Returns the content type of the request body; `None` for the usual one.
    pub fn request_content_type(&self) -> Option<String> {
        if let FormatPair::Images(format) = self.formats { Some(format.image_request_content_type()) } else { None }
    }
}

/// Reason why a complete response cannot be translated.
enum ResponseFailure {
    Malformed(MalformedResponse),
    /// The response has a valid format and reports that the generation failed, with this message.
    FailedGeneration(String),
}

impl From<MalformedResponse> for ResponseFailure {
    fn from(fault: MalformedResponse) -> Self {
        Self::Malformed(fault)
    }
}

/// Returns the response to a token count request, in the client's format.
pub fn encode_token_count(operation: Operation, tokens: u64) -> Vec<u8> {
    let key = match operation {
        Operation::CountTokens => "totalTokens",
        Operation::CountConverse => "inputTokens",
        _ => "input_tokens",
    };
    format!("{{\"{key}\":{tokens}}}").into_bytes()
}

/// Returns true if an error already has Anthropic's format.
fn is_anthropic_error(response: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(response).is_ok_and(|response| response["type"] == "error")
}

/// Applies the provider's parameter rules to a request body. Adds the parameters that they drop to `dropped`.
fn apply_param_rules(
    input: &TranslationInput<'_>,
    operation: Operation,
    body: Vec<u8>,
    dropped: &mut DroppedParams,
) -> Vec<u8> {
    let Some((changed, dropped_fields)) = input.provider.param_rules(operation).apply(&body) else { return body };
    dropped.merge(&dropped_fields);
    changed
}

fn requests_usage(body: &[u8]) -> bool {
    crate::api_format::peek(body).is_ok_and(|peek| peek.include_usage == Some(true))
}
