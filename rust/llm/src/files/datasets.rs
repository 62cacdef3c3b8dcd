//! Files that are datasets of an account at Fireworks: for fine-tuning and batches, by names that say which.

use serde_json::{Value, json};

use super::{File, UNKNOWN};
use crate::{moment, translation::wires::chat};

/// What a dataset may be for.
const PURPOSES: [&str; 2] = ["fine-tune", "batch"];
/// As long as an id may be.
const LONGEST_ID: usize = 63;

/// What a file is called there; an error says what it cannot be for.
pub fn id(purpose: &str, unique: &str) -> Result<String, String> {
    if PURPOSES.contains(&purpose) {
        return Ok(format!("{purpose}-{unique}"));
    }
    Err(format!("`{purpose}` is nothing that files are for here: it must be {}", PURPOSES.join(" or ")))
}

/// What makes a dataset that is filled after that.
pub fn made(id: &str, name: &str) -> Vec<u8> {
    json!({"datasetId": id, "dataset": {"displayName": name, "userUploaded": {}}}).to_string().into_bytes()
}

/// What follows the account in the address of datasets, of one of them, and of what is in it: where that goes, or may be read.
pub fn target(path: &str, reads: bool) -> Result<String, String> {
    let mut segments = path.split('/').skip(2);
    let Some(id) = segments.next() else { return Ok("datasets".into()) };
    let is_id = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if id.is_empty() || id.len() > LONGEST_ID || !id.bytes().all(is_id) {
        return Err(format!("the id of a file is that of a dataset: 1 to {LONGEST_ID} of a-z, 0-9 and -"));
    }
    let verb = if reads { ":getDownloadEndpoint" } else { ":upload" };
    Ok(if segments.next().is_some() { format!("datasets/{id}{verb}") } else { format!("datasets/{id}") })
}

/// What is said of a dataset; how many bytes it has is not.
pub fn file(dataset: &Value) -> Option<File> {
    let id = dataset["name"].as_str()?.rsplit('/').next()?.to_owned();
    let name = dataset["displayName"].as_str().filter(|name| !name.is_empty()).unwrap_or(&id).to_owned();
    let created = dataset["createTime"].as_str().and_then(moment::seconds).unwrap_or_default();
    let purpose = PURPOSES.iter().find(|purpose| id.starts_with(&format!("{purpose}-"))).unwrap_or(&UNKNOWN);
    let purpose = (*purpose).to_owned();
    Some(File { id, bytes: 0, created, name, purpose, is_ready: dataset["state"] == "READY" })
}

/// All datasets of an answer.
pub fn files(answer: &Value) -> Vec<File> {
    answer["datasets"].as_array().into_iter().flatten().filter_map(file).collect()
}

/// Where the files of a dataset are for a while; those of lines that were refused come last.
pub fn located(answer: &Value) -> Vec<&str> {
    let files = answer["filenameToSignedUrls"].as_object();
    let mut files: Vec<_> = files.into_iter().flatten().filter_map(|(name, url)| Some((name, url.as_str()?))).collect();
    files.sort_by_key(|(name, _)| name.to_ascii_lowercase().contains("error"));
    files.into_iter().map(|(_, url)| url).collect()
}

/// Code and words of a refusal.
pub(super) fn refusal(answer: &[u8]) -> (Option<String>, Option<String>) {
    let found = chat::error(answer);
    (found.code, found.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_is_a_file_whose_name_says_what_it_is_for() {
        let name = |id: &str| {
            json!({"name": format!("accounts/a/datasets/{id}"), "state": "READY",
            "createTime": "2023-11-14T22:13:20Z", "displayName": "a.jsonl"})
        };
        let made = file(&name(&id("fine-tune", "u1").unwrap())).unwrap();
        assert_eq!(
            (made.id.as_str(), made.purpose.as_str(), made.created),
            ("fine-tune-u1", "fine-tune", 1_700_000_000)
        );
        assert!(made.is_ready && made.name == "a.jsonl");
        let list =
            files(&json!({"datasets": [name("x"), {}, {"name": "accounts/a/datasets/batch-1", "state": "UPLOADING"}]}));
        let purposes: Vec<_> = list.iter().map(|file| (file.purpose.as_str(), file.is_ready)).collect();
        assert_eq!(purposes, [("user_data", true), ("batch", false)]);
        assert!(id("vision", "u").unwrap_err().contains("fine-tune or batch"));
    }

    #[test]
    fn what_was_refused_is_read_last() {
        let answer = json!({"filenameToSignedUrls": {"x/error-data.jsonl": "b", "x/BIJOutputSet.jsonl": "a", "y": 7}});
        assert_eq!(located(&answer), ["a", "b"]);
        assert!(located(&json!({})).is_empty());
    }

    #[test]
    fn an_id_is_a_segment_and_nothing_else() {
        let target = |path| target(path, false);
        assert_eq!(target("/files").unwrap(), "datasets");
        assert_eq!(target("/files/d-1").unwrap(), "datasets/d-1");
        assert_eq!(target("/files/d-1/content").unwrap(), "datasets/d-1:upload");
        assert_eq!(super::target("/files/d-1/content", true).unwrap(), "datasets/d-1:getDownloadEndpoint");
        for wrong in ["/files/", "/files/a:b", "/files/a%2Fb", "/files/..", "/files/A"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
