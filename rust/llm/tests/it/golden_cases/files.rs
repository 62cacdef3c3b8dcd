//! Files of golden cases, for the tests of this crate and of the core crate.
//!
//! `golden/inputs` holds each client request and each upstream response once. `golden/<provider>/<operation>/cases.json`
//! names the inputs of each case. `golden/<provider>/<operation>/<case>` holds what the translation must return.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "not every user needs all of it")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

/// Keys of a case in `cases.json`.
const KEYS: [&str; 4] = ["request", "response", "query", "options"];

#[derive(Clone)]
pub struct CaseFiles {
    /// Folder of the expected results.
    folder: PathBuf,
    request: Option<PathBuf>,
    response: Option<PathBuf>,
    /// Query of the client request.
    pub query: String,
    /// Provider options.
    pub options: Value,
}

pub fn golden_root() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../llm/tests/golden")).to_owned()
}

pub fn inputs_root() -> PathBuf {
    golden_root().join("inputs")
}

/// Returns the slugs of all providers that have cases.
pub fn list_providers() -> Vec<String> {
    list_folders(&golden_root()).into_iter().filter(|name| name != "inputs").collect()
}

/// Returns the names of the folders in a folder.
pub fn list_folders(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<_> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns the manifest of an operation: an object per case. Empty if the provider has no such folder.
pub fn read_manifest(provider: &str, operation: &str) -> Map<String, Value> {
    let path = golden_root().join(provider).join(operation).join("cases.json");
    let Ok(text) = fs::read(&path) else { return Map::new() };
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the files of all cases of an operation, sorted by name.
pub fn list_cases(provider: &str, operation: &str) -> Vec<(String, CaseFiles)> {
    let folder = golden_root().join(provider).join(operation);
    let mut cases: Vec<_> = read_manifest(provider, operation)
        .iter()
        .map(|(name, row)| (name.clone(), CaseFiles::from_manifest_row(folder.join(name), row)))
        .collect();
    cases.sort_by(|left, other| left.0.cmp(&other.0));
    cases
}

/// Returns the files of the case `<provider>/<operation>/<case>`.
pub fn find_case(name: &str) -> Option<CaseFiles> {
    let [provider, operation, case] = name.split('/').collect::<Vec<_>>()[..] else { panic!("no case name: {name}") };
    let row = read_manifest(provider, operation).get(case)?.clone();
    Some(CaseFiles::from_manifest_row(golden_root().join(name), &row))
}

impl CaseFiles {
    fn from_manifest_row(folder: PathBuf, row: &Value) -> Self {
        let unknown = row.as_object().unwrap().keys().find(|key| !KEYS.contains(&key.as_str()));
        assert_eq!(unknown, None, "{}: a case has {KEYS:?}", folder.display());
        let input = |key: &str| {
            let path = inputs_root().join(row.get(key)?.as_str().unwrap());
            assert!(path.is_file(), "{}: the {key} {} does not exist", folder.display(), path.display());
            Some(path)
        };
        Self {
            request: input("request"),
            response: input("response"),
            query: row["query"].as_str().unwrap_or_default().to_owned(),
            options: row["options"].clone(),
            folder,
        }
    }

    /// Returns the path of a file: `request.json` and `response.{json,sse,hex,txt}` are inputs, all others expectations.
    /// The path of an input in another file format does not exist.
    pub fn path(&self, file: &str) -> PathBuf {
        let (stem, extension) = file.split_once('.').unwrap_or((file, ""));
        let input = match stem {
            "request" => self.request.as_ref(),
            "response" => self.response.as_ref(),
            _ => None,
        };
        let same_format =
            input.filter(|path| path.extension().is_some_and(|file_extension| file_extension == extension));
        same_format.cloned().unwrap_or_else(|| self.folder.join(file))
    }
}
