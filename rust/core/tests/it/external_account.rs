//! Who is known to Google by somebody else's word: whose token goes where, and what comes of it.

use crate::harness::{Ask, CHAT, Rig, issuer::Issuer, words};
use penstock_core::process::settings::WorkloadIdentity;
use penstock_mock::Server;
use serde_json::{Value, json};

const AUDIENCE: &str = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k";
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";
const ACCOUNT: &str = "/v1/projects/-/serviceAccounts/a@p.iam.gserviceaccount.com:generateAccessToken";

fn file(source: &Value, exchange: &str) -> Value {
    json!({"type": "external_account", "audience": AUDIENCE, "subject_token_type": JWT, "token_url": exchange,
        "credential_source": source})
}

/// A gateway with this identity, and a stored provider with this file.
fn rig(provider: &Server, identity: WorkloadIdentity, file: &Value) -> Rig {
    let rig = Rig::with("", |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
        settings.identity = identity;
    });
    let options = json!({"vertex_project_id": "p", "vertex_region": "europe-west4",
        "vertex_auth_type": "workloadIdentityFederation", "vertex_service_account_json": file.to_string()});
    let row = json!({"slug": "v", "provider": "vertex-ai", "custom_host": provider.url(), "options": options});
    rig.apply(&json!({"epoch": "1", "providers": [row]}));
    rig
}

fn stored() -> Ask {
    Ask::new("POST", CHAT)
        .header("content-type", "application/json")
        .header("x-gateway-provider", "@v")
        .body(words("gemini-2.5-pro", false))
}

fn carried(provider: &Server) -> Vec<String> {
    provider.ledger_entries().iter().map(|entry| entry.header("authorization").unwrap_or_default().to_owned()).collect()
}

async fn of_account() -> Issuer {
    let token = json!({"accessToken": "of-the-account", "expireTime": "2999-01-01T00:00:00Z"}).to_string();
    Issuer::giving(move |_| (200, token.clone())).await
}

#[tokio::test]
async fn a_token_of_the_platforms_is_exchanged_where_the_operator_says_and_nowhere_else() {
    let (sts, iam, evil, provider) =
        (Issuer::of_tokens().await, of_account().await, Issuer::of_tokens().await, Server::start().await);
    let path = std::env::temp_dir().join(format!("penstock-google-{}", std::process::id()));
    std::fs::write(&path, "{\"id_token\":\"vouched\"}\n").unwrap();
    let identity = WorkloadIdentity {
        lend: true,
        google_token_file: Some(path.clone()),
        google_sts_url: format!("{}/v1/token", sts.server.url()),
        google_iam_url: iam.server.url(),
        ..WorkloadIdentity::default()
    };
    let format = json!({"type": "json", "subject_token_field_name": "id_token"});
    let mut told = file(&json!({"file": path, "format": format}), &evil.server.url());
    told["service_account_impersonation_url"] = format!("https://iamcredentials.googleapis.com{ACCOUNT}").into();
    told["service_account_impersonation"] = json!({"token_lifetime_seconds": 1200});
    let gateway = rig(&provider, identity.clone(), &told);
    for _ in 0..2 {
        let answer = gateway.send(stored()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(carried(&provider), vec!["Bearer of-the-account"; 2]);
    assert!(sts.asked()[0].starts_with("POST /v1/token HTTP/1.1"));
    for (name, value) in [
        ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
        ("audience", AUDIENCE),
        ("scope", SCOPE),
        ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
        ("subject_token_type", JWT),
        ("subject_token", "vouched"),
    ] {
        assert!(sts.form(0).contains(&(name.to_owned(), value.to_owned())), "{name}");
    }
    let asked = iam.asked();
    assert!(asked[0].starts_with(&format!("POST {ACCOUNT} HTTP/1.1")), "{}", asked[0]);
    assert!(asked[0].contains("authorization: Bearer token-1\r\n") && asked.len() == 1, "{}", asked[0]);
    let (_, body) = asked[0].split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body, json!({"scope": [SCOPE], "lifetime": "1200s"}));

    // Neither another file, nor another giver, nor one that is not lent.
    let other = file(&json!({"file": "/etc/passwd"}), &evil.server.url());
    let mut elsewhere = told.clone();
    elsewhere["service_account_impersonation_url"] = format!("{}{ACCOUNT}", evil.server.url()).into();
    let kept = WorkloadIdentity { lend: false, ..identity.clone() };
    let unset = WorkloadIdentity { google_token_file: None, ..identity.clone() };
    for (identity, told, words) in [
        (identity.clone(), &other, "identity.google_token_file"),
        (identity, &elsewhere, "iamcredentials"),
        (kept, &told, "identity.lend"),
        (unset, &told, "google_token_file is not set"),
    ] {
        let answer = rig(&provider, identity, told).send(stored()).await;
        assert!(answer.status >= 400 && answer.text().contains(words), "{words}: {}", answer.text());
    }
    std::fs::remove_file(path).unwrap();
    assert!(evil.asked().is_empty());
}

#[tokio::test]
async fn a_token_that_somebody_serves_is_asked_for_like_all_else() {
    let (sts, iam, provider) = (Issuer::of_tokens().await, of_account().await, Server::start().await);
    let idp = Issuer::giving(|_| (200, json!({"value": "theirs"}).to_string())).await;
    let format = json!({"type": "json", "subject_token_field_name": "value"});
    let source = json!({"url": format!("{}/token?audience=a", idp.server.url()),
        "headers": {"Authorization": "Bearer own"}, "format": format});
    let mut told = file(&source, &format!("{}/exchange", sts.server.url()));
    let answer = rig(&provider, WorkloadIdentity::default(), &told).send(stored()).await;
    assert_eq!((answer.status, carried(&provider)), (200, vec!["Bearer token-1".to_owned()]), "{}", answer.text());
    assert!(idp.asked()[0].starts_with("GET /token?audience=a HTTP/1.1"), "{}", idp.asked()[0]);
    assert!(idp.asked()[0].contains("authorization: Bearer own\r\n") && !idp.asked()[0].contains("content-length"));
    assert!(sts.form(0).contains(&("subject_token".to_owned(), "theirs".to_owned())));
    told["service_account_impersonation_url"] = format!("{}{ACCOUNT}", iam.server.url()).into();
    let gateway = rig(&provider, WorkloadIdentity::default(), &told);
    assert_eq!(gateway.send(stored()).await.status, 200);
    assert_eq!(carried(&provider)[1], "Bearer of-the-account");
    // The machine's own services are no place for anybody to ask.
    let metadata = json!({"url": "http://169.254.169.254/latest/token"});
    let answer = rig(&provider, WorkloadIdentity::default(), &file(&metadata, &sts.server.url())).send(stored()).await;
    assert!(answer.status == 502 && answer.text().contains("169.254.169.254"), "{}", answer.text());
}

#[tokio::test]
async fn who_gives_no_token_is_named_and_what_is_secret_is_not() {
    let provider = Server::start().await;
    let idp = Issuer::giving(|_| (200, "canary-of-theirs".to_owned())).await;
    let no = json!({"error": "invalid_target", "error_description": "no such pool"}).to_string();
    let sts = Issuer::giving(move |_| (400, no.clone())).await;
    let told = file(&json!({"url": idp.server.url()}), &sts.server.url());
    let answer = rig(&provider, WorkloadIdentity::default(), &told).send(stored()).await;
    assert!(answer.status == 502 && answer.text().contains("no such pool"), "{}", answer.text());
    assert!(!answer.text().contains("canary"));
}
