//! Files of providers that keep them in another way than `OpenAI`, in the words of `OpenAI`.

pub(crate) mod batch_results;
pub(crate) mod batch_rows;
mod bucket;
pub mod datasets;

pub use crate::files::batch_results::Answered;
pub use crate::files::batch_rows::{Row, Words};
pub(crate) use bucket::{BAD_BUCKET, is_bucket};
pub use bucket::{Bucket, FOLDER, GCS, Place, S3, completion};
pub use datasets::Datasets;

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::{
    api_format::{Dialect, Failure, error_body},
    xml,
};

/// What is said of a file whose purpose nobody noted.
const UNKNOWN: &str = "user_data";
/// What `OpenAI`'s clients may say a file is for.
const PURPOSES: [&str; 9] = [
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

/// Who keeps the files of a provider, where that is asked in another way than `OpenAI`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    Bucket(&'static Bucket),
    Datasets(Datasets),
}

impl Keeper {
    pub fn bucket(self) -> Option<&'static Bucket> {
        if let Self::Bucket(bucket) = self { Some(bucket) } else { None }
    }

    /// In which the lines of a batch are kept.
    pub fn words(self) -> Words {
        match self {
            Self::Bucket(bucket) => bucket.words,
            Self::Datasets(datasets) => datasets.words(),
        }
    }

    /// The header field in which an answer names its request.
    pub fn request_id(self) -> &'static str {
        self.bucket().map_or("x-request-id", |bucket| bucket.request_id)
    }
}

/// What is known of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub id: String,
    pub bytes: u64,
    /// In seconds since 1970.
    pub created: u64,
    pub name: String,
    pub purpose: String,
    pub state: State,
}

/// How far a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Coming,
    /// All of it has come, and was found good.
    Ready,
    /// It was not, for a reason.
    Wrong(String),
}

impl File {
    fn shown(&self) -> Value {
        let (status, why) = match &self.state {
            State::Coming => ("uploaded", None),
            State::Ready => ("processed", None),
            State::Wrong(why) => ("error", Some(why)),
        };
        json!({
            "id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.created, "filename": self.name,
            "purpose": self.purpose, "status": status, "status_details": why, "expires_at": null,
        })
    }

    pub fn told(&self) -> Vec<u8> {
        self.shown().to_string().into_bytes()
    }
}

/// Part of a list, and whether there is more behind it.
pub fn listed(files: &[File], has_more: bool) -> Vec<u8> {
    let (first, last) = (files.first().map(|file| &file.id), files.last().map(|file| &file.id));
    let data: Vec<_> = files.iter().map(File::shown).collect();
    json!({"object": "list", "data": data, "has_more": has_more, "first_id": first, "last_id": last})
        .to_string()
        .into_bytes()
}

/// That a file is no more.
pub fn deleted(id: &str) -> Vec<u8> {
    json!({"id": id, "object": "file", "deleted": true}).to_string().into_bytes()
}

/// The purpose of a file, if it is one.
pub fn purpose(said: &str) -> Result<&'static str, String> {
    let found = PURPOSES.iter().find(|purpose| **purpose == said).copied();
    found.ok_or_else(|| format!("`{said}` is not known: it must be one of {}", PURPOSES.join(", ")))
}

/// The refusal of who keeps the files, told in `OpenAI`'s shape with its own code, and its name for the request where it says one.
pub fn refused(provider: &str, status: u16, answer: &[u8], request_id: Option<&str>) -> Vec<u8> {
    let text = String::from_utf8_lossy(answer);
    let (code, message) = datasets::refusal(answer);
    let code = xml::text(&text, "Code").map(Cow::into_owned).or(code);
    let said = || match status {
        404 => "there is no such file".to_owned(),
        _ if text.trim().is_empty() => format!("status {status}"),
        _ => text.trim().chars().take(500).collect(),
    };
    let words = xml::text(&text, "Message").map(Cow::into_owned).or(message).unwrap_or_else(said);
    let request_id = request_id.map(Into::into).or_else(|| xml::text(&text, "RequestId"));
    let request = request_id.map(|id| format!(" (request {id})")).unwrap_or_default();
    let message = format!("{provider} error: {words}{request}");
    let failure = Failure { status, kind: None, message: &message, code: code.as_deref(), request_id: None };
    crate::translation::errors::with_provider(error_body(Dialect::OpenAi, &failure), provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn a_list_says_where_it_begins_and_ends() {
        let file = |id: &str| File {
            id: id.into(),
            bytes: 1,
            created: 2,
            name: "n".into(),
            purpose: "batch".into(),
            state: State::Ready,
        };
        let list = read(&listed(&[file("a"), file("b")], true));
        assert_eq!((&list["first_id"], &list["last_id"], &list["has_more"]), (&"a".into(), &"b".into(), &true.into()));
        assert_eq!(list["data"][1], read(&file("b").told()));
        assert_eq!(read(&listed(&[], false))["first_id"], Value::Null);
    }

    #[test]
    fn a_refusal_keeps_its_code_and_the_name_of_its_request() {
        let xml = b"<?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code><Message>no &lt;b&gt;</Message><RequestId>R1</RequestId></Error>";
        let error = read(&refused("bedrock", 404, xml, None));
        let expected = json!({"message": "bedrock error: no <b> (request R1)", "type": "not_found_error", "param": null,
            "code": "NoSuchBucket"});
        assert_eq!(error, json!({"error": expected, "provider": "bedrock"}));
        let error = |status, answer: &[u8]| read(&refused("b", status, answer, Some("R2")))["error"]["message"].clone();
        assert_eq!(error(404, b""), "b error: there is no such file (request R2)");
        assert_eq!(error(403, b" "), "b error: status 403 (request R2)");
        assert_eq!(error(500, b"oh"), "b error: oh (request R2)");
    }

    #[test]
    fn a_purpose_is_one_of_openais() {
        assert_eq!(purpose("fine-tune"), Ok("fine-tune"));
        assert!(purpose("fine\r\n").unwrap_err().contains("user_data"));
    }
}
