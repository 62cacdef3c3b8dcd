//! Provider files stored as datasets: at Fireworks for fine-tuning and batches, at Cohere for embed jobs. Fireworks has
//! no purpose field, so the dataset id begins with the purpose.

use serde_json::{Value, json};

use super::{BatchLineFormat, DEFAULT_PURPOSE, FileObject, FileState};
use crate::{
    catalog::{path_info::PathInfo, path_segment},
    error_details::parse_error,
    operation::Operation,
    timestamp,
};

/// Provider whose datasets store the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatasetStore {
    Cohere,
    Fireworks,
}

/// File purposes that Fireworks datasets support.
const FIREWORKS_PURPOSES: [&str; 2] = ["fine-tune", BATCH_PURPOSE];
/// Purpose of files that contain batch lines.
const BATCH_PURPOSE: &str = "batch";
/// Cohere's dataset type for the input of an embed job.
const COHERE_INPUT_TYPE: &str = "embed-input";
/// Cohere's dataset types for the results of an embed job.
const COHERE_OUTPUT_TYPES: [&str; 2] = ["embed-result", "embed-output"];
/// Maximum length of a dataset id at Fireworks.
const MAX_FIREWORKS_ID_BYTES: usize = 63;
/// Maximum length of a dataset id at Cohere.
const MAX_COHERE_ID_BYTES: usize = 256;

/// Builds the id of a new Fireworks dataset from its purpose. Returns an error if the purpose is not supported.
pub fn fireworks_dataset_id(purpose: &str, unique: &str) -> Result<String, String> {
    if FIREWORKS_PURPOSES.contains(&purpose) {
        return Ok(format!("{purpose}-{unique}"));
    }
    Err(unsupported_purpose_message(purpose, &FIREWORKS_PURPOSES.join(" or ")))
}

/// Builds the request body that creates an empty Fireworks dataset, which is filled afterwards.
pub fn create_dataset_body(id: &str, name: &str) -> Vec<u8> {
    json!({"datasetId": id, "dataset": {"displayName": name, "userUploaded": {}}}).to_string().into_bytes()
}

/// Builds the query that creates a Cohere dataset together with its texts. The `custom_id` of each text is stored with
/// it.
pub fn cohere_dataset_query(purpose: &str, name: &str) -> Result<String, String> {
    if purpose != BATCH_PURPOSE {
        return Err(unsupported_purpose_message(purpose, BATCH_PURPOSE));
    }
    Ok(format!("name={}&type={COHERE_INPUT_TYPE}&optional_fields=custom_id", path_segment::encode_segment(name)))
}

fn unsupported_purpose_message(purpose: &str, supported: &str) -> String {
    format!("`{purpose}` is not supported by this provider; it must be {supported}")
}

impl DatasetStore {
    pub fn line_format(self) -> BatchLineFormat {
        match self {
            Self::Cohere => BatchLineFormat::Cohere,
            Self::Fireworks => BatchLineFormat::Fireworks,
        }
    }

    /// Returns the path after the account, with its query: all datasets, one dataset, or its content for upload or
    /// download.
    pub fn request_target(self, path_info: &PathInfo<'_>) -> Result<String, String> {
        let mark = if path_info.query.is_empty() { "" } else { "?" };
        let reads = path_info.operation == Operation::RetrieveFileContent;
        Ok(format!("{}{mark}{}", self.dataset_path(path_info.path, reads)?, path_info.query))
    }

    fn dataset_path(self, path: &str, reads: bool) -> Result<String, String> {
        let mut segments = path.split('/').skip(2);
        let Some(id) = segments.next() else { return Ok("datasets".into()) };
        self.check_dataset_id(id)?;
        let verb = match self {
            // Cohere returns the URLs of the files together with the dataset.
            Self::Cohere => "",
            Self::Fireworks if reads => ":getDownloadEndpoint",
            Self::Fireworks => ":upload",
        };
        Ok(if segments.next().is_some() { format!("datasets/{id}{verb}") } else { format!("datasets/{id}") })
    }

    fn check_dataset_id(self, id: &str) -> Result<(), String> {
        let (longest, letters, is_letter): (_, _, fn(u8) -> bool) = match self {
            Self::Cohere => {
                (MAX_COHERE_ID_BYTES, "a-z, A-Z, 0-9, - and _", |byte| byte.is_ascii_alphanumeric() || byte == b'_')
            }
            Self::Fireworks => {
                (MAX_FIREWORKS_ID_BYTES, "a-z, 0-9 and -", |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            }
        };
        if !id.is_empty() && id.len() <= longest && id.bytes().all(|byte| byte == b'-' || is_letter(byte)) {
            return Ok(());
        }
        Err(format!("the id of a file must be a dataset id: 1 to {longest} characters of {letters}"))
    }

    /// Returns the query that lists at most `max_count` datasets.
    pub fn list_query(self, max_count: usize) -> String {
        match self {
            Self::Cohere => format!("limit={max_count}"),
            Self::Fireworks => format!("pageSize={max_count}"),
        }
    }

    /// Parses the dataset in a response as a file object.
    pub fn parse_file(self, response: &Value) -> Option<FileObject> {
        match self {
            Self::Cohere => parse_cohere_dataset(&response["dataset"]),
            Self::Fireworks => parse_fireworks_dataset(response),
        }
    }

    /// Returns the temporary download URLs of a dataset's files. Files with rejected lines come last.
    pub fn download_urls(self, response: &Value) -> Vec<&str> {
        match self {
            Self::Cohere => {
                let parts = response["dataset"]["dataset_parts"].as_array().into_iter().flatten();
                parts.filter_map(|part| part["url"].as_str()).filter(|url| !url.is_empty()).collect()
            }
            Self::Fireworks => {
                let files = response["filenameToSignedUrls"].as_object().into_iter().flatten();
                let mut files: Vec<_> = files.filter_map(|(name, url)| Some((name, url.as_str()?))).collect();
                files.sort_by_key(|(name, _)| name.to_ascii_lowercase().contains("error"));
                files.into_iter().map(|(_, url)| url).collect()
            }
        }
    }

    /// Parses all datasets in a list response as file objects.
    pub fn parse_file_list(self, response: &Value) -> Vec<FileObject> {
        let parse_dataset = match self {
            Self::Cohere => parse_cohere_dataset,
            Self::Fireworks => parse_fireworks_dataset,
        };
        response["datasets"].as_array().into_iter().flatten().filter_map(parse_dataset).collect()
    }
}

/// Parses a Fireworks dataset. Its size is 0 because Fireworks does not report it.
fn parse_fireworks_dataset(dataset: &Value) -> Option<FileObject> {
    let id = dataset["name"].as_str()?.rsplit('/').next()?.to_owned();
    let name = dataset["displayName"].as_str().filter(|name| !name.is_empty()).unwrap_or(&id).to_owned();
    let created = dataset["createTime"].as_str().and_then(timestamp::parse_rfc3339).unwrap_or_default();
    let purpose =
        FIREWORKS_PURPOSES.iter().find(|purpose| id.starts_with(&format!("{purpose}-"))).unwrap_or(&DEFAULT_PURPOSE);
    let purpose = (*purpose).to_owned();
    let state = if dataset["state"] == "READY" { FileState::Ready } else { FileState::Pending };
    Some(FileObject { id, bytes: 0, created_at: created, name, purpose, state })
}

/// Parses a Cohere dataset. Cohere validates a dataset before jobs may read it, so the state follows the validation
/// status.
fn parse_cohere_dataset(dataset: &Value) -> Option<FileObject> {
    let id = dataset["id"].as_str()?.to_owned();
    let name = dataset["name"].as_str().filter(|name| !name.is_empty()).unwrap_or(&id).to_owned();
    let created = dataset["created_at"].as_str().and_then(timestamp::parse_rfc3339).unwrap_or_default();
    let purpose = match dataset["dataset_type"].as_str() {
        Some(COHERE_INPUT_TYPE) => BATCH_PURPOSE,
        Some(kind) if COHERE_OUTPUT_TYPES.contains(&kind) => "batch_output",
        _ => DEFAULT_PURPOSE,
    };
    let state = match dataset["validation_status"].as_str() {
        Some("validated") => FileState::Ready,
        Some("failed" | "skipped") => {
            let reason = dataset["validation_error"].as_str().filter(|reason| !reason.is_empty());
            FileState::Failed(reason.unwrap_or("the provider's validation failed without a reason").to_owned())
        }
        _ => FileState::Pending,
    };
    let parts = dataset["dataset_parts"].as_array().into_iter().flatten();
    let bytes = parts.filter_map(|part| part["size_bytes"].as_u64()).sum();
    Some(FileObject { id, bytes, created_at: created, name, purpose: purpose.to_owned(), state })
}

/// Returns the error code and the message of a JSON error response.
pub(crate) fn error_code_and_message(response: &[u8]) -> (Option<String>, Option<String>) {
    let details = parse_error(response);
    (details.code, details.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derives_the_purpose_of_a_dataset_from_its_id() {
        let name = |id: &str| {
            json!({"name": format!("accounts/a/datasets/{id}"), "state": "READY",
            "createTime": "2023-11-14T22:13:20Z", "displayName": "a.jsonl"})
        };
        let dataset = parse_fireworks_dataset(&name(&fireworks_dataset_id("fine-tune", "u1").unwrap())).unwrap();
        assert_eq!(
            (dataset.id.as_str(), dataset.purpose.as_str(), dataset.created_at),
            ("fine-tune-u1", "fine-tune", 1_700_000_000)
        );
        assert!(dataset.state == FileState::Ready && dataset.name == "a.jsonl");
        let list = DatasetStore::Fireworks.parse_file_list(
            &json!({"datasets": [name("x"), {}, {"name": "accounts/a/datasets/batch-1", "state": "UPLOADING"}]}),
        );
        let purposes: Vec<_> =
            list.iter().map(|file| (file.purpose.as_str(), file.state == FileState::Ready)).collect();
        assert_eq!(purposes, [("user_data", true), ("batch", false)]);
        assert!(fireworks_dataset_id("vision", "u").unwrap_err().contains("fine-tune or batch"));
    }

    #[test]
    fn returns_the_urls_of_rejected_lines_last() {
        let response =
            json!({"filenameToSignedUrls": {"x/error-data.jsonl": "b", "x/BIJOutputSet.jsonl": "a", "y": 7}});
        assert_eq!(DatasetStore::Fireworks.download_urls(&response), ["a", "b"]);
        let response = json!({"dataset": {"dataset_parts": [{"url": "a"}, {"url": ""}, {}, {"url": "b"}]}});
        assert_eq!(DatasetStore::Cohere.download_urls(&response), ["a", "b"]);
        assert!(
            [DatasetStore::Cohere, DatasetStore::Fireworks]
                .iter()
                .all(|kind| kind.download_urls(&json!({})).is_empty())
        );
    }

    #[test]
    fn rejects_dataset_ids_that_are_not_one_path_segment() {
        let target = |path| DatasetStore::Fireworks.dataset_path(path, false);
        assert_eq!(target("/files").unwrap(), "datasets");
        assert_eq!(target("/files/d-1").unwrap(), "datasets/d-1");
        assert_eq!(target("/files/d-1/content").unwrap(), "datasets/d-1:upload");
        assert_eq!(
            DatasetStore::Fireworks.dataset_path("/files/d-1/content", true).unwrap(),
            "datasets/d-1:getDownloadEndpoint"
        );
        for wrong in ["/files/", "/files/a:b", "/files/a%2Fb", "/files/..", "/files/A"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
        let target = |path| DatasetStore::Cohere.dataset_path(path, true);
        assert_eq!(target("/files/My_set-1/content").unwrap(), "datasets/My_set-1");
        for wrong in ["/files/", "/files/a.b", "/files/a%2Fb", "/files/..", "/files/a?b"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn maps_cohere_validation_status_to_file_state() {
        let name = |kind: &str, status: &str| {
            json!({"dataset": {"id": "d", "name": "a.jsonl", "created_at": "2023-11-14T22:13:20Z", "dataset_type": kind,
            "validation_status": status, "validation_error": "no text", "dataset_parts": [{"size_bytes": 3},
            {"size_bytes": 4}]}})
        };
        let file = |kind, status| DatasetStore::Cohere.parse_file(&name(kind, status)).unwrap();
        let dataset = file(COHERE_INPUT_TYPE, "queued");
        assert_eq!((dataset.bytes, dataset.created_at, &*dataset.name), (7, 1_700_000_000, "a.jsonl"));
        assert_eq!((&*dataset.purpose, dataset.state), (BATCH_PURPOSE, FileState::Pending));
        assert_eq!(file(COHERE_OUTPUT_TYPES[0], "validated").purpose, "batch_output");
        assert_eq!(file("other", "validated").state, FileState::Ready);
        assert_eq!(file(COHERE_INPUT_TYPE, "failed").state, FileState::Failed("no text".into()));
        assert_eq!(
            cohere_dataset_query(BATCH_PURPOSE, "a b.jsonl").unwrap(),
            "name=a%20b.jsonl&type=embed-input&optional_fields=custom_id"
        );
        assert!(cohere_dataset_query("fine-tune", "a").unwrap_err().contains("must be batch"));
    }
}
