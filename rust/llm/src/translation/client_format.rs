//! API formats of clients, by operation. `ClientChatFormat` parses a chat request and selects the writer of its
//! response.

use crate::{
    chat::{
        block_citations::BlockCitationWriter,
        clients::{
            anthropic_messages, bedrock_converse, bedrock_converse::invoke, gemini, openai_chat, openai_completions,
            openai_responses,
        },
        request::ChatRequest,
        response_context::ResponseContext,
        response_writer::ResponseWriter,
        sequential_tool_calls::SequentialToolCallWriter,
    },
    embeddings::request::VectorEncoding,
    errors::RequestError,
    fields::Fields,
    operation::Operation,
    translation_input::TranslationInput,
};

/// Format in which the client sends its request and expects the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientFormat {
    Chat(ClientChatFormat),
    Embeddings(VectorEncoding),
    Images,
    Rerank,
    CountTokens(CountFormat),
    ModelList,
    FineTuning,
    Batches,
}

/// Client format of a request that generates text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientChatFormat {
    OpenAiChat,
    OpenAiCompletions,
    OpenAiResponses,
    AnthropicMessages,
    Gemini,
    BedrockConverse,
    /// Body of Claude models in Bedrock's `InvokeModel`.
    BedrockInvoke,
}

/// Client format of a token count request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountFormat {
    AnthropicMessages,
    Gemini,
    BedrockConverse,
}

impl ClientFormat {
    /// Returns the format of an operation; `None` if the operation cannot be translated.
    pub fn from_operation(operation: Operation) -> Option<Self> {
        match operation {
            Operation::ChatComplete => Some(Self::Chat(ClientChatFormat::OpenAiChat)),
            Operation::Complete => Some(Self::Chat(ClientChatFormat::OpenAiCompletions)),
            Operation::CreateModelResponse => Some(Self::Chat(ClientChatFormat::OpenAiResponses)),
            Operation::Messages => Some(Self::Chat(ClientChatFormat::AnthropicMessages)),
            Operation::GenerateContent | Operation::StreamGenerateContent => Some(Self::Chat(ClientChatFormat::Gemini)),
            Operation::Converse | Operation::ConverseStream => Some(Self::Chat(ClientChatFormat::BedrockConverse)),
            Operation::InvokeModel | Operation::InvokeModelStream => Some(Self::Chat(ClientChatFormat::BedrockInvoke)),
            Operation::Embed => Some(Self::Embeddings(VectorEncoding::Floats)),
            Operation::EmbedContent => Some(Self::Embeddings(VectorEncoding::GeminiSingle)),
            Operation::BatchEmbedContents => Some(Self::Embeddings(VectorEncoding::GeminiBatch)),
            Operation::ImageGenerate => Some(Self::Images),
            Operation::Rerank => Some(Self::Rerank),
            Operation::MessagesCountTokens => Some(Self::CountTokens(CountFormat::AnthropicMessages)),
            Operation::CountTokens => Some(Self::CountTokens(CountFormat::Gemini)),
            Operation::CountConverse => Some(Self::CountTokens(CountFormat::BedrockConverse)),
            Operation::Models => Some(Self::ModelList),
            _ if operation.is_fine_tuning() => Some(Self::FineTuning),
            _ if operation.is_batch() => Some(Self::Batches),
            _ => None,
        }
    }
}

impl ClientChatFormat {
    /// Returns true if streams are framed as AWS event streams.
    pub fn has_aws_event_stream(self) -> bool {
        matches!(self, Self::BedrockConverse | Self::BedrockInvoke)
    }

    /// Returns true if complete responses contain the arguments of tool calls as objects.
    pub fn has_object_arguments(self) -> bool {
        matches!(self, Self::AnthropicMessages | Self::Gemini | Self::BedrockConverse | Self::BedrockInvoke)
    }

    /// Returns true if streams contain the arguments of tool calls as objects. Other streams contain them in parts.
    pub fn streams_object_arguments(self) -> bool {
        self == Self::Gemini
    }

    /// Parses a request. Also returns its fields that the response repeats.
    pub fn parse_request(self, input: &TranslationInput<'_>) -> Result<(ChatRequest, Fields), RequestError> {
        let (body, model) = (input.body, input.model);
        let is_streaming = input.operation.is_always_streaming();
        let request = match self {
            Self::OpenAiChat => openai_chat::parse_request(body)?,
            Self::OpenAiCompletions => openai_completions::parse_request(body)?,
            Self::OpenAiResponses => return openai_responses::parse_request(body),
            Self::AnthropicMessages => anthropic_messages::parse_request(body)?,
            Self::Gemini => gemini::parse_request(body, model, is_streaming)?,
            Self::BedrockConverse => bedrock_converse::parse_request(body, model, is_streaming)?,
            Self::BedrockInvoke => invoke::parse_request(body, model, is_streaming)?,
        };
        Ok((request, Fields::default()))
    }

    /// Returns true if the client asks for the model's thinking.
    pub fn should_show_thinking(self, request: &ChatRequest) -> bool {
        match self {
            Self::Gemini => gemini::should_show_thinking(request),
            _ => request.fields.get("thinking").is_some_and(|thinking| !thinking.is_null()),
        }
    }

    /// Returns true if streams contain the usage only if the client asks for it.
    pub fn has_optional_stream_usage(self) -> bool {
        matches!(self, Self::OpenAiChat | Self::OpenAiCompletions)
    }

    /// Returns the writer of a complete response.
    pub fn response_builder(self, context: ResponseContext) -> Box<dyn ResponseWriter> {
        match self {
            Self::OpenAiChat => Box::new(BlockCitationWriter::new(openai_chat::ResponseBuilder::new(context))),
            Self::OpenAiCompletions => Box::new(openai_completions::ResponseBuilder::new(context)),
            Self::OpenAiResponses => {
                Box::new(BlockCitationWriter::new(openai_responses::ResponseBuilder::new(context)))
            }
            Self::AnthropicMessages | Self::BedrockInvoke => {
                Box::new(anthropic_messages::ResponseBuilder::new(context))
            }
            Self::Gemini => Box::new(gemini::ResponseBuilder::new(context)),
            Self::BedrockConverse => Box::new(bedrock_converse::ResponseBuilder::new(context)),
        }
    }

    /// Returns the writer of a stream.
    pub fn stream_writer(self, context: ResponseContext) -> Box<dyn ResponseWriter> {
        match self {
            Self::OpenAiChat => Box::new(BlockCitationWriter::new(openai_chat::StreamWriter::new(context))),
            Self::OpenAiCompletions => Box::new(openai_completions::StreamWriter::new(context)),
            Self::OpenAiResponses => Box::new(BlockCitationWriter::new(openai_responses::StreamWriter::new(context))),
            Self::AnthropicMessages => {
                Box::new(SequentialToolCallWriter::new(anthropic_messages::StreamWriter::new(context)))
            }
            Self::Gemini => Box::new(gemini::StreamWriter::new(context)),
            Self::BedrockConverse => {
                Box::new(SequentialToolCallWriter::new(bedrock_converse::StreamWriter::new(context)))
            }
            Self::BedrockInvoke => Box::new(SequentialToolCallWriter::new(invoke::StreamWriter::new(context))),
        }
    }
}
