//! Google external account credentials (workload identity federation). Tests which tokens are exchanged, and where they
//! are sent.

use crate::harness::{CHAT_PATH, TestGateway, TestRequest, chat_body, issuer::CredentialIssuer};
use penstock_core::process::settings::WorkloadIdentity;
use penstock_mock::Server;
use serde_json::{Value, json};

const AUDIENCE: &str = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k";
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const JWT_TOKEN_TYPE: &str = "urn:ietf:params:oauth:token-type:jwt";
const IMPERSONATION_PATH: &str = "/v1/projects/-/serviceAccounts/a@p.iam.gserviceaccount.com:generateAccessToken";

fn external_account_file(source: &Value, exchange: &str) -> Value {
    json!({"type": "external_account", "audience": AUDIENCE, "subject_token_type": JWT_TOKEN_TYPE, "token_url": exchange,
        "credential_source": source})
}

/// Gateway with this identity, and a saved provider with this credential file.
fn rig_with_identity(provider: &Server, identity: WorkloadIdentity, file: &Value) -> TestGateway {
    let gateway = TestGateway::with_settings("", |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
        settings.identity = identity;
    });
    let options = json!({"vertex_project_id": "p", "vertex_region": "europe-west4",
        "vertex_auth_type": "workloadIdentityFederation", "vertex_service_account_json": file.to_string()});
    let row = json!({"slug": "v", "provider": "vertex-ai", "custom_host": provider.url(), "options": options});
    gateway.apply_snapshot(&json!({"epoch": "1", "providers": [row]}));
    gateway
}

fn saved_provider_request() -> TestRequest {
    TestRequest::new("POST", CHAT_PATH)
        .header("content-type", "application/json")
        .header("x-gateway-provider", "@v")
        .body(chat_body("gemini-2.5-pro", false))
}

fn sent_authorizations(provider: &Server) -> Vec<String> {
    provider.ledger_entries().iter().map(|entry| entry.header("authorization").unwrap_or_default().to_owned()).collect()
}

async fn start_impersonation_issuer() -> CredentialIssuer {
    let token = json!({"accessToken": "of-the-account", "expireTime": "2999-01-01T00:00:00Z"}).to_string();
    CredentialIssuer::start_with_responses(move |_| (200, token.clone())).await
}

#[tokio::test]
async fn exchanges_platform_token_only_where_operator_allows() {
    let (sts, iam, evil, provider) = (
        CredentialIssuer::start_with_tokens().await,
        start_impersonation_issuer().await,
        CredentialIssuer::start_with_tokens().await,
        Server::start().await,
    );
    let path = std::env::temp_dir().join(format!("penstock-google-{}", std::process::id()));
    std::fs::write(&path, "{\"id_token\":\"vouched\"}\n").unwrap();
    let identity = WorkloadIdentity {
        allow_provider_use: true,
        google_token_file: Some(path.clone()),
        google_sts_url: format!("{}/v1/token", sts.server.url()),
        google_iam_url: iam.server.url(),
        ..WorkloadIdentity::default()
    };
    let format = json!({"type": "json", "subject_token_field_name": "id_token"});
    let mut response = external_account_file(&json!({"file": path, "format": format}), &evil.server.url());
    response["service_account_impersonation_url"] =
        format!("https://iamcredentials.googleapis.com{IMPERSONATION_PATH}").into();
    response["service_account_impersonation"] = json!({"token_lifetime_seconds": 1200});
    let state = rig_with_identity(&provider, identity.clone(), &response);
    for _ in 0..2 {
        let reply = state.send(saved_provider_request()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert_eq!(sent_authorizations(&provider), vec!["Bearer of-the-account"; 2]);
    assert!(sts.received_requests()[0].starts_with("POST /v1/token HTTP/1.1"));
    for (name, value) in [
        ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
        ("audience", AUDIENCE),
        ("scope", SCOPE),
        ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
        ("subject_token_type", JWT_TOKEN_TYPE),
        ("subject_token", "vouched"),
    ] {
        assert!(sts.form_fields(0).contains(&(name.to_owned(), value.to_owned())), "{name}");
    }
    let requests = iam.received_requests();
    assert!(requests[0].starts_with(&format!("POST {IMPERSONATION_PATH} HTTP/1.1")), "{}", requests[0]);
    assert!(requests[0].contains("authorization: Bearer token-1\r\n") && requests.len() == 1, "{}", requests[0]);
    let (_, body) = requests[0].split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body, json!({"scope": [SCOPE], "lifetime": "1200s"}));

    // Rejects another token file, another token issuer, and an identity that providers may not use.
    let other = external_account_file(&json!({"file": "/etc/passwd"}), &evil.server.url());
    let mut elsewhere = response.clone();
    elsewhere["service_account_impersonation_url"] = format!("{}{IMPERSONATION_PATH}", evil.server.url()).into();
    let remaining = WorkloadIdentity { allow_provider_use: false, ..identity.clone() };
    let unset = WorkloadIdentity { google_token_file: None, ..identity.clone() };
    for (identity, response, words) in [
        (identity.clone(), &other, "identity.google_token_file"),
        (identity, &elsewhere, "iamcredentials"),
        (remaining, &response, "identity.allow_provider_use"),
        (unset, &response, "google_token_file is not set"),
    ] {
        let reply = rig_with_identity(&provider, identity, response).send(saved_provider_request()).await;
        assert!(reply.status >= 400 && reply.text().contains(words), "{words}: {}", reply.text());
    }
    std::fs::remove_file(path).unwrap();
    assert!(evil.received_requests().is_empty());
}

#[tokio::test]
async fn fetches_subject_token_from_url() {
    let (sts, iam, provider) =
        (CredentialIssuer::start_with_tokens().await, start_impersonation_issuer().await, Server::start().await);
    let idp = CredentialIssuer::start_with_responses(|_| (200, json!({"value": "theirs"}).to_string())).await;
    let format = json!({"type": "json", "subject_token_field_name": "value"});
    let source = json!({"url": format!("{}/token?audience=a", idp.server.url()),
        "headers": {"Authorization": "Bearer own"}, "format": format});
    let mut response = external_account_file(&source, &format!("{}/exchange", sts.server.url()));
    let reply =
        rig_with_identity(&provider, WorkloadIdentity::default(), &response).send(saved_provider_request()).await;
    assert_eq!(
        (reply.status, sent_authorizations(&provider)),
        (200, vec!["Bearer token-1".to_owned()]),
        "{}",
        reply.text()
    );
    assert!(idp.received_requests()[0].starts_with("GET /token?audience=a HTTP/1.1"), "{}", idp.received_requests()[0]);
    assert!(
        idp.received_requests()[0].contains("authorization: Bearer own\r\n")
            && !idp.received_requests()[0].contains("content-length")
    );
    assert!(sts.form_fields(0).contains(&("subject_token".to_owned(), "theirs".to_owned())));
    response["service_account_impersonation_url"] = format!("{}{IMPERSONATION_PATH}", iam.server.url()).into();
    let state = rig_with_identity(&provider, WorkloadIdentity::default(), &response);
    assert_eq!(state.send(saved_provider_request()).await.status, 200);
    assert_eq!(sent_authorizations(&provider)[1], "Bearer of-the-account");
    // A credential file must not make the gateway query the machine's metadata service.
    let metadata = json!({"url": "http://169.254.169.254/latest/token"});
    let reply =
        rig_with_identity(&provider, WorkloadIdentity::default(), &external_account_file(&metadata, &sts.server.url()))
            .send(saved_provider_request())
            .await;
    assert!(reply.status == 502 && reply.text().contains("169.254.169.254"), "{}", reply.text());
}

#[tokio::test]
async fn reports_issuer_error_without_leaking_secrets() {
    let provider = Server::start().await;
    let idp = CredentialIssuer::start_with_responses(|_| (200, "canary-of-theirs".to_owned())).await;
    let no = json!({"error": "invalid_target", "error_description": "no such pool"}).to_string();
    let sts = CredentialIssuer::start_with_responses(move |_| (400, no.clone())).await;
    let response = external_account_file(&json!({"url": idp.server.url()}), &sts.server.url());
    let reply =
        rig_with_identity(&provider, WorkloadIdentity::default(), &response).send(saved_provider_request()).await;
    assert!(reply.status == 502 && reply.text().contains("no such pool"), "{}", reply.text());
    assert!(!reply.text().contains("canary"));
}
