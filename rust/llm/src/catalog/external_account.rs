//! Parser of Google credential files of type `external_account`. They exchange the token of another identity provider
//! for a Google token.

use crate::catalog::grant::{ExternalAccount, SubjectTokenSource};

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

const OPTION: &str = "vertex_service_account_json";
/// Lifetime of a service account's token if the file sets none.
const DEFAULT_TOKEN_LIFETIME_SECONDS: u64 = 3600;

#[derive(Deserialize)]
struct CredentialFile {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    audience: String,
    #[serde(default)]
    subject_token_type: String,
    #[serde(default = "default_token_url")]
    token_url: String,
    #[serde(default)]
    credential_source: Map<String, Value>,
    #[serde(default)]
    service_account_impersonation_url: Option<String>,
    #[serde(default)]
    service_account_impersonation: Impersonation,
}

#[derive(Default, Deserialize)]
struct Impersonation {
    token_lifetime_seconds: Option<u64>,
}

#[derive(Default, Deserialize)]
struct TokenFormat {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    subject_token_field_name: Option<String>,
}

fn default_token_url() -> String {
    "https://sts.googleapis.com/v1/token".to_owned()
}

/// Parses an `external_account` file. Errors quote none of its values, because header values may be secret.
pub(crate) fn parse_external_account(file: &str, scope: &'static str) -> Result<ExternalAccount, String> {
    let unread =
        || format!("{OPTION} must be a file of the type `external_account`, or the key file of a service account");
    let file: CredentialFile = serde_json::from_str(file).map_err(|_| unread())?;
    if file.kind != "external_account" {
        return Err(unread());
    }
    if file.audience.is_empty() || file.subject_token_type.is_empty() {
        return Err(format!("{OPTION} lacks `audience` or `subject_token_type`"));
    }
    let life = file.service_account_impersonation.token_lifetime_seconds.unwrap_or(DEFAULT_TOKEN_LIFETIME_SECONDS);
    Ok(ExternalAccount {
        subject_token_source: parse_source(&file.credential_source)?,
        token_field: parse_token_member(&file.credential_source)?,
        audience: file.audience,
        subject_token_type: file.subject_token_type,
        token_url: file.token_url,
        impersonation: file.service_account_impersonation_url.map(|url| (url, life)),
        scope,
    })
}

fn parse_source(source: &Map<String, Value>) -> Result<SubjectTokenSource, String> {
    if let Some(other) = ["executable", "environment_id", "certificate"].iter().find(|name| source.contains_key(**name))
    {
        return Err(format!("`credential_source.{other}` of {OPTION} is not supported: use file or url"));
    }
    match (source.get("file").and_then(Value::as_str), source.get("url").and_then(Value::as_str)) {
        (Some(file), None) => Ok(SubjectTokenSource::File(file.to_owned())),
        (None, Some(url)) => {
            Ok(SubjectTokenSource::Url { url: url.to_owned(), headers: parse_headers(source.get("headers"))? })
        }
        _ => Err(format!("`credential_source` of {OPTION} must name either a file or a url")),
    }
}

fn parse_headers(value: Option<&Value>) -> Result<Vec<(String, String)>, String> {
    let invalid = || format!("`credential_source.headers` of {OPTION} must map header names to strings");
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    let entries = BTreeMap::<String, String>::deserialize(value).map_err(|_| invalid())?;
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_ours = |name: &str| ["host", "content-length", "transfer-encoding", "connection"].contains(&name);
    let is_text = |text: &str| text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let lower: Vec<_> = entries.into_iter().map(|(name, text)| (name.to_ascii_lowercase(), text)).collect();
    let is_fit = lower.iter().all(|(name, text)| is_name(name) && !is_ours(name) && is_text(text));
    if is_fit { Ok(lower) } else { Err(invalid()) }
}

/// Returns the JSON member that holds the token in the source's response. `None` if the whole response is the token.
fn parse_token_member(source: &Map<String, Value>) -> Result<Option<String>, String> {
    let invalid =
        || format!("`credential_source.format` of {OPTION} must be text, or json with a subject_token_field_name");
    let Some(value) = source.get("format").filter(|value| !value.is_null()) else { return Ok(None) };
    let format = TokenFormat::deserialize(value).map_err(|_| invalid())?;
    match (format.kind.as_deref(), format.subject_token_field_name) {
        (None | Some("text"), _) => Ok(None),
        (Some("json"), Some(name)) => Ok(Some(name)),
        _ => Err(invalid()),
    }
}
