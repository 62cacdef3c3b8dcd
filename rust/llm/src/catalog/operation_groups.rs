//! Groups of operations, from which each provider lists those that it offers.

use crate::operation::Operation;

/// Operations that providers offer together.
pub type OperationGroup = &'static [Operation];

pub(crate) const CHAT: OperationGroup = &[Operation::ChatComplete];
pub(crate) const COMPLETIONS: OperationGroup = &[Operation::Complete];
pub(crate) const EMBED: OperationGroup = &[Operation::Embed];
pub(crate) const MESSAGES: OperationGroup = &[Operation::Messages, Operation::MessagesCountTokens];
pub(crate) const IMAGE_GENERATION: OperationGroup = &[Operation::ImageGenerate];
pub(crate) const IMAGE_EDIT: OperationGroup = &[Operation::ImageEdit];
pub(crate) const SPEECH: OperationGroup = &[Operation::CreateSpeech];
pub(crate) const TRANSCRIPTION: OperationGroup = &[Operation::CreateTranscription, Operation::CreateTranslation];
pub(crate) const REALTIME: OperationGroup = &[Operation::Realtime];
pub(crate) const OCR: OperationGroup = &[Operation::Ocr];
pub(crate) const GEMINI: OperationGroup = &[Operation::GenerateContent, Operation::StreamGenerateContent];
pub(crate) const GEMINI_EMBED: OperationGroup = &[Operation::EmbedContent, Operation::BatchEmbedContents];
pub(crate) const GEMINI_COUNT: OperationGroup = &[Operation::CountTokens];
pub(crate) const BEDROCK: OperationGroup = &[
    Operation::Converse,
    Operation::ConverseStream,
    Operation::InvokeModel,
    Operation::InvokeModelStream,
    Operation::CountConverse,
];
pub(crate) const RERANK: OperationGroup = &[Operation::Rerank];
pub(crate) const CREATE_RESPONSE: OperationGroup = &[Operation::CreateModelResponse];
/// Operations on responses that the provider has stored.
pub(crate) const STORED_RESPONSES: OperationGroup = &[Operation::GetModelResponse, Operation::DeleteModelResponse];
pub(crate) const RESPONSES: OperationGroup = &[
    Operation::CreateModelResponse,
    Operation::GetModelResponse,
    Operation::DeleteModelResponse,
    Operation::ListResponseInputItems,
    Operation::CancelModelResponse,
];
pub(crate) const FILES: OperationGroup = &[
    Operation::ListFiles,
    Operation::UploadFile,
    Operation::RetrieveFile,
    Operation::DeleteFile,
    Operation::RetrieveFileContent,
];
pub(crate) const BATCHES: OperationGroup = &[
    Operation::ListBatches,
    Operation::CreateBatch,
    Operation::RetrieveBatch,
    Operation::GetBatchOutput,
    Operation::CancelBatch,
];
/// Batch jobs in the provider's native API, and the objects that they read and write.
pub(crate) const NATIVE_BATCH_JOBS: OperationGroup = &[
    Operation::CreateBatchJob,
    Operation::RetrieveBatchJob,
    Operation::CancelBatchJob,
    Operation::PutBatchObject,
    Operation::GetBatchObject,
];
pub(crate) const FINE_TUNING: OperationGroup = &[
    Operation::ListFinetunes,
    Operation::CreateFinetune,
    Operation::RetrieveFinetune,
    Operation::CancelFinetune,
    Operation::ListFinetuneEvents,
    Operation::ListFinetuneCheckpoints,
];
/// Operations that are forwarded to every provider: most support them, and the others return an error themselves.
pub(crate) const ALWAYS_FORWARDED: OperationGroup = &[Operation::Models, Operation::Moderate, Operation::Proxy];

pub(crate) fn contains_operation(offers: &[OperationGroup], operation: Operation) -> bool {
    offers.iter().any(|group| group.contains(&operation))
}

/// Returns true if the operation reaches a provider with these groups only after translation to `OpenAI`'s chat
/// completions or embeddings.
pub(crate) fn needs_openai_translation(offers: &[OperationGroup], operation: Operation) -> bool {
    let translated_to = match operation {
        _ if operation.is_embedding() => Operation::Embed,
        _ if operation.is_chat() => Operation::ChatComplete,
        _ => return false,
    };
    operation != translated_to && !contains_operation(offers, operation) && contains_operation(offers, translated_to)
}
