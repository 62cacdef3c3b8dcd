//! Application inference profiles of Bedrock. The gateway looks up the model behind a profile once; that model decides
//! the API format and the price.

use std::sync::{Arc, Mutex};

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest,
    golden_provider::GoldenProvider,
    pick_fields,
    scripted_server::{ScriptedServer, json_response, read_request},
};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const PROFILE_ARN: &str = "arn:aws:bedrock:us-east-1:1:application-inference-profile/a1b2";
const ENCODED_PROFILE_ARN: &str = "arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Aapplication-inference-profile%2Fa1b2";

/// Starts a mock of Bedrock that answers model calls in the API format of the path. It reports the model behind a
/// profile, or refuses the lookup with 403 if `profile_model` is `None`. Also returns the requests that it receives.
async fn start_bedrock(profile_model: Option<&'static str>) -> (ScriptedServer, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&heads);
    let provider = ScriptedServer::start(move |mut stream, _| {
        let shared = Arc::clone(&shared);
        async move {
            while let Some(bytes) = read_request(&mut stream).await {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let response = match profile_model {
                    _ if text.contains("/invoke ") => {
                        let response = json!({"id": "m", "type": "message", "role": "assistant", "content": [],
                            "stop_reason": "end_turn", "usage": {"input_tokens": 30, "output_tokens": 12}});
                        json_response("200 OK", "", &response.to_string())
                    }
                    _ if text.contains("/converse ") => {
                        let response = json!({"output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},
                            "stopReason": "end_turn", "usage": {"inputTokens": 30, "outputTokens": 12, "totalTokens": 42}});
                        json_response("200 OK", "", &response.to_string())
                    }
                    Some(model) => {
                        let arn = format!("arn:aws:bedrock:us-east-1::foundation-model/{model}");
                        let response = json!({"type": "APPLICATION", "models": [{"modelArn": arn}]});
                        json_response("200 OK", "", &response.to_string())
                    }
                    None => json_response("403 Forbidden", "", r#"{"message":"no"}"#),
                };
                shared.lock().unwrap().push(text);
                stream.write_all(&response).await.unwrap();
            }
        }
    })
    .await;
    (provider, heads)
}

fn gateway_with_prices() -> TestGateway {
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let price = json!({"version": "v", "rates": {"input": [[0, 1_000_000]], "output": [[0, 2_000_000]]}});
    let prices_json = json!([{"provider": "bedrock", "model": "anthropic.claude-v9", "prices": [price]}]);
    gateway.apply_snapshot(&json!({"epoch": "1", "prices": {"overrides": prices_json}}));
    gateway
}

fn bedrock_config(provider: &ScriptedServer) -> Value {
    json!({"provider": "bedrock", "custom_host": provider.url(), "aws_region": "us-east-1",
        "aws_access_key_id": "AKID", "aws_secret_access_key": "s"})
}

fn bedrock_request(path: &str, config: &Value, model: &str) -> TestRequest {
    let body = json!({"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    TestRequest::new("POST", path)
        .header("content-type", "application/json")
        .header("x-gateway-config", &config.to_string())
        .body(body.to_string())
}

fn request_lines(heads: &Mutex<Vec<String>>) -> Vec<String> {
    let line = |head: &String| head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
    heads.lock().unwrap().iter().map(line).collect()
}

#[tokio::test]
async fn model_behind_a_profile_is_looked_up_once_and_sets_the_price() {
    let (provider, heads) = start_bedrock(Some("anthropic.claude-v9")).await;
    let gateway = gateway_with_prices();
    let plain = bedrock_config(&provider);
    let pinned = {
        let mut pinned = plain.clone();
        pinned["aws_bedrock_model"] = PROFILE_ARN.into();
        pinned
    };
    let several = json!({"strategy": {"mode": "fallback"}, "targets": [plain]});
    for (config, model) in
        [(&plain, PROFILE_ARN), (&pinned, "ours"), (&several, PROFILE_ARN), (&pinned, "anthropic.claude-v9")]
    {
        let response = gateway.send(bedrock_request(MESSAGES_PATH, config, model)).await;
        assert_eq!(response.status, 200, "{}", response.text());
        let record = gateway.single_record();
        // 30 input tokens at 1,000 nano-dollars each, and 12 output tokens at 2,000.
        let expected = json!([54_000, "v", PROFILE_ARN]);
        assert_eq!(pick_fields(&record, ["cost_nanodollars", "price_version", "ai_model"]), expected, "{record:#}");
    }
    let invoke = format!("POST /model/{ENCODED_PROFILE_ARN}/invoke");
    let expected = [
        format!("GET /inference-profiles/{ENCODED_PROFILE_ARN}"),
        invoke.clone(),
        invoke.clone(),
        invoke.clone(),
        invoke,
    ];
    assert_eq!(request_lines(&heads), expected);
    let first = heads.lock().unwrap()[0].clone();
    assert!(first.contains("AWS4-HMAC-SHA256 Credential=AKID/") && first.contains("/us-east-1/bedrock/"), "{first}");
}

#[tokio::test]
async fn denied_profile_lookup_uses_converse_and_is_not_repeated() {
    let (provider, heads) = start_bedrock(None).await;
    let gateway = gateway_with_prices();
    for path in [MESSAGES_PATH, CHAT_PATH] {
        let response = gateway.send(bedrock_request(path, &bedrock_config(&provider), PROFILE_ARN)).await;
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(gateway.single_record().get("cost_nanodollars"), Some(&Value::Null));
    }
    let converse = format!("POST /model/{ENCODED_PROFILE_ARN}/converse");
    assert_eq!(
        request_lines(&heads),
        [format!("GET /inference-profiles/{ENCODED_PROFILE_ARN}"), converse.clone(), converse]
    );
}
