//! Groups of operations, from which each provider lists those that it offers.

use crate::operation::Operation;

/// Operations that providers offer together.
pub(super) type OperationGroup = &'static [Operation];

pub(super) const CHAT: OperationGroup = &[Operation::ChatComplete];
pub(super) const COMPLETIONS: OperationGroup = &[Operation::Complete];
pub(super) const EMBED: OperationGroup = &[Operation::Embed];
pub(super) const MESSAGES: OperationGroup = &[Operation::Messages, Operation::MessagesCountTokens];
pub(super) const IMAGE_GENERATION: OperationGroup = &[Operation::ImageGenerate];
pub(super) const IMAGE_EDIT: OperationGroup = &[Operation::ImageEdit];
pub(super) const SPEECH: OperationGroup = &[Operation::CreateSpeech];
pub(super) const TRANSCRIPTION: OperationGroup = &[Operation::CreateTranscription, Operation::CreateTranslation];
pub(super) const REALTIME: OperationGroup = &[Operation::Realtime];
pub(super) const OCR: OperationGroup = &[Operation::Ocr];
pub(super) const GEMINI: OperationGroup = &[Operation::GenerateContent, Operation::StreamGenerateContent];
pub(super) const GEMINI_EMBED: OperationGroup = &[Operation::EmbedContent, Operation::BatchEmbedContents];
pub(super) const GEMINI_COUNT: OperationGroup = &[Operation::CountTokens];
pub(super) const BEDROCK: OperationGroup = &[
    Operation::Converse,
    Operation::ConverseStream,
    Operation::InvokeModel,
    Operation::InvokeModelStream,
    Operation::CountConverse,
];
pub(super) const RERANK: OperationGroup = &[Operation::Rerank];
pub(super) const CREATE_RESPONSE: OperationGroup = &[Operation::CreateModelResponse];
/// Operations on responses that the provider has stored.
pub(super) const STORED_RESPONSES: OperationGroup = &[Operation::GetModelResponse, Operation::DeleteModelResponse];
pub(super) const RESPONSES: OperationGroup = &[
    Operation::CreateModelResponse,
    Operation::GetModelResponse,
    Operation::DeleteModelResponse,
    Operation::ListResponseInputItems,
    Operation::CancelModelResponse,
];
pub(super) const FILES: OperationGroup = &[
    Operation::ListFiles,
    Operation::UploadFile,
    Operation::RetrieveFile,
    Operation::DeleteFile,
    Operation::RetrieveFileContent,
];
pub(super) const BATCHES: OperationGroup = &[
    Operation::ListBatches,
    Operation::CreateBatch,
    Operation::RetrieveBatch,
    Operation::GetBatchOutput,
    Operation::CancelBatch,
];
/// Batch jobs in the provider's native API, and the objects that they read and write.
pub(super) const NATIVE_BATCH_JOBS: OperationGroup = &[
    Operation::CreateBatchJob,
    Operation::RetrieveBatchJob,
    Operation::CancelBatchJob,
    Operation::PutBatchObject,
    Operation::GetBatchObject,
];
pub(super) const FINE_TUNING: OperationGroup = &[
    Operation::ListFinetunes,
    Operation::CreateFinetune,
    Operation::RetrieveFinetune,
    Operation::CancelFinetune,
    Operation::ListFinetuneEvents,
    Operation::ListFinetuneCheckpoints,
];
/// Forwarded to every provider: most support them, and the others return an error themselves.
pub(super) const ALWAYS_FORWARDED: OperationGroup = &[Operation::Models, Operation::Moderate, Operation::Proxy];
