//! Translation of requests and responses between API formats, so that any client format works with any provider.
//!
//! A client's request becomes a `ChatRequest`, and a provider's response becomes a sequence of `ResponseEvent`s.
//! Modules for client formats and modules for provider formats each know one side only. Requests that need no
//! translation do not come here.

pub(crate) mod dropped;
pub(crate) mod errors;
pub(crate) mod normalise;

pub use crate::chat::request::RequestError;
pub use crate::chat::response_context::ResponseContext;
pub use crate::chat::signatures::{ScopedSignatures, SignatureCache};
pub use crate::chat::transcoder::Transcoder;
pub use crate::translation::dropped::{DroppedFields, DroppedParams};
pub use crate::translation::normalise::Normaliser;

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{
    api_format::ApiFormat,
    catalog::{Options, Provider},
    operation::Operation,
};
use crate::{
    chat::{
        providers::{EventFraming, MalformedResponse, ProviderFormat},
        request::Fields,
        response_writer::{RecordingWriter, ResponseWriter},
        sequential_tool_calls::SequentialToolCallWriter,
    },
    citations::BlockCitationWriter,
    embeddings::request::{EmbeddingFormat, EmbeddingRequest},
    images::request::{ImageRequest, ImageResponse},
    jobs::{
        batch::BatchRequest,
        fine_tuning::{FineTuningRequest, PageQuery},
    },
    model_list::ListedModel,
    rerank::request::{DOCUMENTS_KEY, RerankRequest},
    translation::errors::ErrorOrigin,
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
    /// Query string without the question mark.
    pub query: &'a str,
    /// Provider options other than the credential.
    pub options: Option<&'a Options>,
    /// Model that determines the format of the request, if it is not the one in the body.
    pub effective_model: Option<&'a str>,
    /// Signatures of earlier tool calls for the same caller.
    pub signatures: Option<&'a ScopedSignatures>,
}

/// Format in which the client sends its request and expects the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientFormat {
    Chat,
    Completions,
    Messages,
    Responses,
    Gemini,
    Converse,
    /// Body of Claude models in Bedrock's `InvokeModel`.
    Invoke,
    Embeddings(EmbeddingFormat),
    Images,
    Rerank,
    CountTokens(CountFormat),
    ModelList,
    FineTuning,
    Batches,
}

/// Client format of a token count request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountFormat {
    Messages,
    Gemini,
    Converse,
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
        question: &TranslationInput<'_>,
        wire: &'static dyn ProviderFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let operation = question.operation;
        let unknown =
            || RequestError::new("$", format!("{} cannot be translated to this provider's API", operation.id()));
        let caller = client_format_of(operation).ok_or_else(unknown)?;
        if let Some(body) = wire.pass_through_request(question) {
            return Ok((
                Self { is_passthrough: true, ..Self::new(question, (caller, wire), DroppedParams::default()) },
                body?,
            ));
        }
        let (mut request, echo) = match caller {
            ClientFormat::Chat => (crate::chat::clients::openai_chat::parse_request(question.body)?, Fields::default()),
            ClientFormat::Messages => {
                (crate::chat::clients::anthropic_messages::parse_request(question.body)?, Fields::default())
            }
            ClientFormat::Responses => crate::chat::clients::openai_responses::parse_request(question.body)?,
            ClientFormat::Gemini => (
                crate::chat::clients::gemini::parse_request(
                    question.body,
                    question.model,
                    operation.is_always_streaming(),
                )?,
                Fields::default(),
            ),
            ClientFormat::Converse => (
                crate::chat::clients::bedrock_converse::parse_request(
                    question.body,
                    question.model,
                    operation.is_always_streaming(),
                )?,
                Fields::default(),
            ),
            ClientFormat::Invoke => (
                crate::chat::clients::bedrock_converse::invoke::parse_request(
                    question.body,
                    question.model,
                    operation.is_always_streaming(),
                )?,
                Fields::default(),
            ),
            ClientFormat::Embeddings(shape) => return Self::translate_embedding_request(question, wire, shape),
            ClientFormat::Completions => {
                (crate::chat::clients::openai_completions::parse_request(question.body)?, Fields::default())
            }
            ClientFormat::Images => return Self::translate_image_request(question, wire),
            ClientFormat::Rerank => return Self::translate_rerank_request(question, wire),
            ClientFormat::CountTokens(counted) => return Self::translate_count_request(question, wire, counted),
            ClientFormat::FineTuning | ClientFormat::Batches => {
                return Self::translate_job_request(question, (caller, wire));
            }
            ClientFormat::ModelList => {
                return Ok((Self::new(question, (caller, wire), DroppedParams::default()), Vec::new()));
            }
        };
        let images = !question.strict || request.has_image_modality();
        let shows_thoughts = match caller {
            ClientFormat::Gemini => crate::chat::clients::gemini::should_show_thinking(&request),
            _ => request.fields.get("thinking").is_some_and(|thinking| !thinking.is_null()),
        };
        let blocks = images || shows_thoughts;
        let plain = Self::new(question, (caller, wire), DroppedParams::default());
        let (model, documents) = (request.model.clone(), request.document_names());
        let context = ResponseContext {
            model,
            should_show_thinking: blocks,
            should_show_images: images,
            echoed_fields: echo,
            document_names: documents,
            ..plain.response_context
        };
        if let Some(effective_model) = question.hints.effective_model {
            effective_model.clone_into(&mut request.model);
        }
        request.signatures.clone_from(&context.signatures);
        if let Some(betas) = question.hints.anthropic_betas
            && wire.has_betas_in_body(&request.model)
            && !request.fields.contains_key("anthropic_beta")
        {
            request.fields.insert("anthropic_beta".into(), betas.into());
        }
        let hides_usage = matches!(caller, ClientFormat::Chat | ClientFormat::Completions)
            && request.stream
            && !requests_usage(question.body);
        let is_told = question.hints.anthropic_version.is_some() || question.hints.is_anthropic_client;
        let dropped_version = is_told.then(|| request.take_param("anthropic_version")).flatten();
        let mut body = wire.write_request(&mut request)?;
        request.record_dropped_if_set("anthropic_version", dropped_version.as_ref());
        let (betas, version) = (request.betas.take(), request.api_version.take());
        let mut dropped = request.into_dropped_params();
        if let Some((reworded, dropped_fields)) = question.provider.param_rules(Operation::ChatComplete).apply(&body) {
            dropped.merge(&dropped_fields);
            body = reworded;
        }
        Ok((
            Self {
                should_hide_usage: hides_usage,
                anthropic_betas: betas,
                anthropic_version: version,
                response_context: context,
                dropped_params: dropped,
                ..plain
            },
            body,
        ))
    }

    fn translate_embedding_request(
        question: &TranslationInput<'_>,
        wire: &'static dyn ProviderFormat,
        shape: EmbeddingFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut texts = match shape {
            EmbeddingFormat::GeminiSingle => {
                crate::chat::clients::gemini::texts::parse_embed_request(question.body, question.model)?
            }
            EmbeddingFormat::GeminiBatch => {
                crate::chat::clients::gemini::texts::parse_batch_embed_request(question.body, question.model)?
            }
            EmbeddingFormat::Floats | EmbeddingFormat::Base64 => EmbeddingRequest::parse(question.body)?,
        };
        if !texts.multimodal_inputs.is_empty() && !wire.can_embed_images(&texts.model) {
            return Err(RequestError::new(
                texts.input_path,
                "this model embeds only text; it must be a string, or an array of strings",
            ));
        }
        let film = texts.multimodal_inputs.iter().position(|item| item.video.is_some());
        if let Some(at) = film.filter(|_| !wire.can_embed_video(&texts.model)) {
            return Err(RequestError::new(
                format!("{}[{at}].video", texts.input_path),
                "this model does not embed videos; use `text` or `image`",
            ));
        }
        let mut body = wire.write_embedding_request(&mut texts)?;
        let caller = ClientFormat::Embeddings(texts.format);
        let mut dropped = texts.into_dropped_params();
        if let Some((reworded, dropped_fields)) = question.provider.param_rules(Operation::Embed).apply(&body) {
            dropped.merge(&dropped_fields);
            body = reworded;
        }
        Ok((Self::new(question, (caller, wire), dropped), body))
    }

    fn translate_image_request(
        question: &TranslationInput<'_>,
        wire: &'static dyn ProviderFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut picture = ImageRequest::parse(question.body)?;
        let body = wire.write_image_request(&mut picture)?;
        Ok((Self::new(question, (ClientFormat::Images, wire), picture.into_dropped_params()), body))
    }

    fn translate_rerank_request(
        question: &TranslationInput<'_>,
        wire: &'static dyn ProviderFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut ranking = RerankRequest::parse(question.body)?;
        let mut echo = Fields::default();
        if ranking.should_return_documents {
            echo.insert(DOCUMENTS_KEY.into(), ranking.documents.clone().into());
        }
        let body = wire.write_rerank_request(&mut ranking)?;
        let plain = Self::new(question, (ClientFormat::Rerank, wire), ranking.into_dropped_params());
        Ok((
            Self { response_context: ResponseContext { echoed_fields: echo, ..plain.response_context }, ..plain },
            body,
        ))
    }

    fn translate_count_request(
        question: &TranslationInput<'_>,
        wire: &'static dyn ProviderFormat,
        counted: CountFormat,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let mut request = match counted {
            CountFormat::Messages => crate::chat::clients::anthropic_messages::parse_request(question.body)?,
            CountFormat::Gemini => crate::chat::clients::gemini::parse_count_request(question.body, question.model)?,
            CountFormat::Converse => {
                crate::chat::clients::bedrock_converse::count_tokens::parse_request(question.body, question.model)?
            }
        };
        let body = wire.write_count_request(&mut request)?;
        let betas = request.betas.take();
        Ok((
            Self {
                anthropic_betas: betas,
                ..Self::new(question, (ClientFormat::CountTokens(counted), wire), request.dropped_params)
            },
            body,
        ))
    }

    /// Translates a request for a batch or a fine-tuning job. Only requests that create one have a body.
    fn translate_job_request(
        question: &TranslationInput<'_>,
        (caller, wire): (ClientFormat, &'static dyn ProviderFormat),
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let page = PageQuery::parse(question.operation, question.hints.query)?;
        let plain = Self { page, ..Self::new(question, (caller, wire), DroppedParams::default()) };
        if question.operation == Operation::CreateBatch {
            let mut run = BatchRequest::parse(question)?;
            let echo = run.echoed_fields();
            let body = wire.write_batch_request(&mut run)?;
            let context = ResponseContext { echoed_fields: echo, ..plain.response_context };
            return Ok((Self { response_context: context, dropped_params: run.into_dropped_params(), ..plain }, body));
        }
        if question.operation != Operation::CreateFinetune {
            return Ok((plain, Vec::new()));
        }
        let mut tune = FineTuningRequest::parse(question)?;
        let mut echo = tune.echoed_fields();
        let body = wire.write_tuning_request(&mut tune)?;
        if let Some(name) = &tune.job_name {
            echo.insert("id".into(), name.as_str().into());
        }
        let context = ResponseContext { echoed_fields: echo, ..plain.response_context };
        Ok((Self { response_context: context, dropped_params: tune.into_dropped_params(), ..plain }, body))
    }

    /// Creates a translation with the values that apply to all operations; chat sets more.
    fn new(
        question: &TranslationInput<'_>,
        (client_format, provider_format): (ClientFormat, &'static dyn ProviderFormat),
        dropped_params: DroppedParams,
    ) -> Self {
        let effective_model = question.hints.effective_model.unwrap_or(question.model);
        let response_context = ResponseContext {
            provider: question.provider.slug(),
            model: question.model.to_owned(),
            created: question.now_ms / 1000,
            id_suffix: format!("{}-{:x}", question.now_ms, question.nonce),
            is_strict: question.strict,
            should_show_thinking: false,
            should_show_images: false,
            echoed_fields: Fields::default(),
            document_names: Arc::default(),
            dropped_fields: DroppedFields::default(),
            signatures: question
                .hints
                .signatures
                .filter(|_| provider_format.signs_tool_calls(effective_model))
                .cloned(),
        };
        let operation = question.operation;
        let page = PageQuery::default();
        let (is_passthrough, should_hide_usage, anthropic_betas, anthropic_version, next_page_token) =
            (false, false, None, None, None);
        let is_anthropic_client = question.hints.is_anthropic_client;
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
        let writer: Box<dyn ResponseWriter> = match self.client_format {
            ClientFormat::Embeddings(shape) => {
                let vectors = self.provider_format.read_embeddings(&read()?).ok_or_else(|| lacks("vectors"))?;
                return vectors.into_client_json(&self.response_context, shape);
            }
            ClientFormat::Images => {
                let drawn = self.provider_format.read_images(&read()?).ok_or_else(|| lacks("images"))?;
                if let Some(usage) = drawn.usage {
                    self.response_context.dropped_fields.set_usage(usage);
                }
                return Ok(drawn.into_client_json(&self.response_context));
            }
            ClientFormat::Rerank => {
                let ranked = self.provider_format.read_ranking(&read()?).ok_or_else(|| lacks("ranks"))?;
                return Ok(ranked.into_client_json(&self.response_context));
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
            ClientFormat::Chat => Box::new(BlockCitationWriter::new(
                crate::chat::clients::openai_chat::ResponseBuilder::new(self.response_context.clone()),
            )),
            ClientFormat::Completions => {
                Box::new(crate::chat::clients::openai_completions::ResponseBuilder::new(self.response_context.clone()))
            }
            ClientFormat::Messages | ClientFormat::Invoke => {
                Box::new(crate::chat::clients::anthropic_messages::ResponseBuilder::new(self.response_context.clone()))
            }
            ClientFormat::Gemini => {
                Box::new(crate::chat::clients::gemini::ResponseBuilder::new(self.response_context.clone()))
            }
            ClientFormat::Converse => {
                Box::new(crate::chat::clients::bedrock_converse::ResponseBuilder::new(self.response_context.clone()))
            }
            ClientFormat::Responses => Box::new(BlockCitationWriter::new(
                crate::chat::clients::openai_responses::ResponseBuilder::new(self.response_context.clone()),
            )),
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
        let writer: Box<dyn ResponseWriter> = match self.client_format {
            ClientFormat::Completions => {
                Box::new(crate::chat::clients::openai_completions::StreamWriter::new(self.response_context.clone()))
            }
            ClientFormat::Chat
            | ClientFormat::Embeddings(_)
            | ClientFormat::Images
            | ClientFormat::Rerank
            | ClientFormat::CountTokens(_)
            | ClientFormat::ModelList
            | ClientFormat::FineTuning
            | ClientFormat::Batches => Box::new(BlockCitationWriter::new(
                crate::chat::clients::openai_chat::StreamWriter::new(self.response_context.clone()),
            )),
            ClientFormat::Messages => Box::new(SequentialToolCallWriter::new(
                crate::chat::clients::anthropic_messages::StreamWriter::new(self.response_context.clone()),
            )),
            ClientFormat::Gemini => {
                Box::new(crate::chat::clients::gemini::StreamWriter::new(self.response_context.clone()))
            }
            ClientFormat::Converse => Box::new(SequentialToolCallWriter::new(
                crate::chat::clients::bedrock_converse::StreamWriter::new(self.response_context.clone()),
            )),
            ClientFormat::Invoke => Box::new(SequentialToolCallWriter::new(
                crate::chat::clients::bedrock_converse::invoke::StreamWriter::new(self.response_context.clone()),
            )),
            ClientFormat::Responses => Box::new(BlockCitationWriter::new(
                crate::chat::clients::openai_responses::StreamWriter::new(self.response_context.clone()),
            )),
        };
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
        match self.client_format {
            ClientFormat::Converse | ClientFormat::Invoke => EventFraming::AwsEventStream.content_type(),
            _ => EventFraming::ServerSentEvents.content_type(),
        }
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

/// Returns true if the operation generates text and can be translated to another API format.
pub fn is_chat_operation(operation: Operation) -> bool {
    !matches!(
        client_format_of(operation),
        None | Some(
            ClientFormat::Embeddings(_)
                | ClientFormat::Images
                | ClientFormat::Rerank
                | ClientFormat::CountTokens(_)
                | ClientFormat::ModelList
                | ClientFormat::FineTuning
                | ClientFormat::Batches
        )
    )
}

fn client_format_of(operation: Operation) -> Option<ClientFormat> {
    match operation {
        Operation::ChatComplete => Some(ClientFormat::Chat),
        Operation::Complete => Some(ClientFormat::Completions),
        Operation::Messages => Some(ClientFormat::Messages),
        Operation::CreateModelResponse => Some(ClientFormat::Responses),
        Operation::GenerateContent | Operation::StreamGenerateContent => Some(ClientFormat::Gemini),
        Operation::Converse | Operation::ConverseStream => Some(ClientFormat::Converse),
        Operation::InvokeModel | Operation::InvokeModelStream => Some(ClientFormat::Invoke),
        Operation::Embed => Some(ClientFormat::Embeddings(EmbeddingFormat::Floats)),
        Operation::EmbedContent => Some(ClientFormat::Embeddings(EmbeddingFormat::GeminiSingle)),
        Operation::BatchEmbedContents => Some(ClientFormat::Embeddings(EmbeddingFormat::GeminiBatch)),
        Operation::ImageGenerate => Some(ClientFormat::Images),
        Operation::Rerank => Some(ClientFormat::Rerank),
        Operation::MessagesCountTokens => Some(ClientFormat::CountTokens(CountFormat::Messages)),
        Operation::CountTokens => Some(ClientFormat::CountTokens(CountFormat::Gemini)),
        Operation::CountConverse => Some(ClientFormat::CountTokens(CountFormat::Converse)),
        Operation::Models => Some(ClientFormat::ModelList),
        _ if operation.is_fine_tuning() => Some(ClientFormat::FineTuning),
        _ if operation.is_batch() => Some(ClientFormat::Batches),
        _ => None,
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

/// Validates a token count request of Bedrock and returns the body of the request that is to be counted.
pub(crate) fn extract_counted_body(body: &[u8]) -> Result<Vec<u8>, RequestError> {
    crate::chat::clients::bedrock_converse::count_tokens::parse_request(body, "")?;
    Ok(crate::chat::clients::bedrock_converse::count_tokens::extract_inner_request(body)?.0)
}

/// Returns true if an error already has Anthropic's format.
fn is_anthropic_error(response: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(response).is_ok_and(|response| response["type"] == "error")
}

fn requests_usage(body: &[u8]) -> bool {
    crate::api_format::peek(body).is_ok_and(|peek| peek.include_usage == Some(true))
}
