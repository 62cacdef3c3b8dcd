//! Restricted models: every place of a request that may name a model must name an allowed one.

use crate::harness::{CHAT_PATH, TestGateway, TestRequest};
use penstock_mock::Server;
use serde_json::{Value, json};

const FORM_CONTENT_TYPE: &str = "multipart/form-data; boundary=b-1";
const SPEECH_PATH: &str = "/v1/audio/transcriptions";

/// Applies saved providers: `only` allows just `fine`, `but` allows all but `Forbidden`, `all` is not restricted.
async fn start_gateway() -> (Server, TestGateway) {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let models = json!([
        {"id": "only", "allow_all": false, "models": [{"slug": "fine", "enabled": true}]},
        {"id": "but", "allow_all": true, "models": [{"slug": "Forbidden", "enabled": false}]}]);
    let row = |slug: &str, models: Option<&str>| {
        let mut row = json!({"slug": slug, "provider": "openai", "api_key": "sk-stored",
            "custom_host": provider.url() + "/v1"});
        if let Some(models) = models {
            row["models"] = models.into();
        }
        row
    };
    let providers = [row("only", Some("only")), row("but", Some("but")), row("all", None)];
    gateway.apply_snapshot(&json!({"epoch": "1", "models": models, "providers": providers}));
    (provider, gateway)
}

fn request_at(slug: &str, path: &str, content_type: &str, body: impl Into<bytes::Bytes>) -> TestRequest {
    let request = TestRequest::new("POST", path).header("x-gateway-provider", &format!("@{slug}"));
    request.header("content-type", content_type).body(body)
}

fn json_at(slug: &str, path: &str, body: &Value) -> TestRequest {
    request_at(slug, path, "application/json", body.to_string())
}

fn form_of(parts: &[(&str, &str)]) -> String {
    let parts =
        parts.iter().map(|(head, value)| format!("--b-1\r\ncontent-disposition: form-data; {head}\r\n\r\n{value}\r\n"));
    parts.collect::<String>() + "--b-1--\r\n"
}

#[tokio::test]
async fn rejects_a_forbidden_model_wherever_it_is_named() {
    let (provider, gateway) = start_gateway().await;
    let chat = |more: Value| {
        let mut body = json!({"model": "fine", "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for slug in ["only", "but"] {
        let mut requests = vec![
            json_at(slug, CHAT_PATH, &chat(json!({"models": ["forbidden"]}))),
            json_at(slug, CHAT_PATH, &chat(json!({"Model": "forbidden"}))),
            json_at(slug, CHAT_PATH, &chat(json!({"version": "forbidden"}))),
            json_at(slug, CHAT_PATH, &chat(json!({"fallbacks": [{"model": "forbidden"}]}))),
            json_at(slug, CHAT_PATH, &chat(json!({"tools": [{"type": "x", "judge_model": "forbidden"}]}))),
            json_at(slug, &format!("{CHAT_PATH}?model=forbidden"), &chat(json!({}))),
            json_at(slug, &format!("{CHAT_PATH}?a=1&Deployment_ID=%66orbidden"), &chat(json!({}))),
            json_at(slug, CHAT_PATH, &chat(json!({}))).header("azureml-model-deployment", "forbidden"),
        ];
        for path in ["/v1/engines/forbidden/completions", "/v1/models/forbidden:predict", "/v1/proxy/run/a/forbidden"] {
            requests.push(json_at(slug, path, &chat(json!({}))));
        }
        requests
            .push(TestRequest::new("GET", "/v1/models/forbidden").header("x-gateway-provider", &format!("@{slug}")));
        let (allowed, bad) = (("name=\"model\"", "fine"), ("name=\"model\"", "forbidden"));
        let file = ("name=\"file\"; filename=\"a.mp3\"", "x");
        for form in [
            form_of(&[allowed, file, bad]),
            form_of(&[bad, file, allowed]),
            form_of(&[allowed, file, ("name=MODEL", "forbidden")]),
            form_of(&[allowed, file, ("name=\"session\"", r#"{"model":"forbidden"}"#)]),
        ] {
            requests.push(request_at(slug, SPEECH_PATH, FORM_CONTENT_TYPE, form.clone()));
            requests.push(request_at(slug, "/v1/whatever", FORM_CONTENT_TYPE, form));
        }
        for request in requests {
            let response = gateway.send(request).await;
            assert_eq!(
                (response.status, &*response.error_code()),
                (403, "model_not_allowed"),
                "{slug}: {}",
                response.text()
            );
        }
        // Forms that parsers read differently.
        for form in [
            form_of(&[("name*=UTF-8''model", "forbidden"), allowed, file]),
            form_of(&[allowed, file]).replace("x\r\n--b-1--", &format!("x\n{}", form_of(&[bad]))),
        ] {
            let response = gateway.send(request_at(slug, SPEECH_PATH, FORM_CONTENT_TYPE, form)).await;
            assert_eq!(
                (response.status, &*response.error_code()),
                (400, "invalid_form"),
                "{slug}: {}",
                response.text()
            );
        }
        let coded = request_at(slug, SPEECH_PATH, FORM_CONTENT_TYPE, form_of(&[allowed, file]));
        assert_eq!(gateway.send(coded.header("content-encoding", "gzip")).await.status, 400);
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn names_the_field_of_a_forbidden_model() {
    let (_provider, gateway) = start_gateway().await;
    let body = json!({"model": "fine", "input": "x", "tools": [{"type": "image_generation", "model": "forbidden"}]});
    let response = gateway.send(json_at("only", "/v1/responses", &body)).await;
    assert!(
        response.text().contains("`forbidden`") && response.text().contains("`tools[0].model`"),
        "{}",
        response.text()
    );
}

#[tokio::test]
async fn a_disabled_model_is_recognised_in_any_spelling() {
    let (provider, gateway) = start_gateway().await;
    for model in [
        " forbidden",
        "FORBIDDEN",
        "models/forbidden",
        "openai/forbidden",
        "us.forbidden",
        "fine/../forbidden",
        "%66orbidden",
        "forbidden:x",
        "forb\u{131}dden",
        "forbidden\u{200b}",
        "@but/@but/forbidden",
        "arn:aws:bedrock:us-east-1::foundation-model/forbidden",
    ] {
        let response = gateway.send(json_at("but", CHAT_PATH, &json!({"model": model, "messages": []}))).await;
        assert_eq!(
            (response.status, &*response.error_code()),
            (403, "model_not_allowed"),
            "{model}: {}",
            response.text()
        );
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn allowed_requests_pass() {
    let (provider, gateway) = start_gateway().await;
    let file = ("name=\"file\"; filename=\"a.mp3\"", "x");
    let good_form = form_of(&[("name=\"model\"", "fine"), file, ("name=\"prompt\"", "the forbidden model")]);
    let schema = json!({"type": "function", "function": {"name": "f", "parameters":
        {"type": "object", "properties": {"model": {"type": "string", "enum": ["forbidden"]}}}}});
    let chat = json!({"model": "fine", "messages": [{"role": "user", "content": "forbidden", "model": "forbidden"}],
        "metadata": {"model": "forbidden"}, "tools": [schema]});
    let requests = [
        json_at("only", CHAT_PATH, &chat),
        json_at("but", CHAT_PATH, &chat),
        json_at("but", CHAT_PATH, &json!({"model": "forbidden-2", "messages": []})),
        json_at("only", &format!("{CHAT_PATH}?model=fine&api-version=1"), &chat),
        request_at("only", SPEECH_PATH, FORM_CONTENT_TYPE, good_form),
        json_at("all", "/v1/engines/forbidden/completions?model=forbidden", &json!({"Model": "forbidden"})),
    ];
    let count = requests.len();
    for request in requests {
        let response = gateway.send(request).await;
        assert_ne!((response.status, &*response.error_code()), (403, "model_not_allowed"), "{}", response.text());
    }
    assert_eq!(provider.ledger_entries().len(), count);
}

#[tokio::test]
async fn sagemaker_headers_that_select_a_model_are_checked() {
    let provider = penstock_mock::Server::start().await;
    let gateway = crate::harness::TestGateway::with_settings("", |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
    });
    let options = serde_json::json!({"aws_access_key_id": "AKID", "aws_secret_access_key": "s3cret",
        "aws_region": "eu-west-1", "amzn_sagemaker_target_variant": "stored"});
    gateway.apply_snapshot(&serde_json::json!({"epoch": "1", "providers": [{"slug": "mine", "provider": "sagemaker",
        "custom_host": provider.url(), "options": options, "models": "m"}],
        "models": [{"id": "m", "allow_all": false, "models": [{"slug": "good", "enabled": true}]}]}));
    for (name, value, is_allowed) in [
        ("x-gateway-amzn-sagemaker-target-model", "good", true),
        ("x-gateway-amzn-sagemaker-target-model", "bad.tar.gz", false),
        ("x-gateway-amzn-sagemaker-inference-component", "bad", false),
        ("x-gateway-amzn-sagemaker-target-container-hostname", "bad", false),
        ("x-amzn-sagemaker-target-variant", "bad", false),
        ("x-unrelated", "bad", true),
    ] {
        let request = crate::harness::TestRequest::new("POST", "/v1/proxy/endpoints/good/invocations")
            .header("x-gateway-provider", "@mine")
            .header("content-type", "application/json")
            .header(name, value)
            .body(r#"{"model":"good"}"#);
        let response = gateway.send(request).await;
        assert_eq!(response.error_code() != "model_not_allowed", is_allowed, "{name}: {}", response.text());
    }
}

#[tokio::test]
async fn bodies_in_another_charset_are_rejected_if_models_are_restricted() {
    let provider = penstock_mock::Server::start().await;
    let gateway = crate::harness::TestGateway::for_provider(&provider);
    gateway.apply_snapshot(&serde_json::json!({"epoch": "1",
        "providers": [{"slug": "mine", "provider": "mock", "api_key": "k", "models": "m"}],
        "models": [{"id": "m", "allow_all": false, "models": [{"slug": "mock", "enabled": true}]}]}));
    for (charset, status) in [("utf-8", 200), ("utf-16", 400)] {
        let request = crate::harness::TestRequest::new("POST", crate::harness::CHAT_PATH)
            .header("x-gateway-provider", "@mine")
            .header("content-type", &format!("application/json; charset={charset}"))
            .body(crate::harness::chat_body("mock", false));
        let response = gateway.send(request).await;
        assert_eq!(response.status, status, "{charset}: {}", response.text());
    }
}
