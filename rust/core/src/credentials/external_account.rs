//! Who is known to Google by somebody else's word: a token of theirs is exchanged for one of Google's, and that, where it is
//! wanted, for a service account's own.

use std::time::{Duration, SystemTime};

use penstock_llm::catalog::{ExternalAccount, SubjectTokenSource};
use serde::Deserialize;
use serde_json::{Value, json};

use super::IssuedCredential;
use crate::credentials::{aws_instance, token_endpoint};
use crate::{
    process::settings::WorkloadIdentity,
    upstream::{BaseUrl, Upstream},
};

const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN_TYPE: &str = "urn:ietf:params:oauth:token-type:access_token";
/// Where service accounts' own tokens are given.
const IAM_CREDENTIALS_URL: &str = "https://iamcredentials.googleapis.com/";

pub async fn fetch_token(
    upstream: &Upstream,
    own: &WorkloadIdentity,
    account: &ExternalAccount,
) -> Result<(IssuedCredential, Duration), String> {
    let vouched = read_subject_token(upstream, own, account).await?;
    // What vouches for the machine, and what comes of it, goes to nobody but who its operator trusts.
    let is_machines = matches!(account.subject_token_source, SubjectTokenSource::File(_));
    let exchange = if is_machines { &own.google_sts_url } else { &account.token_url };
    let form = token_endpoint::encode_form(&[
        ("grant_type", GRANT_TYPE),
        ("audience", &account.audience),
        ("scope", account.scope),
        ("requested_token_type", ACCESS_TOKEN_TYPE),
        ("subject_token_type", &account.subject_token_type),
        ("subject_token", &vouched),
    ]);
    let given = token_endpoint::request_token(upstream, exchange, &form).await?;
    let Some((url, life)) = &account.impersonation else { return Ok(given) };
    let (IssuedCredential::Token(federated), _) = given else { return Err("what was given is no token".into()) };
    if !is_machines {
        return impersonate_service_account(upstream, url, (&federated, account.scope, *life)).await;
    }
    let path = url
        .strip_prefix(IAM_CREDENTIALS_URL)
        .ok_or_else(|| format!("`service_account_impersonation_url` must begin with {IAM_CREDENTIALS_URL}"))?;
    let url = format!("{}/{path}", own.google_iam_url.trim_end_matches('/'));
    impersonate_service_account(upstream, &url, (&federated, account.scope, *life)).await
}

/// The token of somebody else's.
async fn read_subject_token(
    upstream: &Upstream,
    own: &WorkloadIdentity,
    account: &ExternalAccount,
) -> Result<String, String> {
    let said = match &account.subject_token_source {
        SubjectTokenSource::File(path) => match &own.google_token_file {
            // Whoever stores a provider may not have any file of the machine's sent to somebody.
            Some(file) if file.as_os_str() == path.as_str() => aws_instance::read_file(file).await?,
            Some(_) => {
                return Err("the file of `credential_source` is not the one of identity.google_token_file".into());
            }
            None => return Err("identity.google_token_file is not set".into()),
        },
        SubjectTokenSource::Url { url, headers: fields } => {
            let (address, query) = url.split_at(url.find('?').unwrap_or(url.len()));
            if !query.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
                return Err("the url of `credential_source` has a query that cannot be asked for".into());
            }
            let head = |base: &BaseUrl| {
                let mut head = build_request_head("GET", base, query);
                for (name, text) in fields {
                    head.extend([name, ": ", text, "\r\n"]);
                }
                Ok(head.into_bytes())
            };
            let (status, body) = token_endpoint::send_request(upstream, address, ("", ""), head).await?;
            if status != 200 {
                return Err(format!("{address} answered {status}"));
            }
            String::from_utf8(body.to_vec()).map_err(|_| format!("what {address} says is no text"))?
        }
    };
    let Some(member) = &account.token_field else { return Ok(said.trim().to_owned()) };
    let said: Value =
        serde_json::from_str(&said).map_err(|_| "the token is not in JSON, as its format says".to_owned())?;
    said[member]
        .as_str()
        .map(ToOwned::to_owned)
        .ok_or_else(|| format!("there is no text `{member}` where the token is"))
}

/// A service account's own token, for one that may ask for it.
async fn impersonate_service_account(
    upstream: &Upstream,
    url: &str,
    (federated, scope, life): (&str, &str, u64),
) -> Result<(IssuedCredential, Duration), String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ImpersonationResponse {
        access_token: String,
        expire_time: String,
    }
    let asked = json!({"scope": [scope], "lifetime": format!("{life}s")}).to_string();
    let head = |base: &BaseUrl| {
        Ok(format!("{}authorization: Bearer {federated}\r\n", build_request_head("POST", base, "")).into_bytes())
    };
    let (status, body) = token_endpoint::send_request(upstream, url, ("application/json", &asked), head).await?;
    if status != 200 {
        let told: Value = serde_json::from_slice(&body).unwrap_or_default();
        let words = told["error"]["message"].as_str().unwrap_or_default();
        return Err(format!("{url} answered {status}: {}", token_endpoint::sanitise_message(words)));
    }
    let told: ImpersonationResponse = serde_json::from_slice(&body).map_err(|_| format!("{url} gave no token"))?;
    if told.access_token.is_empty() || !told.access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{url} gave a token that no header can carry"));
    }
    let ends =
        humantime::parse_rfc3339(told.expire_time.trim()).map_err(|_| format!("{url} gave a token without an end"))?;
    let life = ends.duration_since(SystemTime::now()).map_err(|_| format!("{url} gave a token that is over"))?;
    Ok((IssuedCredential::Token(told.access_token), life))
}

/// The beginning of a request's head.
fn build_request_head(method: &str, base: &BaseUrl, query: &str) -> String {
    let path = if base.prefix.is_empty() { "/" } else { &base.prefix };
    format!("{method} {path}{query} HTTP/1.1\r\nhost: {}\r\naccept: application/json\r\n", base.origin.authority())
}
