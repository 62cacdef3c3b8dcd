//! Translation between `OpenAI`'s Files API and providers that store files in buckets or datasets.

pub(crate) mod batch_results;
pub(crate) mod batch_rows;
mod bucket;
pub mod datasets;

pub use crate::files::batch_results::LineResult;
pub use crate::files::batch_rows::{BatchInputLine, BatchLineFormat};
pub use bucket::{GATEWAY_PREFIX, GCS, ObjectAddress, ObjectStore, S3, complete_multipart_body};
pub(crate) use bucket::{INVALID_BUCKET_MESSAGE, is_valid_bucket_name};
pub use datasets::DatasetStore;

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::{
    api_format::{Failure, error_body, format::ApiFormat},
    xml,
};

/// Purpose to report for a file whose purpose is not recorded.
const DEFAULT_PURPOSE: &str = "user_data";
/// File purposes that the Files API of `OpenAI` defines.
const FILE_PURPOSES: [&str; 9] = [
    "assistants",
    "assistants_output",
    "batch",
    "batch_output",
    "evals",
    "fine-tune",
    "fine-tune-results",
    "user_data",
    "vision",
];

/// File store of a provider without an `OpenAI`-compatible Files API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileStore {
    Bucket(&'static ObjectStore),
    Datasets(DatasetStore),
}

impl FileStore {
    pub fn object_store(self) -> Option<&'static ObjectStore> {
        if let Self::Bucket(bucket) = self { Some(bucket) } else { None }
    }

    /// Returns the format in which batch lines are stored.
    pub fn line_format(self) -> BatchLineFormat {
        match self {
            Self::Bucket(bucket) => bucket.line_format,
            Self::Datasets(datasets) => datasets.line_format(),
        }
    }

    /// Returns the response header that carries the request id.
    pub fn request_id_header(self) -> &'static str {
        self.object_store().map_or("x-request-id", |bucket| bucket.request_id_header)
    }
}

/// Metadata of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileObject {
    pub id: String,
    pub bytes: u64,
    /// Creation time in Unix seconds.
    pub created_at: u64,
    pub name: String,
    pub purpose: String,
    pub state: FileState,
}

/// Processing state of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileState {
    Pending,
    /// The provider received and accepted the whole file.
    Ready,
    /// The provider rejected the file, with this reason.
    Failed(String),
}

impl FileObject {
    fn to_json(&self) -> Value {
        let (status, reason) = match &self.state {
            FileState::Pending => ("uploaded", None),
            FileState::Ready => ("processed", None),
            FileState::Failed(reason) => ("error", Some(reason)),
        };
        json!({
            "id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.created_at, "filename": self.name,
            "purpose": self.purpose, "status": status, "status_details": reason, "expires_at": null,
        })
    }

    pub fn to_json_bytes(&self) -> Vec<u8> {
        self.to_json().to_string().into_bytes()
    }
}

/// Builds the body of a list response with one page of files; `has_more` is true if more files follow.
pub fn list_body(files: &[FileObject], has_more: bool) -> Vec<u8> {
    let (first, last) = (files.first().map(|file| &file.id), files.last().map(|file| &file.id));
    let data: Vec<_> = files.iter().map(FileObject::to_json).collect();
    json!({"object": "list", "data": data, "has_more": has_more, "first_id": first, "last_id": last})
        .to_string()
        .into_bytes()
}

/// Builds the body that confirms the deletion of a file.
pub fn deletion_body(id: &str) -> Vec<u8> {
    json!({"id": id, "object": "file", "deleted": true}).to_string().into_bytes()
}

/// Parses a file purpose; returns an error that lists the allowed ones if it is unknown.
pub fn parse_purpose(value: &str) -> Result<&'static str, String> {
    let known = FILE_PURPOSES.iter().find(|purpose| **purpose == value).copied();
    known.ok_or_else(|| format!("`{value}` is not a known purpose; it must be one of {}", FILE_PURPOSES.join(", ")))
}

/// Converts an error response of the file store to `OpenAI`'s error format. Keeps the provider's error code, and its
/// request id if there is one.
pub fn translate_error(provider: &str, status: u16, response: &[u8], request_id: Option<&str>) -> Vec<u8> {
    let text = String::from_utf8_lossy(response);
    let (code, message) = datasets::error_code_and_message(response);
    let code = xml::element_text(&text, "Code").map(Cow::into_owned).or(code);
    let fallback_message = || match status {
        404 => "there is no such file".to_owned(),
        _ if text.trim().is_empty() => format!("status {status}"),
        _ => text.trim().chars().take(500).collect(),
    };
    let detail = xml::element_text(&text, "Message").map(Cow::into_owned).or(message).unwrap_or_else(fallback_message);
    let request_id = request_id.map(Into::into).or_else(|| xml::element_text(&text, "RequestId"));
    let request = request_id.map(|id| format!(" (request {id})")).unwrap_or_default();
    let message = format!("{provider} error: {detail}{request}");
    let failure = Failure { status, error_type: None, message: &message, code: code.as_deref(), request_id: None };
    crate::error_response::add_provider_field(error_body(ApiFormat::OpenAi, &failure), provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_json(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn list_body_has_first_and_last_id() {
        let file = |id: &str| FileObject {
            id: id.into(),
            bytes: 1,
            created_at: 2,
            name: "n".into(),
            purpose: "batch".into(),
            state: FileState::Ready,
        };
        let list = parse_json(&list_body(&[file("a"), file("b")], true));
        assert_eq!((&list["first_id"], &list["last_id"], &list["has_more"]), (&"a".into(), &"b".into(), &true.into()));
        assert_eq!(list["data"][1], parse_json(&file("b").to_json_bytes()));
        assert_eq!(parse_json(&list_body(&[], false))["first_id"], Value::Null);
    }

    #[test]
    fn translated_error_keeps_code_and_request_id() {
        let xml = b"<?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code><Message>no &lt;b&gt;</Message><RequestId>R1</RequestId></Error>";
        let error = parse_json(&translate_error("bedrock", 404, xml, None));
        let expected = json!({"message": "bedrock error: no <b> (request R1)", "type": "not_found_error", "param": null,
            "code": "NoSuchBucket"});
        assert_eq!(error, json!({"error": expected, "provider": "bedrock"}));
        let error = |status, response: &[u8]| {
            parse_json(&translate_error("b", status, response, Some("R2")))["error"]["message"].clone()
        };
        assert_eq!(error(404, b""), "b error: there is no such file (request R2)");
        assert_eq!(error(403, b" "), "b error: status 403 (request R2)");
        assert_eq!(error(500, b"oh"), "b error: oh (request R2)");
    }

    #[test]
    fn rejects_unknown_purposes() {
        assert_eq!(parse_purpose("fine-tune"), Ok("fine-tune"));
        assert!(parse_purpose("fine\r\n").unwrap_err().contains("user_data"));
    }
}
