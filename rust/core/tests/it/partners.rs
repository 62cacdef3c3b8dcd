//! Checks by partners: every row of the table against a mock host. `partner_checks.json` has the documented request of
//! each function, and replies.

use penstock_core::process::settings::WorkloadIdentity;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::harness::{
    CHAT_PATH, TestGateway, TestResponse, golden_provider::GoldenProvider, issuer::CredentialIssuer, post_with_config,
    sha256_hex,
};

const TEXT: &str = "call ann@mail.example";
/// Part of `TEXT` that no result may contain.
const FOUND: &str = "ann@mail";
const QUESTION: &str = "who is it?";
const TRACE_ID: &str = "trace-1";
const KEY: &str = "key-of-the-workspace";

/// A function of a partner.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartnerCase {
    check: String,
    /// `input` or `output`.
    stage: String,
    parameters: Value,
    /// URL of the partner, which unit tests of the engine compare.
    url: String,
    /// Parts of the request's head.
    headers: Vec<String>,
    body: Value,
    pass: Value,
    #[serde(default)]
    deny: Option<Value>,
    #[serde(default)]
    redact: Option<RedactCase>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RedactCase {
    parameters: Value,
    reply: Value,
    text: String,
}

/// Result of a request with a check.
struct CheckedRequest {
    response: TestResponse,
    check: Value,
    /// Text that the model got, or that the client got.
    text: String,
    partner: GoldenProvider,
}

fn read_cases() -> Vec<PartnerCase> {
    serde_json::from_str(include_str!("partner_checks.json")).unwrap()
}

impl PartnerCase {
    fn is_output(&self) -> bool {
        self.stage == "output"
    }

    /// Sends a chat request with the check, whose partner returns this reply.
    async fn run(&self, gateway: &TestGateway, status: u16, reply: &str, more: &Value, denies: bool) -> CheckedRequest {
        let partner = GoldenProvider::start(status, "application/json", reply.into(), 4096).await;
        let mut parameters = self.parameters.clone();
        parameters["baseURL"] = partner.server.url().into();
        parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (request_body, responded) = if self.is_output() { (QUESTION, TEXT) } else { (TEXT, "done") };
        let message = json!({"role": "assistant", "content": responded});
        let body = json!({"id": "c", "object": "chat.completion", "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
        let provider = GoldenProvider::start(200, "application/json", body.to_string().into(), 4096).await;
        let side = format!("{}_guardrails", self.stage);
        let mut config = json!({"provider": "openai", "api_key": "sk-1", "custom_host": provider.server.url()});
        config[&side] = json!([{"deny": denies, &self.check: parameters}]);
        let request = json!({"model": "gpt-x", "messages": [{"role": "user", "content": request_body}]});
        let request = post_with_config(&config, CHAT_PATH, request.to_string());
        let response = gateway.send(request.header("x-gateway-trace-id", TRACE_ID)).await;
        let json = response.json();
        let list = if self.is_output() { "after_request_hooks" } else { "before_request_hooks" };
        let check = json["hook_results"][list][0]["checks"][0].clone();
        let text = if self.is_output() {
            json["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
        } else if response.status == 200 {
            provider.parse_last_request().1["messages"][0]["content"].as_str().unwrap().to_owned()
        } else {
            String::new()
        };
        CheckedRequest { response, check, text, partner }
    }
}

#[tokio::test]
async fn every_partner_gets_its_documented_request() {
    let gateway = GoldenProvider::gateway_trusting_loopback();
    for case in read_cases() {
        let checked = case.run(&gateway, 200, &case.pass.to_string(), &json!({}), true).await;
        let name = (&case.check, &case.stage);
        assert_eq!(checked.response.status, 200, "{name:?}: {}", checked.response.text());
        assert_eq!((&checked.check["verdict"], &checked.check["error"]), (&json!(true), &Value::Null), "{name:?}");
        assert_eq!(checked.text, TEXT, "{name:?}");
        let (head, body) = checked.partner.parse_last_request();
        let path = case.url.split_once("://").unwrap().1;
        // A URL from the parameters may have a path that the URL of the mock host lacks, so only the end is compared.
        let target = head.split(' ').nth(1).unwrap();
        assert!(head.starts_with("POST ") && path.ends_with(target), "{name:?}: {head}");
        for header in &case.headers {
            assert!(head.contains(header.as_str()), "{name:?} lacks {header}: {head}");
        }
        assert_eq!(body, case.body, "{name:?}");
    }
}

#[tokio::test]
async fn every_partner_can_deny_and_redact() {
    let gateway = GoldenProvider::gateway_trusting_loopback();
    for case in read_cases() {
        let name = (&case.check, &case.stage);
        if let Some(reply) = &case.deny {
            let checked = case.run(&gateway, 200, &reply.to_string(), &json!({}), true).await;
            assert_eq!(checked.response.status, 446, "{name:?}: {}", checked.response.text());
            assert_eq!((&checked.check["verdict"], &checked.check["error"]), (&json!(false), &Value::Null), "{name:?}");
            assert!(!checked.response.text().contains(FOUND), "{name:?}: {}", checked.response.text());
            // Without a denial, the client sees the data of a response, too.
            let response = case.run(&gateway, 200, &reply.to_string(), &json!({}), false).await;
            let explanation = response.check["data"]["explanation"].as_str().unwrap_or_default();
            assert_eq!(response.response.status, 246, "{name:?}: {}", response.response.text());
            assert!(explanation.contains(" found: "), "{name:?}: {}", response.check);
            assert!(!response.check.to_string().contains(FOUND), "{name:?}: {}", response.check);
        }
        if let Some(RedactCase { parameters, reply, text }) = &case.redact {
            let checked = case.run(&gateway, 200, &reply.to_string(), parameters, true).await;
            assert_eq!(checked.response.status, 200, "{name:?}: {}", checked.response.text());
            assert_eq!((&checked.check["transformed"], &checked.text), (&json!(true), text), "{name:?}");
            assert!(!checked.check.to_string().contains(FOUND), "{name:?}: {}", checked.check);
        }
    }
}

#[tokio::test]
async fn a_partner_without_a_verdict_is_an_error() {
    let gateway = GoldenProvider::gateway_trusting_loopback();
    for case in read_cases() {
        for (status, reply) in [(500, case.pass.to_string()), (200, "no JSON".to_owned()), (200, "{}".to_owned())] {
            let name = (&case.check, &case.stage, status, &reply);
            let checked = case.run(&gateway, status, &reply, &json!({"failOnError": true}), true).await;
            assert_eq!(checked.response.status, 446, "{name:?}: {}", checked.response.text());
            let message = checked.check["error"]["message"].as_str().unwrap_or_default().to_owned();
            assert!(message.contains(" returned "), "{name:?}: {}", checked.check);
        }
        let checked = case.run(&gateway, 500, "", &json!({}), true).await;
        assert_eq!(checked.response.status, 200, "{:?}: {}", case.check, checked.response.text());
    }
}

#[tokio::test]
async fn a_partner_that_hangs_is_an_error_after_its_timeout() {
    let gateway = GoldenProvider::gateway_trusting_loopback();
    // The kernel accepts connections that nobody reads.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    for case in read_cases() {
        let name = (&case.check, &case.stage);
        let more = json!({"failOnError": true, "timeout": 50, "baseURL": url});
        let checked = case.run(&gateway, 200, "", &more, true).await;
        assert_eq!(checked.response.status, 446, "{name:?}: {}", checked.response.text());
        let message = checked.check["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains("took longer than 50 ms"), "{name:?}: {}", checked.check);
    }
}

/// Content Safety with an application of Entra ID, whose tokens come from this server.
fn entra_parameters(authority: &str, secret: &str) -> Value {
    let resource = json!({"azureAuthMode": "entra", "resourceName": "res", "apiKey": "k-1", "tenantId": "t-1",
        "clientId": "c-1", "clientSecret": secret, "authorityHost": authority});
    json!({"credentials": {"contentSafety": resource}})
}

#[tokio::test]
async fn azure_takes_the_token_of_an_application() {
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let token = json!({"access_token": "tok-1", "expires_in": 3600}).to_string();
    let authority = GoldenProvider::start(200, "application/json", token.into(), 4096).await;
    let case = read_cases().into_iter().find(|case| case.check == "azure.shieldPrompt").unwrap();
    let case = PartnerCase { parameters: entra_parameters(&authority.server.url(), "s-1"), ..case };
    for _ in 0..2 {
        let checked = case.run(&gateway, 200, &case.pass.to_string(), &json!({}), true).await;
        assert_eq!(checked.response.status, 200, "{}", checked.response.text());
        let (head, _) = checked.partner.parse_last_request();
        assert!(head.contains("authorization: Bearer tok-1"), "{head}");
        assert!(!head.contains("ocp-apim-subscription-key"), "{head}");
    }
    let form = String::from_utf8(authority.last_request.lock().unwrap().clone()).unwrap();
    assert_eq!(*authority.request_lines.lock().unwrap(), ["POST /t-1/oauth2/v2.0/token HTTP/1.1"]);
    for field in ["grant_type=client_credentials", "client_id=c-1", "client_secret=s-1", "cognitiveservices.azure.com"]
    {
        assert!(form.contains(field), "{form}");
    }
}

#[tokio::test]
async fn a_token_that_cannot_be_fetched_is_an_error() {
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let refusal = json!({"error": "invalid_client", "error_description": "wrong secret"}).to_string();
    let authority = GoldenProvider::start(401, "application/json", refusal.into(), 4096).await;
    let case = read_cases().into_iter().find(|case| case.check == "azure.shieldPrompt").unwrap();
    let case = PartnerCase { parameters: entra_parameters(&authority.server.url(), "s-2"), ..case };
    let checked = case.run(&gateway, 200, &case.pass.to_string(), &json!({"failOnError": true}), true).await;
    assert_eq!(checked.response.status, 446, "{}", checked.response.text());
    let message = checked.check["error"]["message"].as_str().unwrap();
    assert!(message.contains("wrong secret") && !message.contains("s-2"), "{message}");
    assert!(checked.partner.request_lines.lock().unwrap().is_empty());
}

/// Prompt shields with the managed identity of the machine, whose metadata service is `metadata_url`.
fn managed_gateway(metadata_url: &str, partner: &GoldenProvider, allow_provider_use: bool) -> TestGateway {
    let gateway = TestGateway::with_settings("", |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
        settings.identity = WorkloadIdentity {
            allow_provider_use,
            azure_metadata_url: metadata_url.to_owned(),
            ..WorkloadIdentity::default()
        };
    });
    let check = json!({"id": "azure.shieldPrompt", "parameters": managed_parameters(partner)});
    let guardrail = json!({"id": "g1", "slug": "pg-managed", "organisation": "o", "version": "v",
        "workspace": "w", "checks": [check], "actions": {"deny": true}});
    gateway.apply_snapshot(&json!({"epoch": "1",
        "workspaces": [{"id": "w", "slug": "one", "organisation_id": "o"}],
        "keys": [{"id": "k", "name": "a", "workspace": "w", "sha256": sha256_hex(KEY)}],
        "parts": [{"name": "guardrails/00", "guardrails": [guardrail]}]}));
    gateway
}

fn managed_parameters(partner: &GoldenProvider) -> Value {
    let resource = json!({"azureAuthMode": "managed", "resourceName": "res", "apiKey": "k-1", "clientId": "m-1"});
    json!({"baseURL": partner.server.url(), "credentials": {"contentSafety": resource}})
}

/// Sends a chat with these guardrails, and returns the response with the result of the first check.
async fn send_guarded(gateway: &TestGateway, guardrails: Value) -> (TestResponse, Value) {
    let body = json!({"id": "c", "object": "chat.completion", "model": "m", "choices": [{"index": 0,
        "message": {"role": "assistant", "content": "done"}, "finish_reason": "stop"}]});
    let provider = GoldenProvider::start(200, "application/json", body.to_string().into(), 4096).await;
    let mut config = json!({"provider": "openai", "api_key": "sk-1", "custom_host": provider.server.url()});
    config["input_guardrails"] = guardrails;
    let request = json!({"model": "gpt-x", "messages": [{"role": "user", "content": TEXT}]});
    let request = post_with_config(&config, CHAT_PATH, request.to_string()).header("x-gateway-api-key", KEY);
    let response = gateway.send(request).await;
    let check = response.json()["hook_results"]["before_request_hooks"][0]["checks"][0].clone();
    (response, check)
}

#[tokio::test]
async fn only_saved_guardrails_use_the_identity_of_the_machine_if_allowed() {
    let service = CredentialIssuer::start_with_tokens().await;
    let case = read_cases().into_iter().find(|case| case.check == "azure.shieldPrompt").unwrap();
    let partner = GoldenProvider::start(200, "application/json", case.pass.to_string().into(), 4096).await;
    let error = |check: &Value| check["error"]["message"].as_str().unwrap_or_default().to_owned();

    let forbidden = managed_gateway(&service.server.url(), &partner, false);
    let (response, check) = send_guarded(&forbidden, json!(["pg-managed"])).await;
    assert_eq!(response.status, 446, "{}", response.text());
    assert!(error(&check).contains("identity.allow_provider_use"), "{check}");
    assert!(service.received_requests().is_empty());

    let gateway = managed_gateway(&service.server.url(), &partner, true);
    let (response, check) = send_guarded(&gateway, json!(["pg-managed"])).await;
    assert_eq!((response.status, &check["verdict"]), (200, &json!(true)), "{}", response.text());
    let (head, _) = partner.parse_last_request();
    assert!(head.contains("authorization: Bearer token-1"), "{head}");
    assert!(!head.contains("ocp-apim-subscription-key"), "{head}");
    let line = "GET /metadata/identity/oauth2/token?api-version=2018-02-01&\
        resource=https%3A%2F%2Fcognitiveservices.azure.com&client_id=m-1 HTTP/1.1\r\n";
    assert!(service.received_requests()[0].starts_with(line), "{:?}", service.received_requests());

    // The token is cached by now, and still no guardrail of a request gets it.
    let calls = partner.request_lines.lock().unwrap().len();
    let inline = json!([{"deny": true, "azure.shieldPrompt": managed_parameters(&partner)}]);
    let (response, check) = send_guarded(&gateway, inline).await;
    assert_eq!(response.status, 446, "{}", response.text());
    assert!(error(&check).contains("only a saved guardrail"), "{check}");
    assert_eq!(partner.request_lines.lock().unwrap().len(), calls);
}
