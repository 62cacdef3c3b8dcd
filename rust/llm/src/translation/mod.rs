//! Translation of requests and responses between API formats, so that any client format works with any provider.
//!
//! A client's request becomes a `ChatRequest`, and a provider's response becomes a sequence of `ResponseEvent`s.
//! Modules for client formats and modules for provider formats each know one side only. Requests that need no
//! translation do not come here.

mod client_format;
pub(crate) mod dropped;
pub(crate) mod errors;
pub(crate) mod normalise;

pub use crate::chat::request::RequestError;
pub use crate::chat::response_context::ResponseContext;
pub use crate::chat::signatures::{ScopedSignatures, SignatureCache};
pub use crate::chat::transcoder::Transcoder;
pub use crate::translation::client_format::is_chat_operation;
pub use crate::translation::dropped::{DroppedFields, DroppedParams};
pub use crate::translation::normalise::Normaliser;

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{
    api_format::format::ApiFormat,
    catalog::{Options, Provider},
    operation::Operation,
};
use crate::{
    chat::{
        providers::{EventFraming, MalformedResponse, ProviderFormat},
        request::Fields,
        response_writer::{RecordingWriter, ResponseWriter},
    },
    embeddings::request::{EmbeddingFormat, EmbeddingRequest},
    images::request::{ImageRequest, ImageResponse},
    jobs::{
        batch::BatchRequest,
        fine_tuning::{FineTuningRequest, PageQuery},
    },
    model_list::ListedModel,
    rerank::request::{DOCUMENTS_KEY, RerankRequest},
    translation::{
        client_format::{ChatFormat, ClientFormat, CountFormat},
        errors::ErrorOrigin,
    },
};

/// Request that is to be translated to the provider's API format, with its context.
pub struct TranslationInput<'a> {
    pub operation: Operation,
    pub provider: &'a dyn Provider,
    pub body: &'a [u8],
    /// Model name from the body, or from the path if the body has none.
    pub model: &'a str,
    pub hints: RequestHints<'a>,
    /// True if the response may contain only fields of the client's API format.
    pub strict: bool,
    /// Current time in milliseconds since 1970.
    pub now_ms: u64,
    /// Distinguishes generated IDs of the same millisecond.
    pub nonce: u32,
}

/// Information about a request that is not in its body.
#[derive(Debug, Default, Clone, Copy)]
pub struct RequestHints<'a> {
    /// Requested beta features of Anthropic's API. `anthropic_version` is the requested version of that API.
    pub anthropic_betas: Option<&'a str>,
    pub anthropic_version: Option<&'a str>,
    /// True if the client uses Anthropic's API and therefore expects model lists in Anthropic's format.
    pub is_anthropic_client: bool,
    /// Query string without the input mark.
    pub query: &'a str,
    /// Provider options other than the credential.
    pub options: Option<&'a Options>,
    /// Model that determines the format of the request, if it is not the one in the body.
    pub effective_model: Option<&'a str>,
    /// Signatures of earlier tool calls for the same caller.
    pub signatures: Option<&'a ScopedSignatures>,
}

/// Translated request, with what is needed to translate its response.
pub struct Translation {
    client_format: ClientFormat,
    provider_format: &'static dyn ProviderFormat,
    operation: Operation,
    /// True if request and response keep the client's format and only change where the host of the model requires it.
    pub is_passthrough: bool,
    /// True if the client uses Anthropic's API.
    is_anthropic_client: bool,
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
        provider_format: &'static dyn ProviderFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let operation = input.operation;
        let unknown =
            || RequestError::new("$", format!("{} cannot be translated to this provider's API", operation.id()));
        let client_format = ClientFormat::from_operation(operation).ok_or_else(unknown)?;
        if let Some(body) = provider_format.pass_through_request(input) {
            return Ok((
                Self {
                    is_passthrough: true,
                    ..Self::new(input, (client_format, provider_format), DroppedParams::default())
                },
                body?,
            ));
        }
        let plain = || Self::new(input, (client_format, provider_format), DroppedParams::default());
        match client_format {
            ClientFormat::Chat(format) => Self::translate_chat_request(input, provider_format, format),
            ClientFormat::Embeddings(format) => Self::translate_embedding_request(input, provider_format, format),
            ClientFormat::Images => Self::translate_image_request(input, provider_format),
            ClientFormat::Rerank => Self::translate_rerank_request(input, provider_format),
            ClientFormat::CountTokens(format) => Self::translate_count_request(input, provider_format, format),
            ClientFormat::FineTuning | ClientFormat::Batches => {
                Self::translate_job_request(input, (client_format, provider_format))
            }
            ClientFormat::ModelList => Ok((plain(), Vec::new())),
        }
    }

    fn translate_chat_request(
        input: &TranslationInput<'_>,
        provider_format: &'static dyn ProviderFormat,
        format: ChatFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let plain = Self::new(input, (ClientFormat::Chat(format), provider_format), DroppedParams::default());
        let (mut request, echoed_fields) = format.parse_request(input)?;
        let should_show_images = !input.strict || request.has_image_modality();
        let context = ResponseContext {
            model: request.model.clone(),
            should_show_thinking: should_show_images || format.should_show_thinking(&request),
            should_show_images,
            echoed_fields,
            document_names: request.document_names(),
            ..plain.response_context
        };
        if let Some(effective_model) = input.hints.effective_model {
            effective_model.clone_into(&mut request.model);
        }
        request.signatures.clone_from(&context.signatures);
        if let Some(betas) = input.hints.anthropic_betas
            && provider_format.has_betas_in_body(&request.model)
            && !request.fields.contains_key("anthropic_beta")
        {
            request.fields.insert("anthropic_beta".into(), betas.into());
        }
        let should_hide_usage = format.has_optional_stream_usage() && request.stream && !requests_usage(input.body);
        let has_version = input.hints.anthropic_version.is_some() || input.hints.is_anthropic_client;
        let dropped_version = has_version.then(|| request.take_param("anthropic_version")).flatten();
        let body = provider_format.write_request(&mut request)?;
        request.record_dropped_if_set("anthropic_version", dropped_version.as_ref());
        let (anthropic_betas, anthropic_version) = (request.betas.take(), request.api_version.take());
        let mut dropped_params = request.into_dropped_params();
        let body = apply_param_rules(input, Operation::ChatComplete, body, &mut dropped_params);
        let translation = Self {
            should_hide_usage,
            anthropic_betas,
            anthropic_version,
            response_context: context,
            dropped_params,
            ..plain
        };
        Ok((translation, body))
    }

    fn translate_embedding_request(
        input: &TranslationInput<'_>,
        provider_format: &'static dyn ProviderFormat,
        shape: EmbeddingFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut texts = match shape {
            EmbeddingFormat::GeminiSingle => {
                crate::chat::clients::gemini::texts::parse_embed_request(input.body, input.model)?
            }
            EmbeddingFormat::GeminiBatch => {
                crate::chat::clients::gemini::texts::parse_batch_embed_request(input.body, input.model)?
            }
            EmbeddingFormat::Floats | EmbeddingFormat::Base64 => EmbeddingRequest::parse(input.body)?,
        };
        if !texts.multimodal_inputs.is_empty() && !provider_format.can_embed_images(&texts.model) {
            return Err(RequestError::new(
                texts.input_path,
                "this model embeds only text; it must be a string, or an array of strings",
            ));
        }
        let first_video = texts.multimodal_inputs.iter().position(|item| item.video.is_some());
        if let Some(at) = first_video.filter(|_| !provider_format.can_embed_video(&texts.model)) {
            return Err(RequestError::new(
                format!("{}[{at}].video", texts.input_path),
                "this model does not embed videos; use `text` or `image`",
            ));
        }
        let body = provider_format.write_embedding_request(&mut texts)?;
        let client_format = ClientFormat::Embeddings(texts.format);
        let mut dropped = texts.into_dropped_params();
        let body = apply_param_rules(input, Operation::Embed, body, &mut dropped);
        Ok((Self::new(input, (client_format, provider_format), dropped), body))
    }

    fn translate_image_request(
        input: &TranslationInput<'_>,
        provider_format: &'static dyn ProviderFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut image_request = ImageRequest::parse(input.body)?;
        let body = provider_format.write_image_request(&mut image_request)?;
        Ok((Self::new(input, (ClientFormat::Images, provider_format), image_request.into_dropped_params()), body))
    }

    fn translate_rerank_request(
        input: &TranslationInput<'_>,
        provider_format: &'static dyn ProviderFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut rerank_request = RerankRequest::parse(input.body)?;
        let mut echoed_fields = Fields::default();
        if rerank_request.should_return_documents {
            echoed_fields.insert(DOCUMENTS_KEY.into(), rerank_request.documents.clone().into());
        }
        let body = provider_format.write_rerank_request(&mut rerank_request)?;
        let plain = Self::new(input, (ClientFormat::Rerank, provider_format), rerank_request.into_dropped_params());
        Ok((Self { response_context: ResponseContext { echoed_fields, ..plain.response_context }, ..plain }, body))
    }

    fn translate_count_request(
        input: &TranslationInput<'_>,
        provider_format: &'static dyn ProviderFormat,
        format: CountFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut request = match format {
            CountFormat::AnthropicMessages => crate::chat::clients::anthropic_messages::parse_request(input.body)?,
            CountFormat::Gemini => crate::chat::clients::gemini::parse_count_request(input.body, input.model)?,
            CountFormat::BedrockConverse => {
                crate::chat::clients::bedrock_converse::count_tokens::parse_request(input.body, input.model)?
            }
        };
        let body = provider_format.write_count_request(&mut request)?;
        let betas = request.betas.take();
        Ok((
            Self {
                anthropic_betas: betas,
                ..Self::new(input, (ClientFormat::CountTokens(format), provider_format), request.dropped_params)
            },
            body,
        ))
    }

    /// Translates a request for a batch or a fine-tuning job. Only requests that create one have a body.
    fn translate_job_request(
        input: &TranslationInput<'_>,
        (client_format, provider_format): (ClientFormat, &'static dyn ProviderFormat),
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let page = PageQuery::parse(input.operation, input.hints.query)?;
        let plain = Self { page, ..Self::new(input, (client_format, provider_format), DroppedParams::default()) };
        if input.operation == Operation::CreateBatch {
            let mut batch = BatchRequest::parse(input)?;
            let echoed_fields = batch.echoed_fields();
            let body = provider_format.write_batch_request(&mut batch)?;
            let context = ResponseContext { echoed_fields, ..plain.response_context };
            return Ok((
                Self { response_context: context, dropped_params: batch.into_dropped_params(), ..plain },
                body,
            ));
        }
        if input.operation != Operation::CreateFinetune {
            return Ok((plain, Vec::new()));
        }
        let mut job = FineTuningRequest::parse(input)?;
        let mut echoed_fields = job.echoed_fields();
        let body = provider_format.write_tuning_request(&mut job)?;
        if let Some(name) = &job.job_name {
            echoed_fields.insert("id".into(), name.as_str().into());
        }
        let context = ResponseContext { echoed_fields, ..plain.response_context };
        Ok((Self { response_context: context, dropped_params: job.into_dropped_params(), ..plain }, body))
    }

    /// Creates a translation with the values that apply to all operations; chat sets more.
    fn new(
        input: &TranslationInput<'_>,
        (client_format, provider_format): (ClientFormat, &'static dyn ProviderFormat),
        dropped_params: DroppedParams,
    ) -> Self {
        let effective_model = input.hints.effective_model.unwrap_or(input.model);
        let response_context = ResponseContext {
            provider: input.provider.slug(),
            model: input.model.to_owned(),
            created: input.now_ms / 1000,
            id_suffix: format!("{}-{:x}", input.now_ms, input.nonce),
            is_strict: input.strict,
            should_show_thinking: false,
            should_show_images: false,
            echoed_fields: Fields::default(),
            document_names: Arc::default(),
            dropped_fields: DroppedFields::default(),
            signatures: input.hints.signatures.filter(|_| provider_format.signs_tool_calls(effective_model)).cloned(),
        };
        let operation = input.operation;
        let page = PageQuery::default();
        let (is_passthrough, should_hide_usage, anthropic_betas, anthropic_version, next_page_token) =
            (false, false, None, None, None);
        let is_anthropic_client = input.hints.is_anthropic_client;
        Self {
            client_format,
            provider_format,
            operation,
            is_passthrough,
            is_anthropic_client,
            should_hide_usage,
            page,
            anthropic_betas,
            anthropic_version,
            next_page_token,
            response_context,
            dropped_params,
        }
    }

    /// Translates a complete response to the client's format.
    pub fn translate_response(&self, body: &[u8]) -> Result<Vec<u8>, MalformedResponse> {
        if self.is_passthrough {
            return self.provider_format.pass_through_response(self.operation, body);
        }
        let lacks = |missing: &str| MalformedResponse(format!("the response has no {missing}"));
        let read = || serde_json::from_slice::<serde_json::Value>(body);
        let writer = match self.client_format {
            ClientFormat::Embeddings(shape) => {
                let vectors = self.provider_format.read_embeddings(&read()?).ok_or_else(|| lacks("vectors"))?;
                return vectors.into_client_json(&self.response_context, shape);
            }
            ClientFormat::Images => {
                let images = self.provider_format.read_images(&read()?).ok_or_else(|| lacks("images"))?;
                if let Some(usage) = images.usage {
                    self.response_context.dropped_fields.set_usage(usage);
                }
                return Ok(images.into_client_json(&self.response_context));
            }
            ClientFormat::Rerank => {
                let ranking = self.provider_format.read_ranking(&read()?).ok_or_else(|| lacks("ranks"))?;
                return Ok(ranking.into_client_json(&self.response_context));
            }
            ClientFormat::CountTokens(_) => {
                let count = self.provider_format.read_token_count(&read()?).ok_or_else(|| lacks("count"))?;
                return Ok(encode_token_count(self.operation, count));
            }
            ClientFormat::ModelList => {
                let listed = self.provider_format.read_model_list(&read()?).ok_or_else(|| lacks("models"))?;
                return Ok(self.encode_model_list(listed));
            }
            ClientFormat::FineTuning => {
                let parsed = if body.trim_ascii().is_empty() { serde_json::json!({}) } else { read()? };
                return crate::jobs::fine_tuning::encode_response(
                    self.provider_format,
                    &parsed,
                    &self.response_context,
                    (self.operation, &self.page),
                );
            }
            ClientFormat::Batches => {
                return crate::jobs::batch::write_batch_response(
                    self.provider_format,
                    &read()?,
                    &self.response_context,
                    (self.operation, &self.page),
                );
            }
            ClientFormat::Chat(format) => format.response_builder(self.response_context.clone()),
        };
        let mut writer = RecordingWriter::new(writer, &self.response_context);
        self.provider_format.read_response(body, &mut writer)?;
        Ok(writer.take_output())
    }

    /// Returns true if the request cancels a batch and the provider deletes cancelled batches.
    pub fn deletes_batch(&self) -> bool {
        self.operation == Operation::CancelBatch && self.provider_format.cancels_by_delete()
    }

    /// Returns true if the request generates images.
    pub fn generates_images(&self) -> bool {
        self.client_format == ClientFormat::Images
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
            let listed = self.provider_format.read_model_list(&serde_json::from_slice(page.as_ref())?);
            models.extend(listed.ok_or_else(|| MalformedResponse("the response has no models".into()))?);
        }
        Ok(self.encode_model_list(models))
    }

    fn encode_model_list(&self, models: Vec<ListedModel>) -> Vec<u8> {
        if self.is_anthropic_client {
            crate::model_list::encode_anthropic_list(&models)
        } else {
            crate::model_list::encode_openai_list(models, self.response_context.provider)
        }
    }

    /// Stores the token of the next page of a model list; returns true if there is another page.
    pub fn advance_page(&mut self, page: &[u8]) -> bool {
        self.next_page_token = crate::model_list::next_page_token(page);
        self.next_page_token.is_some()
    }

    /// Returns the transcoder from the provider's stream to the client's.
    pub fn transcoder(&self) -> Transcoder {
        if self.is_passthrough {
            return Transcoder::passthrough(self.provider_format.event_framing());
        }
        let format = match self.client_format {
            ClientFormat::Chat(format) => format,
            _ => ChatFormat::OpenAiChat,
        };
        let writer = format.stream_writer(self.response_context.clone());
        let writer = RecordingWriter::new(writer, &self.response_context);
        Transcoder::new(self.provider_format.event_framing(), self.provider_format.stream_decoder(), writer)
    }

    /// Translates a provider's error to the client's format. The status does not change. `request_id` is the ID that
    /// the provider assigned, if known.
    pub fn translate_error(&self, status: u16, response: &[u8], request_id: Option<&str>) -> Vec<u8> {
        if self.is_passthrough && is_anthropic_error(response) {
            return response.to_vec();
        }
        let origin = ErrorOrigin { provider: self.response_context.provider, status, request_id };
        let dialect = self.operation.api_format().unwrap_or(ApiFormat::OpenAi);
        errors::translate_error(dialect, origin, self.provider_format.parse_error(response), response)
    }

    /// Returns the content type of streams that are sent to the client.
    pub fn client_stream_type(&self) -> &'static str {
        let framing = if self.client_format.has_aws_event_stream() {
            EventFraming::AwsEventStream
        } else {
            EventFraming::ServerSentEvents
        };
        framing.content_type()
    }

    /// Returns the content type of streams that the provider sends.
    pub fn provider_stream_type(&self) -> &'static str {
        self.provider_format.event_framing().content_type()
    }

    /// Returns the content type of the request body; `None` for the usual one.
    pub fn request_content_type(&self) -> Option<String> {
        self.generates_images().then(|| self.provider_format.image_request_content_type())
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

/// Validates a token count request of Bedrock and returns the body of the request that is to be format.
pub(crate) fn extract_counted_body(body: &[u8]) -> Result<Vec<u8>, RequestError> {
    crate::chat::clients::bedrock_converse::count_tokens::parse_request(body, "")?;
    Ok(crate::chat::clients::bedrock_converse::count_tokens::extract_inner_request(body)?.0)
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
