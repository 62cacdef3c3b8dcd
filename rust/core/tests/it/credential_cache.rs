//! Credentials that the gateway fetches before a request: access tokens of Google and Entra ID, and temporary keys of
//! AWS roles.

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, chat_body,
    issuer::CredentialIssuer,
    scripted_server::{ScriptedServer, read_request},
};
use aws_lc_rs::{
    encoding::AsDer,
    rsa::{KeyPair, KeySize},
    signature::{self, KeyPair as _, UnparsedPublicKey},
};
use base64::{Engine as _, prelude::*};
use penstock_core::process::{secret::Secret, settings::WorkloadIdentity};
use penstock_mock::Server;
use serde_json::{Value, json};

fn start_gateway() -> TestGateway {
    TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()])
}

fn custom_host_request(provider: &str, at: &Server) -> TestRequest {
    TestRequest::new("POST", CHAT_PATH)
        .header("content-type", "application/json")
        .header("x-gateway-provider", provider)
        .header("x-gateway-custom-host", &at.url())
        .body(chat_body("gemini-2.5-pro", false))
}

fn vertex_request(at: &Server, key_file: &str) -> TestRequest {
    custom_host_request("vertex-ai", at)
        .header("x-gateway-vertex-project-id", "p")
        .header("x-gateway-vertex-region", "europe-west4")
        .header("x-gateway-vertex-service-account-json", key_file)
}

fn encode_pem(key: &KeyPair) -> String {
    let der = AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(key).unwrap();
    let text = BASE64_STANDARD.encode(der.as_ref());
    let lines: Vec<_> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"))
}

fn service_account_json(key: &KeyPair, issuer: &str) -> String {
    json!({"type": "service_account", "client_email": "a@p.iam.gserviceaccount.com", "private_key_id": "k-1",
        "private_key": encode_pem(key), "token_uri": format!("{issuer}/token")})
    .to_string()
}

/// Returns the `authorization` header of each request that the provider received.
fn authorization_headers(provider: &Server) -> Vec<String> {
    provider.ledger_entries().iter().map(|entry| entry.header("authorization").unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn fetches_and_caches_a_service_account_token() {
    let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let (issuer, provider, gateway) =
        (CredentialIssuer::start_with_tokens().await, Server::start().await, start_gateway());
    let file = service_account_json(&key, &issuer.server.url());
    for _ in 0..3 {
        gateway.send(vertex_request(&provider, &file)).await;
    }
    assert_eq!(authorization_headers(&provider), vec!["Bearer token-1"; 3]);
    assert_eq!(issuer.received_requests().len(), 1, "it is kept");
    let form = issuer.form_fields(0);
    assert_eq!(form[0].1, "urn:ietf:params:oauth:grant-type:jwt-bearer");
    let (content, signed) = form[1].1.rsplit_once('.').unwrap();
    let public = UnparsedPublicKey::new(&signature::RSA_PKCS1_2048_8192_SHA256, key.public_key());
    public.verify(content.as_bytes(), &BASE64_URL_SAFE_NO_PAD.decode(signed).unwrap()).expect("the account signed it");
    let (head, claims) = content.split_once('.').unwrap();
    let part = |text: &str| serde_json::from_slice::<Value>(&BASE64_URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap();
    let (head, claims) = (part(head), part(claims));
    assert_eq!(head, json!({"alg": "RS256", "typ": "JWT", "kid": "k-1"}));
    assert_eq!(claims["iss"], "a@p.iam.gserviceaccount.com");
    assert_eq!(claims["scope"], "https://www.googleapis.com/auth/cloud-platform");
    assert_eq!(claims["aud"], format!("{}/token", issuer.server.url()));
    assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 3600);
}

#[tokio::test]
async fn reports_the_token_error_without_leaking_the_key() {
    let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let denied = json!({"error": "invalid_grant", "error_description": "Invalid JWT\r\nSignature."}).to_string();
    let issuer = CredentialIssuer::start_with_responses(move |_| (400, denied.clone())).await;
    let provider = Server::start().await;
    let response =
        start_gateway().send(vertex_request(&provider, &service_account_json(&key, &issuer.server.url()))).await;
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (502, "credential_unavailable"),
        "{}",
        response.text()
    );
    assert!(response.text().contains("Invalid JWT") && !response.text().contains("PRIVATE KEY"), "{}", response.text());
    let response = start_gateway().send(vertex_request(&provider, "{\"private_key\": \"s3cret\"}")).await;
    assert!(response.text().contains("client_email") && !response.text().contains("s3cret"), "{}", response.text());
    assert!(provider.ledger_entries().is_empty(), "nothing is sent without");
}

#[tokio::test]
async fn request_timeout_bounds_the_credential_fetch() {
    let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let silent = ScriptedServer::start(|mut stream, _| async move {
        let _ = read_request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let provider = Server::start().await;
    let request = vertex_request(&provider, &service_account_json(&key, &silent.url()))
        .header("x-gateway-request-timeout", "100");
    let response = start_gateway().send(request).await;
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (502, "credential_unavailable"),
        "{}",
        response.text()
    );
    assert!(
        response.text().contains("credential request timed out") && provider.ledger_entries().is_empty(),
        "{}",
        response.text()
    );
}

/// Private key encrypted by OpenSSL (`openssl genrsa -aes128`), and its public key.
const ENCRYPTED_KEY: &str = include_str!("tls/sealed_key.pem");
const PUBLIC_KEY: &str = include_str!("tls/sealed_key.public.pem");

fn oracle_request(at: &Server, passphrase: &str) -> TestRequest {
    let mut request = custom_host_request("oracle", at)
        .header("x-gateway-oracle-private-key", &ENCRYPTED_KEY.trim().replace('\n', "\\n"));
    for field in ["region", "tenancy", "user", "fingerprint"] {
        request = request.header(&format!("x-gateway-oracle-{field}"), field);
    }
    if passphrase.is_empty() { request } else { request.header("x-gateway-oracle-key-passphrase", passphrase) }
}

#[tokio::test]
async fn decrypts_an_oracle_key_and_signs_with_it() {
    let provider = Server::start().await;
    let gateway = start_gateway();
    for _ in 0..2 {
        let response = gateway.send(oracle_request(&provider, "open sesame")).await;
        assert_eq!(response.status, 200, "{}", response.text());
    }
    let records = gateway.drain_records();
    let public: String = PUBLIC_KEY.lines().filter(|line| !line.starts_with('-')).collect();
    let public = BASE64_STANDARD.decode(public).unwrap();
    for entry in provider.ledger_entries() {
        let field = |name: &str| entry.header(name).unwrap().to_owned();
        let authorization = field("authorization");
        let signature = authorization.split("signature=\"").nth(1).unwrap().trim_end_matches('"');
        let body = format!(
            "date: {}\n(request-target): post {}\nhost: {}\ncontent-length: {}\ncontent-type: {}\nx-content-sha256: {}",
            field("date"),
            entry.path,
            field("host"),
            field("content-length"),
            field("content-type"),
            field("x-content-sha256"),
        );
        let key = UnparsedPublicKey::new(&signature::RSA_PKCS1_2048_8192_SHA256, &public);
        key.verify(body.as_bytes(), &BASE64_STANDARD.decode(signature).unwrap()).expect("it signed these words");
        assert!(!format!("{entry:?}").contains("open sesame"));
    }
    let records = format!("{records:?}");
    assert!(!records.contains("open sesame") && !records.contains("MIIF"), "{records}");
}

#[tokio::test]
async fn rejects_wrong_oracle_key_passphrase_without_leaking_it() {
    let provider = Server::start().await;
    let gateway = start_gateway();
    for (passphrase, status, code) in
        [("", 400, "invalid_provider_option"), ("another-s3cret", 502, "credential_unavailable")]
    {
        let response = gateway.send(oracle_request(&provider, passphrase)).await;
        assert_eq!((response.status, response.error_code().as_str()), (status, code));
        let text = response.text();
        assert!(text.contains("passphrase") && !text.contains("s3cret") && !text.contains("MIIF"), "{text}");
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn fetches_and_caches_an_entra_token_for_azure() {
    let (issuer, provider, gateway) =
        (CredentialIssuer::start_with_tokens().await, Server::start().await, start_gateway());
    let azure = || {
        custom_host_request("azure-openai", &provider)
            .header("x-gateway-azure-resource-name", "res")
            .header("x-gateway-azure-api-version", "2024-10-21")
            .header("x-gateway-azure-deployment-id", "d")
            .header("x-gateway-azure-auth-mode", "entra")
            .header("x-gateway-azure-entra-tenant-id", "t-1")
            .header("x-gateway-azure-entra-client-id", "c-1")
            .header("x-gateway-azure-entra-client-secret", "s3cret")
    };
    let host = issuer.server.url();
    for _ in 0..2 {
        gateway.send(azure().header("x-gateway-azure-authority-host", &host)).await;
    }
    assert_eq!(authorization_headers(&provider), vec!["Bearer token-1"; 2]);
    assert!(issuer.received_requests()[0].starts_with("POST /t-1/oauth2/v2.0/token HTTP/1.1\r\n"));
    let form = issuer.form_fields(0);
    let field = |name: &str| form.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    assert_eq!(field("grant_type"), Some("client_credentials"));
    assert_eq!((field("client_id"), field("client_secret")), (Some("c-1"), Some("s3cret")));
    assert_eq!(field("scope"), Some("https://cognitiveservices.azure.com/.default"));
    // Another scope requires another token.
    gateway
        .send(azure().header("x-gateway-azure-authority-host", &host).header("x-gateway-azure-entra-scope", "api://x"))
        .await;
    assert_eq!(authorization_headers(&provider)[2], "Bearer token-2");
    let entry = &provider.ledger_entries()[0];
    assert!(!format!("{entry:?}").contains("s3cret"), "{entry:?}");
}

#[tokio::test]
async fn does_not_send_a_stored_secret_to_a_requested_authority() {
    let (issuer, provider, gateway) =
        (CredentialIssuer::start_with_tokens().await, Server::start().await, start_gateway());
    let options = json!({"resource_name": "res", "api_version": "2024-10-21", "azure_auth_mode": "entra",
        "azure_entra_tenant_id": "t", "azure_entra_client_id": "c", "azure_entra_client_secret": "s3cret",
        "azure_authority_host": issuer.server.url()});
    let row = json!({"slug": "az", "provider": "azure-openai", "options": options, "custom_host": provider.url()});
    gateway.apply_snapshot(&json!({"epoch": "1", "providers": [row]}));
    let evil = CredentialIssuer::start_with_tokens().await;
    let build_request = || {
        TestRequest::new("POST", CHAT_PATH)
            .header("content-type", "application/json")
            .header("x-gateway-azure-deployment-id", "d")
            .body(chat_body("gpt-4o", false))
    };
    let config = json!({"provider": "@az", "azure_authority_host": evil.server.url()}).to_string();
    for request in [
        build_request()
            .header("x-gateway-provider", "@az")
            .header("x-gateway-azure-authority-host", &evil.server.url()),
        build_request().header("x-gateway-config", &config),
    ] {
        let response = gateway.send(request).await;
        assert_eq!(
            authorization_headers(&provider).last().map(String::as_str),
            Some("Bearer token-1"),
            "{}",
            response.text()
        );
    }
    assert!(evil.received_requests().is_empty() && issuer.received_requests().len() == 1);
}

const ASSUME_ROLE_RESPONSE: &str = "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASIA-GIVEN</AccessKeyId>\
    <SecretAccessKey>given</SecretAccessKey><SessionToken>session==</SessionToken>\
    <Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>";

#[tokio::test]
async fn assumes_a_role_once_and_signs_with_its_keys() {
    let issuer = CredentialIssuer::start_with_responses(|_| (200, ASSUME_ROLE_RESPONSE.to_owned())).await;
    let (provider, gateway) = (Server::start().await, start_gateway());
    let bedrock = || {
        custom_host_request("bedrock", &provider)
            .header("x-gateway-aws-region", "eu-west-1")
            .header("x-gateway-aws-access-key-id", "AKID")
            .header("x-gateway-aws-secret-access-key", "s3cret")
            .header("x-gateway-aws-role-arn", "arn:aws:iam::1:role/r")
            .header("x-gateway-aws-external-id", "ext-1")
            .header("x-gateway-aws-sts-endpoint", &issuer.server.url())
            .header("authorization", "Bearer sk-caller")
    };
    for _ in 0..2 {
        gateway.send(bedrock()).await;
    }
    let requests = issuer.received_requests();
    assert_eq!(requests.len(), 1, "it is kept");
    assert!(
        requests[0].contains("authorization: AWS4-HMAC-SHA256 Credential=AKID/")
            && requests[0].contains("/eu-west-1/sts/")
    );
    let form = issuer.form_fields(0);
    for (name, value) in [("Action", "AssumeRole"), ("RoleArn", "arn:aws:iam::1:role/r"), ("ExternalId", "ext-1")] {
        assert!(form.contains(&(name.to_owned(), value.to_owned())), "{form:?}");
    }
    let entries = provider.ledger_entries();
    assert_eq!(entries.len(), 2);
    for entry in entries {
        let signed = entry.header("authorization").unwrap();
        assert!(
            signed.starts_with("AWS4-HMAC-SHA256 Credential=ASIA-GIVEN/") && signed.contains("/bedrock/"),
            "{signed}"
        );
        assert_eq!(entry.header("x-amz-security-token"), Some("session=="));
        assert!(!format!("{entry:?}").contains("s3cret"));
    }
}

#[tokio::test]
async fn falls_back_if_assuming_a_role_fails() {
    let denied = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not yours</Message></Error></ErrorResponse>";
    let issuer = CredentialIssuer::start_with_responses(move |_| (403, denied.to_owned())).await;
    let provider = Server::start().await;
    let targets = json!([
        {"provider": "bedrock", "custom_host": provider.url(), "aws_region": "eu-west-1", "aws_access_key_id": "AKID",
         "aws_secret_access_key": "s", "aws_role_arn": "arn:aws:iam::1:role/r", "aws_sts_endpoint": issuer.server.url()},
        {"provider": "openai", "api_key": "sk-2", "custom_host": format!("{}/v1", provider.url())}]);
    let config = json!({"strategy": {"mode": "fallback"}, "targets": targets});
    let request = TestRequest::new("POST", CHAT_PATH)
        .header("content-type", "application/json")
        .header("x-gateway-config", &config.to_string())
        .body(chat_body("mock", false));
    let response = start_gateway().send(request).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(authorization_headers(&provider), ["Bearer sk-2"]);
    let alone = json!({"provider": "bedrock", "custom_host": provider.url(), "aws_region": "eu-west-1",
        "aws_access_key_id": "AKID", "aws_secret_access_key": "s", "aws_role_arn": "r", "aws_sts_endpoint": issuer.server.url()});
    let request = TestRequest::new("POST", CHAT_PATH)
        .header("content-type", "application/json")
        .header("x-gateway-config", &alone.to_string())
        .body(chat_body("mock", false));
    let response = start_gateway().send(request).await;
    assert!(response.status == 502 && response.text().contains("not yours"), "{}", response.text());
}

/// Starts a gateway with this machine identity, and a stored Bedrock provider that may authenticate as the machine.
fn gateway_with_identity(provider: &Server, identity: WorkloadIdentity, options: &Value) -> TestGateway {
    gateway_with_identity_for("bedrock", provider, identity, options)
}

fn gateway_with_identity_for(
    slug: &str,
    provider: &Server,
    identity: WorkloadIdentity,
    options: &Value,
) -> TestGateway {
    let gateway = TestGateway::with_settings("", |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
        settings.identity = identity;
    });
    let row = json!({"slug": "br", "provider": slug, "custom_host": provider.url(), "options": options});
    gateway.apply_snapshot(&json!({"epoch": "1", "providers": [row]}));
    gateway
}

fn stored_provider_request() -> TestRequest {
    TestRequest::new("POST", CHAT_PATH)
        .header("content-type", "application/json")
        .header("x-gateway-provider", "@br")
        .body(chat_body("m", false))
}

fn service_role_options() -> Value {
    json!({"aws_region": "eu-west-1", "aws_auth_type": "serviceRole"})
}

const MACHINE_CREDENTIALS: &str = r#"{"Code":"Success","AccessKeyId":"ASIA-OWN","SecretAccessKey":"own","Token":"session==",
    "Expiration":"2999-01-01T00:00:00Z"}"#;

#[tokio::test]
async fn fetches_instance_keys_with_a_session_token_and_caches_them() {
    let service = CredentialIssuer::start_with_responses(|number| match number {
        1 => (200, "the-word".into()),
        2 => (200, "my-role\n".into()),
        _ => (200, MACHINE_CREDENTIALS.to_owned()),
    })
    .await;
    let provider = Server::start().await;
    let identity = WorkloadIdentity {
        allow_provider_use: true,
        aws_metadata_url: service.server.url(),
        ..WorkloadIdentity::default()
    };
    let gateway = gateway_with_identity(&provider, identity, &service_role_options());
    for _ in 0..2 {
        gateway.send(stored_provider_request()).await;
    }
    let requests = service.received_requests();
    assert_eq!(requests.len(), 3, "{requests:?}");
    assert!(requests[0].starts_with("PUT /latest/api/token ") && requests[0].contains("-ttl-seconds: 300\r\n"));
    assert!(requests[1].starts_with("GET /latest/meta-data/iam/security-credentials/ "));
    assert!(requests[2].starts_with("GET /latest/meta-data/iam/security-credentials/my-role "));
    assert!(requests[1..].iter().all(|one| one.contains("x-aws-ec2-metadata-token: the-word\r\n")), "{requests:?}");
    for entry in provider.ledger_entries() {
        let signed = entry.header("authorization").unwrap();
        assert!(signed.contains("Credential=ASIA-OWN/") && signed.contains("/eu-west-1/bedrock/"), "{signed}");
        assert_eq!(entry.header("x-amz-security-token"), Some("session=="));
    }
    assert_eq!(provider.ledger_entries().len(), 2);
}

#[tokio::test]
async fn assumes_a_role_with_container_credentials() {
    let container = CredentialIssuer::start_with_responses(|_| (200, MACHINE_CREDENTIALS.to_owned())).await;
    let sts = CredentialIssuer::start_with_responses(|_| (200, ASSUME_ROLE_RESPONSE.to_owned())).await;
    let provider = Server::start().await;
    let identity = WorkloadIdentity {
        allow_provider_use: true,
        aws_container_url: Some(format!("{}/v2/credentials/1", container.server.url())),
        aws_container_token: Some(Secret::new("container-word")),
        ..WorkloadIdentity::default()
    };
    let options = json!({"aws_region": "eu-west-1", "aws_role_arn": "arn:aws:iam::1:role/r", "aws_sts_endpoint": sts.server.url()});
    let response = gateway_with_identity(&provider, identity, &options).send(stored_provider_request()).await;
    let requests = container.received_requests();
    assert!(
        requests[0].starts_with("GET /v2/credentials/1 ") && requests[0].contains("authorization: container-word\r\n")
    );
    assert!(sts.received_requests()[0].contains("Credential=ASIA-OWN/"), "{}", response.text());
    assert!(authorization_headers(&provider)[0].contains("Credential=ASIA-GIVEN/"));
}

#[tokio::test]
async fn exchanges_a_web_identity_token_without_a_signature() {
    let sts = CredentialIssuer::start_with_responses(|_| (200, ASSUME_ROLE_RESPONSE.to_owned())).await;
    let provider = Server::start().await;
    let file = std::env::temp_dir().join(format!("penstock-web-identity-{}", std::process::id()));
    std::fs::write(&file, "vouched\n").unwrap();
    let identity = WorkloadIdentity {
        allow_provider_use: true,
        aws_web_identity_token_file: Some(file.clone()),
        aws_role_arn: Some("arn:aws:iam::1:role/pod".into()),
        aws_sts_endpoint: Some(sts.server.url()),
        ..WorkloadIdentity::default()
    };
    // A provider's STS endpoint applies only to requests signed with keys. A web identity token is a bearer token, so
    // another host could use it.
    let elsewhere = CredentialIssuer::start_with_responses(|_| (200, ASSUME_ROLE_RESPONSE.to_owned())).await;
    let mut options = service_role_options();
    options["aws_sts_endpoint"] = elsewhere.server.url().into();
    let response = gateway_with_identity(&provider, identity, &options).send(stored_provider_request()).await;
    std::fs::remove_file(file).unwrap();
    assert!(elsewhere.received_requests().is_empty());
    let form = sts.form_fields(0);
    for (name, value) in [
        ("Action", "AssumeRoleWithWebIdentity"),
        ("RoleArn", "arn:aws:iam::1:role/pod"),
        ("WebIdentityToken", "vouched"),
    ] {
        assert!(form.contains(&(name.to_owned(), value.to_owned())), "{form:?} {}", response.text());
    }
    assert!(!sts.received_requests()[0].contains("authorization:"));
    assert!(authorization_headers(&provider)[0].contains("Credential=ASIA-GIVEN/"));
}

#[tokio::test]
async fn machine_keys_serve_only_stored_providers_if_allowed() {
    let service = CredentialIssuer::start_with_responses(|_| (200, MACHINE_CREDENTIALS.to_owned())).await;
    let provider = Server::start().await;
    let own = |allow_provider_use| WorkloadIdentity {
        allow_provider_use,
        aws_metadata_url: service.server.url(),
        ..WorkloadIdentity::default()
    };
    let response =
        gateway_with_identity(&provider, own(false), &service_role_options()).send(stored_provider_request()).await;
    assert!(response.status == 400 && response.text().contains("identity.allow_provider_use"), "{}", response.text());
    let with_service_role = |build_request: TestRequest| {
        build_request.header("x-gateway-aws-region", "eu-west-1").header("x-gateway-aws-auth-type", "serviceRole")
    };
    let role = |build_request: TestRequest| build_request.header("x-gateway-aws-role-arn", "arn:aws:iam::1:role/r");
    let gateway = gateway_with_identity(&provider, own(true), &json!({"aws_region": "eu-west-1"}));
    for build_request in [
        with_service_role(custom_host_request("bedrock", &provider)),
        with_service_role(stored_provider_request()),
        role(with_service_role(stored_provider_request())),
    ] {
        let response = gateway.send(build_request).await;
        assert!(response.status == 400 && response.text().contains("only a stored provider"), "{}", response.text());
    }
    assert!(service.received_requests().is_empty() && provider.ledger_entries().is_empty());
}

/// Starts a gateway with a stored Azure provider that uses this authentication mode.
fn azure_gateway(provider: &Server, identity: WorkloadIdentity, mode: &Value) -> TestGateway {
    let mut options = json!({"resource_name": "res", "api_version": "2024-10-21", "deployment_id": "d"});
    options.as_object_mut().unwrap().extend(mode.as_object().unwrap().clone());
    gateway_with_identity_for("azure-openai", provider, identity, &options)
}

#[tokio::test]
async fn fetches_an_azure_vm_token_once_for_concurrent_requests() {
    let service = CredentialIssuer::start_with_tokens().await;
    let provider = Server::start().await;
    let identity = WorkloadIdentity {
        allow_provider_use: true,
        azure_metadata_url: service.server.url(),
        ..WorkloadIdentity::default()
    };
    let mode = json!({"azure_auth_mode": "managed", "azure_managed_client_id": "m-1"});
    let gateway = azure_gateway(&provider, identity, &mode);
    let (first, second) =
        tokio::join!(gateway.send(stored_provider_request()), gateway.send(stored_provider_request()));
    assert_eq!((first.status, second.status), (200, 200), "{}", first.text());
    gateway.send(stored_provider_request()).await;
    assert_eq!(authorization_headers(&provider), vec!["Bearer token-1"; 3]);
    let requests = service.received_requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    let line = "GET /metadata/identity/oauth2/token?api-version=2018-02-01&\
        resource=https%3A%2F%2Fcognitiveservices.azure.com&client_id=m-1 HTTP/1.1\r\n";
    assert!(requests[0].starts_with(line) && requests[0].contains("metadata: true\r\n"), "{}", requests[0]);
}

#[tokio::test]
async fn fetches_an_azure_app_token_with_the_identity_header() {
    let end = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 3600;
    let app = CredentialIssuer::start_with_responses(move |_| {
        (200, json!({"access_token": "t", "expires_on": end.to_string()}).to_string())
    });
    let (app, provider) = (app.await, Server::start().await);
    let identity = WorkloadIdentity {
        allow_provider_use: true,
        azure_identity_url: Some(format!("{}/msi/token", app.server.url())),
        azure_identity_header: Some(Secret::new("app-word")),
        ..WorkloadIdentity::default()
    };
    let mode = json!({"azure_auth_mode": "managed", "azure_entra_scope": "https://ai.azure.com/.default"});
    let response = azure_gateway(&provider, identity, &mode).send(stored_provider_request()).await;
    assert_eq!(authorization_headers(&provider), ["Bearer t"], "{}", response.text());
    let requests = app.received_requests();
    assert!(
        requests[0].starts_with("GET /msi/token?api-version=2019-08-01&resource=https%3A%2F%2Fai.azure.com HTTP/1.1")
    );
    assert!(
        requests[0].contains("x-identity-header: app-word\r\n") && !requests[0].contains("metadata:"),
        "{}",
        requests[0]
    );
}

#[tokio::test]
async fn exchanges_workload_tokens_only_at_the_configured_authority() {
    let (authority, evil, provider) = (
        CredentialIssuer::start_with_tokens().await,
        CredentialIssuer::start_with_tokens().await,
        Server::start().await,
    );
    let file = std::env::temp_dir().join(format!("penstock-workload-{}", std::process::id()));
    std::fs::write(&file, "vouched\n").unwrap();
    let identity = WorkloadIdentity {
        allow_provider_use: true,
        azure_federated_token_file: Some(file.clone()),
        azure_tenant_id: Some("t-pod".into()),
        azure_client_id: Some("c-pod".into()),
        azure_authority_host: authority.server.url() + "/",
        ..WorkloadIdentity::default()
    };
    let workload = json!({"azure_auth_mode": "workload", "azure_authority_host": evil.server.url()});
    let federated = json!({"azure_auth_mode": "entraFederated", "azure_entra_tenant_id": "t-other",
        "azure_entra_client_id": "c-other"});
    let of_another =
        json!({"azure_auth_mode": "workload", "azure_workload_tenant_id": "t-2", "azure_workload_client_id": "c-2"});
    let requested = [(workload, "t-pod", "c-pod"), (federated, "t-other", "c-other"), (of_another, "t-2", "c-2")];
    for (number, (mode, tenant, client)) in requested.iter().enumerate() {
        let response = azure_gateway(&provider, identity.clone(), mode).send(stored_provider_request()).await;
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(
            authority.received_requests()[number].starts_with(&format!("POST /{tenant}/oauth2/v2.0/token HTTP/1.1"))
        );
        let form = authority.form_fields(number);
        for (name, value) in [
            ("grant_type", "client_credentials"),
            ("client_id", *client),
            ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"),
            ("client_assertion", "vouched"),
            ("scope", "https://cognitiveservices.azure.com/.default"),
        ] {
            assert!(form.contains(&(name.to_owned(), value.to_owned())), "{form:?}");
        }
    }
    std::fs::remove_file(file).unwrap();
    assert_eq!(authorization_headers(&provider), ["Bearer token-1", "Bearer token-2", "Bearer token-3"]);
    assert!(evil.received_requests().is_empty());
}

#[tokio::test]
async fn managed_identity_is_the_assertion_without_a_token_file() {
    let (authority, service, provider) = (
        CredentialIssuer::start_with_tokens().await,
        CredentialIssuer::start_with_tokens().await,
        Server::start().await,
    );
    let identity = WorkloadIdentity {
        allow_provider_use: true,
        azure_metadata_url: service.server.url(),
        azure_authority_host: authority.server.url(),
        ..WorkloadIdentity::default()
    };
    let mode = json!({"azure_auth_mode": "entraFederated", "azure_entra_tenant_id": "t", "azure_entra_client_id": "c"});
    let response = azure_gateway(&provider, identity.clone(), &mode).send(stored_provider_request()).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(service.received_requests()[0].contains("resource=api%3A%2F%2FAzureADTokenExchange "));
    assert!(authority.form_fields(0).contains(&("client_assertion".to_owned(), "token-1".to_owned())));
    let workload = azure_gateway(&provider, identity, &json!({"azure_auth_mode": "workload"}))
        .send(stored_provider_request())
        .await;
    assert_eq!((workload.status, workload.error_code().as_str()), (502, "credential_unavailable"));
    assert!(workload.text().contains("identity.azure_"), "{}", workload.text());
}

#[tokio::test]
async fn requests_cannot_use_the_azure_machine_identity() {
    let (service, provider) = (CredentialIssuer::start_with_tokens().await, Server::start().await);
    let own = |allow_provider_use| WorkloadIdentity {
        allow_provider_use,
        azure_metadata_url: service.server.url(),
        ..WorkloadIdentity::default()
    };
    let response = azure_gateway(&provider, own(false), &json!({"azure_auth_mode": "managed"}))
        .send(stored_provider_request())
        .await;
    assert!(response.status == 400 && response.text().contains("identity.allow_provider_use"), "{}", response.text());
    let gateway = azure_gateway(&provider, own(true), &json!({}));
    for mode in ["managed", "workload", "entraFederated"] {
        for with_service_role in [custom_host_request("azure-openai", &provider), stored_provider_request()] {
            let fields = ["azure-entra-tenant-id", "azure-entra-client-id", "azure-resource-name", "azure-api-version"];
            let with_service_role = fields
                .iter()
                .fold(with_service_role, |request, name| request.header(&format!("x-gateway-{name}"), "x"));
            let response = gateway.send(with_service_role.header("x-gateway-azure-auth-mode", mode)).await;
            assert!(
                response.status == 400 && response.text().contains("only a stored provider"),
                "{mode}: {}",
                response.text()
            );
        }
        let config = json!({"provider": "@br", "azure_auth_mode": mode, "azure_entra_tenant_id": "x",
            "azure_entra_client_id": "x", "azure_entra_scope": "https://management.azure.com/.default"});
        let with_service_role =
            TestRequest::new("POST", CHAT_PATH).header("content-type", "application/json").body(chat_body("m", false));
        let response = gateway.send(with_service_role.header("x-gateway-config", &config.to_string())).await;
        assert!(
            response.status == 400 && response.text().contains("only a stored provider"),
            "{mode}: {}",
            response.text()
        );
    }
    assert!(service.received_requests().is_empty() && provider.ledger_entries().is_empty());
}
