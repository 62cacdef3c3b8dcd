//! Operations of an inference API, with the method and path of each.

use crate::api_format::format::ApiFormat;

/// Kind of request body that an operation expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    /// One JSON object, parsed before it is forwarded.
    Json,
    /// A multipart form with files, streamed through unchanged.
    Form,
    NoBody,
}

/// Pattern segment that matches any non-empty path segment.
const ANY_SEGMENT: &str = ":id";
/// Pattern character that matches a model name. Some clients send names with unescaped slashes, so the match may span
/// several segments.
const MODEL_WILDCARD: char = '*';

struct OperationRow {
    operation: Operation,
    method: &'static str,
    path: &'static str,
    id: &'static str,
    body_kind: BodyKind,
    /// True if the path has a wildcard.
    is_pattern: bool,
}

/// Generates the `Operation` enum and the lookup table of requests from one list.
macro_rules! operations {
    ($(($operation:ident, $method:literal, $path:literal, $id:literal, $body_kind:ident),)*) => {
        /// Operation that a request performs. `Proxy` stands for every request without a row of its own; it is
        /// forwarded unchanged.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Operation {
            $($operation,)*
            Proxy,
        }

        impl Operation {
            /// All operations with a row, in row order.
            pub const ALL: &[Self] = &[$(Self::$operation),*];
        }

        const ROWS: &[OperationRow] = &[$(OperationRow {
            operation: Operation::$operation,
            method: $method,
            path: $path,
            id: $id,
            body_kind: BodyKind::$body_kind,
            is_pattern: is_pattern($path),
        }),*];
    };
}

// Columns: name, method, path after `/v1`, function id, body kind. The first match wins, so the most frequent
// operations come first.
operations! {
    (ChatComplete, "POST", "/chat/completions", "chatComplete", Json),
    (Messages, "POST", "/messages", "messages", Json),
    (CreateModelResponse, "POST", "/responses", "createModelResponse", Json),
    (Embed, "POST", "/embeddings", "embed", Json),
    (Complete, "POST", "/completions", "complete", Json),
    (MessagesCountTokens, "POST", "/messages/count_tokens", "messagesCountTokens", Json),
    (Moderate, "POST", "/moderations", "moderate", Json),
    (Rerank, "POST", "/rerank", "rerank", Json),
    (Ocr, "POST", "/ocr", "ocr", Json),
    (ImageGenerate, "POST", "/images/generations", "imageGenerate", Json),
    (ImageEdit, "POST", "/images/edits", "imageEdit", Form),
    (CreateSpeech, "POST", "/audio/speech", "createSpeech", Json),
    (CreateTranscription, "POST", "/audio/transcriptions", "createTranscription", Form),
    (CreateTranslation, "POST", "/audio/translations", "createTranslation", Form),
    (Realtime, "GET", "/realtime", "realtime", NoBody),
    (Models, "GET", "/models", "models", NoBody),
    (ListFiles, "GET", "/files", "listFiles", NoBody),
    (UploadFile, "POST", "/files", "uploadFile", Form),
    (ListBatches, "GET", "/batches", "listBatches", NoBody),
    (CreateBatch, "POST", "/batches", "createBatch", Json),
    (ListFinetunes, "GET", "/fine_tuning/jobs", "listFinetunes", NoBody),
    (CreateFinetune, "POST", "/fine_tuning/jobs", "createFinetune", Json),
    (GetModelResponse, "GET", "/responses/:id", "getModelResponse", NoBody),
    (DeleteModelResponse, "DELETE", "/responses/:id", "deleteModelResponse", NoBody),
    (ListResponseInputItems, "GET", "/responses/:id/input_items", "listResponseInputItems", NoBody),
    (CancelModelResponse, "POST", "/responses/:id/cancel", "cancelModelResponse", NoBody),
    (RetrieveFile, "GET", "/files/:id", "retrieveFile", NoBody),
    (DeleteFile, "DELETE", "/files/:id", "deleteFile", NoBody),
    (RetrieveFileContent, "GET", "/files/:id/content", "retrieveFileContent", NoBody),
    (RetrieveBatch, "GET", "/batches/:id", "retrieveBatch", NoBody),
    (GetBatchOutput, "GET", "/batches/:id/output", "getBatchOutput", NoBody),
    (CancelBatch, "POST", "/batches/:id/cancel", "cancelBatch", NoBody),
    (RetrieveFinetune, "GET", "/fine_tuning/jobs/:id", "retrieveFinetune", NoBody),
    (CancelFinetune, "POST", "/fine_tuning/jobs/:id/cancel", "cancelFinetune", NoBody),
    (ListFinetuneEvents, "GET", "/fine_tuning/jobs/:id/events", "listFinetuneEvents", NoBody),
    (ListFinetuneCheckpoints, "GET", "/fine_tuning/jobs/:id/checkpoints", "listFinetuneCheckpoints", NoBody),
    (GenerateContent, "POST", "/models/*:generateContent", "generateContent", Json),
    (StreamGenerateContent, "POST", "/models/*:streamGenerateContent", "streamGenerateContent", Json),
    (EmbedContent, "POST", "/models/*:embedContent", "embedContent", Json),
    (BatchEmbedContents, "POST", "/models/*:batchEmbedContents", "batchEmbedContents", Json),
    (CountTokens, "POST", "/models/*:countTokens", "countTokens", Json),
    (Converse, "POST", "/model/*/converse", "converse", Json),
    (ConverseStream, "POST", "/model/*/converse-stream", "converseStream", Json),
    (InvokeModel, "POST", "/model/*/invoke", "invokeModel", Json),
    (InvokeModelStream, "POST", "/model/*/invoke-with-response-stream", "invokeModelStream", Json),
    (CountConverse, "POST", "/model/*/count-tokens", "converseCountTokens", Json),
    (CreateBatchJob, "POST", "/batch_jobs", "createBatchJob", Json),
    (RetrieveBatchJob, "GET", "/batch_jobs/:id", "retrieveBatchJob", NoBody),
    (CancelBatchJob, "POST", "/batch_jobs/:id/cancel", "cancelBatchJob", NoBody),
    (DeleteBatchJob, "DELETE", "/batch_jobs/:id", "deleteBatchJob", NoBody),
    (PutBatchObject, "PUT", "/batch_objects/:id", "putBatchObject", Form),
    (GetBatchObject, "GET", "/batch_objects/:id", "getBatchObject", NoBody),
    (CreateBatchDataset, "POST", "/batch_datasets", "createBatchDataset", Json),
    (UploadBatchDataset, "POST", "/batch_datasets/:id", "uploadBatchDataset", Form),
    (LocateBatchDataset, "GET", "/batch_datasets/:id", "locateBatchDataset", NoBody),
}

impl Operation {
    /// Returns the operation of a method and a path. The path is what follows `/v1`, still percent-encoded and without
    /// the query.
    pub fn from_method_and_path(method: &str, path: &str) -> Self {
        let is_it = |row: &&OperationRow| row.method == method && row.matches_path(path);
        ROWS.iter().find(is_it).map_or(Self::Proxy, |row| row.operation)
    }

    /// Returns the operation of a method and a path, in any letter case.
    pub fn from_spelled_path(method: &str, path: &str) -> Self {
        let is_it = |row: &&OperationRow| {
            row.method.eq_ignore_ascii_case(method) && matches_pattern_in_any_case(row.path, path)
        };
        ROWS.iter().find(is_it).map_or(Self::Proxy, |row| row.operation)
    }

    /// Returns true if the operation only computes a response and stores nothing. An identical request may then get a
    /// cached response.
    pub fn is_cacheable(self) -> bool {
        matches!(
            self,
            Self::ChatComplete
                | Self::Messages
                | Self::CreateModelResponse
                | Self::Embed
                | Self::Complete
                | Self::MessagesCountTokens
                | Self::Moderate
                | Self::Rerank
                | Self::Ocr
                | Self::ImageGenerate
                | Self::CreateSpeech
                | Self::GenerateContent
                | Self::StreamGenerateContent
                | Self::EmbedContent
                | Self::BatchEmbedContents
                | Self::CountTokens
                | Self::Converse
                | Self::ConverseStream
                | Self::InvokeModel
                | Self::InvokeModelStream
                | Self::CountConverse
        )
    }

    /// Returns the operation of a WebSocket on this path after `/v1`.
    pub fn from_websocket_path(path: &str) -> Self {
        match path {
            "/realtime" => Self::Realtime,
            "/responses" => Self::CreateModelResponse,
            _ => Self::Proxy,
        }
    }

    /// Returns the operation with a function id.
    pub fn from_id(id: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.id == id).map(|row| row.operation)
    }

    /// Returns the function id that records and policies use, such as `chatComplete`.
    pub fn id(self) -> &'static str {
        self.table_row().map_or("proxy", |row| row.id)
    }

    /// Returns the method and the path after `/v1`, with `:id` and `*` as wildcards. `None` for `Proxy`, which has any
    /// method and path.
    pub fn route(self) -> Option<(&'static str, &'static str)> {
        self.table_row().map(|row| (row.method, row.path))
    }

    /// Returns the kind of request body; `None` if any body is allowed.
    pub fn body_kind(self) -> Option<BodyKind> {
        self.table_row().map(|row| row.body_kind)
    }

    /// Returns the API format of the operation's requests and responses. `None` if several API formats share the path.
    pub fn api_format(self) -> Option<ApiFormat> {
        match self {
            Self::Messages | Self::MessagesCountTokens => Some(ApiFormat::Anthropic),
            Self::GenerateContent
            | Self::StreamGenerateContent
            | Self::EmbedContent
            | Self::BatchEmbedContents
            | Self::CountTokens => Some(ApiFormat::Gemini),
            Self::Converse
            | Self::ConverseStream
            | Self::InvokeModel
            | Self::InvokeModelStream
            | Self::CountConverse => Some(ApiFormat::Bedrock),
            Self::Proxy
            | Self::Models
            | Self::ListFiles
            | Self::UploadFile
            | Self::RetrieveFile
            | Self::DeleteFile
            | Self::RetrieveFileContent
            | Self::CreateBatchJob
            | Self::RetrieveBatchJob
            | Self::CancelBatchJob
            | Self::DeleteBatchJob
            | Self::PutBatchObject
            | Self::GetBatchObject
            | Self::CreateBatchDataset
            | Self::UploadBatchDataset
            | Self::LocateBatchDataset => None,
            _ => Some(ApiFormat::OpenAi),
        }
    }

    /// Returns true if a complete stream ends with an event that marks the end.
    pub fn has_terminal_event(self) -> bool {
        self.is_text_generation()
            || self.is_always_streaming()
            || self.has_typed_terminal_event()
            || self == Self::GetModelResponse
    }

    /// Returns true if the type alone identifies the last event of a stream, whatever the event contains.
    pub fn has_typed_terminal_event(self) -> bool {
        matches!(self, Self::ImageGenerate | Self::ImageEdit | Self::CreateSpeech | Self::CreateTranscription)
    }

    /// Returns true if the operation's name implies a streaming response.
    pub fn is_always_streaming(self) -> bool {
        matches!(self, Self::StreamGenerateContent | Self::ConverseStream | Self::InvokeModelStream)
    }

    /// Returns the model in the request path, still percent-encoded. `None` if the body names the model.
    pub fn model_from_path(self, path: &str) -> Option<&str> {
        self.table_row().and_then(|row| extract_model(row.path, path))
    }

    /// Returns true if request and response are text, so that the gateway can count tokens if the provider does not
    /// report them.
    pub fn has_countable_text(self) -> bool {
        self.is_text_generation() || self.is_embedding()
    }

    /// Returns true if the operation generates text and can be translated to another API format.
    pub fn is_chat(self) -> bool {
        matches!(
            self,
            Self::ChatComplete
                | Self::Complete
                | Self::CreateModelResponse
                | Self::Messages
                | Self::GenerateContent
                | Self::StreamGenerateContent
                | Self::Converse
                | Self::ConverseStream
                | Self::InvokeModel
                | Self::InvokeModelStream
        )
    }

    /// Returns true if a successful response contains what a model generated, and not data that the provider stores.
    pub fn is_inference(self) -> bool {
        self.is_chat()
            || self.is_embedding()
            || self.generates_images()
            || self.has_audio_input()
            || matches!(self, Self::Rerank | Self::Moderate | Self::Ocr | Self::CreateSpeech)
    }

    /// Returns true if the operation cancels or deletes something. Its response may consist of a message only.
    pub fn ends_something(self) -> bool {
        matches!(
            self,
            Self::DeleteModelResponse
                | Self::CancelModelResponse
                | Self::DeleteFile
                | Self::CancelBatch
                | Self::CancelFinetune
                | Self::CancelBatchJob
                | Self::DeleteBatchJob
        )
    }

    /// Returns true if the response is data that a client stored or a batch made. It may have any format.
    pub fn returns_stored_data(self) -> bool {
        matches!(self, Self::RetrieveFileContent | Self::GetBatchOutput | Self::GetBatchObject)
    }

    /// Returns true if the response consists of embedding vectors.
    pub fn is_embedding(self) -> bool {
        matches!(self, Self::Embed | Self::EmbedContent | Self::BatchEmbedContents)
    }

    /// Returns true if the operation is about fine-tuning jobs.
    pub fn is_fine_tuning(self) -> bool {
        matches!(
            self,
            Self::CreateFinetune
                | Self::ListFinetunes
                | Self::RetrieveFinetune
                | Self::CancelFinetune
                | Self::ListFinetuneCheckpoints
        )
    }

    /// Returns true if the operation is about batches, except for fetching a batch's output.
    pub fn is_batch(self) -> bool {
        matches!(self, Self::CreateBatch | Self::ListBatches | Self::RetrieveBatch | Self::CancelBatch)
    }

    /// Returns true if the operation is about files or batches: its bodies are stored data, or descriptions of it that
    /// may contain signed URLs.
    pub fn is_about_stored_data(self) -> bool {
        self.is_file_operation()
            || self.is_batch()
            || self == Self::GetBatchOutput
            || self.table_row().is_some_and(|row| row.path.starts_with("/batch_"))
    }

    /// Returns true if the operation is about asynchronous jobs of a provider: batches and fine-tuning.
    pub fn is_provider_job(self) -> bool {
        self.is_fine_tuning() || self.is_batch()
    }

    /// Returns true if the operation is about files.
    pub fn is_file_operation(self) -> bool {
        matches!(
            self,
            Self::ListFiles | Self::UploadFile | Self::RetrieveFile | Self::DeleteFile | Self::RetrieveFileContent
        )
    }

    /// Returns true if the response is the token count of a request.
    pub fn counts_tokens(self) -> bool {
        matches!(self, Self::MessagesCountTokens | Self::CountTokens | Self::CountConverse)
    }

    fn is_text_generation(self) -> bool {
        matches!(self, Self::ChatComplete | Self::Complete | Self::Messages | Self::CreateModelResponse)
    }

    /// Returns true if the operation returns a Responses API object that may still be running in the background.
    pub fn returns_background_response(self) -> bool {
        matches!(self, Self::CreateModelResponse | Self::GetModelResponse | Self::CancelModelResponse)
    }

    /// Returns true if the operation generates or edits images.
    pub fn generates_images(self) -> bool {
        matches!(self, Self::ImageGenerate | Self::ImageEdit)
    }

    /// Returns true if the body is a multipart form with a `model` field.
    pub fn has_model_in_form(self) -> bool {
        matches!(self, Self::ImageEdit | Self::CreateTranscription | Self::CreateTranslation)
    }

    /// Returns true if the request uploads an audio recording to transcribe or translate.
    pub fn has_audio_input(self) -> bool {
        matches!(self, Self::CreateTranscription | Self::CreateTranslation)
    }

    /// Returns true if the body is one JSON object, parsed before it is forwarded.
    pub fn has_json_body(self) -> bool {
        self.body_kind() == Some(BodyKind::Json)
    }

    // Rows are in the order of the enum variants; `Proxy` follows the last row and has none.
    fn table_row(self) -> Option<&'static OperationRow> {
        ROWS.get(self as usize)
    }
}

impl OperationRow {
    fn matches_path(&self, path: &str) -> bool {
        self.path == path || (self.is_pattern && matches_pattern(self.path, path))
    }
}

fn matches_pattern(pattern: &str, path: &str) -> bool {
    if pattern.contains(MODEL_WILDCARD) {
        return extract_model(pattern, path).is_some();
    }
    let mut segments = path.split('/');
    let all = pattern.split('/').all(|pattern_segment| match segments.next() {
        Some(segment) if pattern_segment == ANY_SEGMENT => !segment.is_empty(),
        operation => operation == Some(pattern_segment),
    });
    all && segments.next().is_none()
}

fn matches_pattern_in_any_case(pattern: &str, path: &str) -> bool {
    if let Some((before, after)) = pattern.split_once(MODEL_WILDCARD) {
        let begin = path.get(..before.len());
        let end = path.len().checked_sub(after.len()).filter(|end| *end > before.len()).and_then(|end| path.get(end..));
        return begin.is_some_and(|begin| begin.eq_ignore_ascii_case(before))
            && end.is_some_and(|end| end.eq_ignore_ascii_case(after));
    }
    let mut segments = path.split('/');
    let all = pattern.split('/').all(|expected| match segments.next() {
        Some(segment) if expected == ANY_SEGMENT => !segment.is_empty(),
        actual => actual.is_some_and(|segment| segment.eq_ignore_ascii_case(expected)),
    });
    all && segments.next().is_none()
}

/// Returns the part of a path that matches the model wildcard of a pattern.
fn extract_model<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
    let (before, after) = pattern.split_once(MODEL_WILDCARD)?;
    path.strip_prefix(before)?.strip_suffix(after).filter(|name| !name.is_empty())
}

const fn is_pattern(path: &str) -> bool {
    let mut rest = path.as_bytes();
    while let [first, more @ ..] = rest {
        if *first == b':' || *first == b'*' {
            return true;
        }
        rest = more;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_an_operation_by_method_and_path() {
        assert_eq!(Operation::from_method_and_path("POST", "/chat/completions"), Operation::ChatComplete);
        assert_eq!(Operation::from_method_and_path("GET", "/chat/completions"), Operation::Proxy);
        assert_eq!(Operation::from_method_and_path("POST", "/anything"), Operation::Proxy);
    }

    #[test]
    fn each_row_matches_its_own_operation() {
        for (operation, row) in Operation::ALL.iter().zip(ROWS) {
            assert_eq!(
                Operation::from_method_and_path(
                    row.method,
                    &row.path.replace(ANY_SEGMENT, "x-1").replace(MODEL_WILDCARD, "x-1")
                ),
                *operation,
                "{}",
                row.path
            );
            assert_eq!((operation.id(), operation.body_kind()), (row.id, Some(row.body_kind)));
        }
        assert_eq!((Operation::Proxy.id(), Operation::Proxy.body_kind()), ("proxy", None));
    }

    #[test]
    fn files_and_batches_are_about_stored_data() {
        let is_stored_data = |method, path| Operation::from_method_and_path(method, path).is_about_stored_data();
        for (method, path) in [
            ("POST", "/files"),
            ("GET", "/files/f/content"),
            ("GET", "/batches/b/output"),
            ("POST", "/batch_jobs"),
            ("GET", "/batch_datasets/d"),
        ] {
            assert!(is_stored_data(method, path), "{path}");
        }
        assert!(
            !is_stored_data("POST", "/chat/completions")
                && !is_stored_data("POST", "/fine_tuning/jobs")
                && !is_stored_data("GET", "/x")
        );
    }

    #[test]
    fn an_id_is_one_non_empty_segment_of_the_raw_path() {
        let method_and_path = |path| Operation::from_method_and_path("GET", path);
        assert_eq!(method_and_path("/files/file-1"), Operation::RetrieveFile);
        assert_eq!(method_and_path("/files/s3%3A%2F%2Fbucket%2Fa.jsonl"), Operation::RetrieveFile);
        assert_eq!(method_and_path("/files/file-1/content"), Operation::RetrieveFileContent);
        for path in ["/files/", "/files//content", "/files/a/b", "/files/a/content/", "/files/a%2Fcontent/x", "//files"]
        {
            assert_eq!(method_and_path(path), Operation::Proxy, "{path}");
        }
    }

    #[test]
    fn a_model_in_the_path_may_have_any_name() {
        for (path, operation, model) in [
            ("/models/gemini-2.5-pro:generateContent", Operation::GenerateContent, "gemini-2.5-pro"),
            ("/models/@mine/a:b:streamGenerateContent", Operation::StreamGenerateContent, "@mine/a:b"),
            ("/model/arn%3Aaws%2Fx/converse", Operation::Converse, "arn%3Aaws%2Fx"),
            ("/models/text-embedding:batchEmbedContents", Operation::BatchEmbedContents, "text-embedding"),
            ("/models/m:countTokens", Operation::CountTokens, "m"),
            ("/model/m/count-tokens", Operation::CountConverse, "m"),
            ("/model/m/invoke-with-response-stream", Operation::InvokeModelStream, "m"),
        ] {
            assert_eq!(
                (Operation::from_method_and_path("POST", path), operation.model_from_path(path)),
                (operation, Some(model))
            );
        }
        for path in ["/models/:generateContent", "/model//converse", "/models/m:predict", "/model/m/count"] {
            assert_eq!(Operation::from_method_and_path("POST", path), Operation::Proxy, "{path}");
        }
        assert_eq!(Operation::ChatComplete.model_from_path("/chat/completions"), None);
    }

    #[test]
    fn requests_without_a_row_are_proxied() {
        for (method, path) in [
            ("PATCH", "/chat/completions"),
            ("POST", "/fine_tuning/jobs/ft-1/pause"),
            ("POST", "/images/variations"),
            ("POST", "/threads/t-1/runs"),
            ("POST", "/messages/batches"),
            ("PUT", "/files/file-1"),
        ] {
            assert_eq!(Operation::from_method_and_path(method, path), Operation::Proxy, "{method} {path}");
        }
    }
}
