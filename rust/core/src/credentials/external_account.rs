//! Google external accounts (workload identity federation). Exchanges a third-party token for a Google token, which can
//! then impersonate a service account.

use std::time::{Duration, SystemTime};

use penstock_llm::catalog::{ExternalAccount, SubjectTokenSource};
use penstock_net::{BaseUrl, BufferedResponse, Upstream};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    credentials::{aws_instance, issued::IssuedCredential, token_endpoint},
    process::settings::WorkloadIdentity,
};

const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN_TYPE: &str = "urn:ietf:params:oauth:token-type:access_token";
/// Endpoint that issues tokens for service accounts.
const IAM_CREDENTIALS_URL: &str = "https://iamcredentials.googleapis.com/";

pub async fn fetch_token(
    upstream: &Upstream,
    identity: &WorkloadIdentity,
    account: &ExternalAccount,
) -> Result<(IssuedCredential, Duration), String> {
    let vouched = read_subject_token(upstream, identity, account).await?;
    // The machine's token, and the token exchanged for it, are sent only to endpoints that the operator trusts.
    let is_machines = matches!(account.subject_token_source, SubjectTokenSource::File(_));
    let exchange = if is_machines { &identity.google_sts_url } else { &account.token_url };
    let form = token_endpoint::encode_form(&[
        ("grant_type", GRANT_TYPE),
        ("audience", &account.audience),
        ("scope", account.scope),
        ("requested_token_type", ACCESS_TOKEN_TYPE),
        ("subject_token_type", &account.subject_token_type),
        ("subject_token", &vouched),
    ]);
    let token_response = token_endpoint::request_token(upstream, exchange, &form).await?;
    let Some((url, life)) = &account.impersonation else { return Ok(token_response) };
    let (IssuedCredential::Token(federated), _) = token_response else {
        return Err("the token exchange returned no token".into());
    };
    if !is_machines {
        return impersonate_service_account(upstream, url, &federated, account.scope, *life).await;
    }
    let path = url
        .strip_prefix(IAM_CREDENTIALS_URL)
        .ok_or_else(|| format!("`service_account_impersonation_url` must begin with {IAM_CREDENTIALS_URL}"))?;
    let url = format!("{}/{path}", identity.google_iam_url.trim_end_matches('/'));
    impersonate_service_account(upstream, &url, &federated, account.scope, *life).await
}

/// Reads the subject token that the third party issued.
async fn read_subject_token(
    upstream: &Upstream,
    identity: &WorkloadIdentity,
    account: &ExternalAccount,
) -> Result<String, String> {
    let document = match &account.subject_token_source {
        SubjectTokenSource::File(path) => match &identity.google_token_file {
            // A stored provider must not make the gateway send an arbitrary file of this machine.
            Some(file) if file.as_os_str() == path.as_str() => aws_instance::read_file(file).await?,
            Some(_) => {
                return Err("the file of `credential_source` differs from identity.google_token_file; only that file may be used".into());
            }
            None => return Err("identity.google_token_file is not set".into()),
        },
        SubjectTokenSource::Url { url, headers: fields } => {
            let (address, query) = url.split_at(url.find('?').unwrap_or(url.len()));
            if !query.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
                return Err(
                    "the URL of `credential_source` has an invalid query; only printable ASCII without `#` is allowed"
                        .into(),
                );
            }
            let head = |base: &BaseUrl| {
                let mut head = build_request_head("GET", base, query);
                for (name, text) in fields {
                    head.extend([name, ": ", text, "\r\n"]);
                }
                Ok(head.into_bytes())
            };
            let BufferedResponse { status, body } =
                token_endpoint::send_request(upstream, address, "", "", head).await?;
            if status != 200 {
                return Err(format!("{address} returned status {status}"));
            }
            String::from_utf8(body.to_vec()).map_err(|_| format!("the response of {address} is not UTF-8 text"))?
        }
    };
    let Some(member) = &account.token_field else { return Ok(document.trim().to_owned()) };
    let parsed: Value = serde_json::from_str(&document)
        .map_err(|_| "the token is not in JSON, which its format requires".to_owned())?;
    parsed[member].as_str().map(ToOwned::to_owned).ok_or_else(|| format!("the token document has no string `{member}`"))
}

/// Exchanges a federated token for a token of the service account that it may impersonate.
async fn impersonate_service_account(
    upstream: &Upstream,
    url: &str,
    federated_token: &str,
    scope: &str,
    lifetime_seconds: u64,
) -> Result<(IssuedCredential, Duration), String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ImpersonationResponse {
        access_token: String,
        expire_time: String,
    }
    let request_body = json!({"scope": [scope], "lifetime": format!("{lifetime_seconds}s")}).to_string();
    let head = |base: &BaseUrl| {
        Ok(format!("{}authorization: Bearer {federated_token}\r\n", build_request_head("POST", base, "")).into_bytes())
    };
    let BufferedResponse { status, body } =
        token_endpoint::send_request(upstream, url, "application/json", &request_body, head).await?;
    if status != 200 {
        let error: Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = error["error"]["message"].as_str().unwrap_or_default();
        return Err(format!("{url} returned status {status}: {}", token_endpoint::sanitise_message(message)));
    }
    let response: ImpersonationResponse =
        serde_json::from_slice(&body).map_err(|_| format!("{url} returned no token"))?;
    if response.access_token.is_empty() || !response.access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{url} returned a token that cannot be sent in a header"));
    }
    let ends = humantime::parse_rfc3339(response.expire_time.trim())
        .map_err(|_| format!("{url} returned a token without a valid expiry time"))?;
    let life = ends.duration_since(SystemTime::now()).map_err(|_| format!("{url} returned an expired token"))?;
    Ok((IssuedCredential::Token(response.access_token), life))
}

/// Builds the request line and the common header fields.
fn build_request_head(method: &str, base: &BaseUrl, query: &str) -> String {
    let path = if base.prefix.is_empty() { "/" } else { &base.prefix };
    format!("{method} {path}{query} HTTP/1.1\r\nhost: {}\r\naccept: application/json\r\n", base.origin.authority())
}
