//! Application inference profiles of Bedrock: it is asked once which model is behind one, and that decides how it is asked and
//! what it costs.

use std::sync::{Arc, Mutex};

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, pick,
    played::Played,
    scripted::{Scripted, request, whole},
};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const PROFILE: &str = "arn:aws:bedrock:us-east-1:1:application-inference-profile/a1b2";
const PATH: &str = "arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Aapplication-inference-profile%2Fa1b2";

/// Plays Bedrock: says which model is behind a profile, if it says that at all, and answers as that one does.
async fn bedrock(behind: Option<&'static str>) -> (Scripted, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    let provider = Scripted::start(move |mut stream, _| {
        let kept = Arc::clone(&kept);
        async move {
            while let Some(bytes) = request(&mut stream).await {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let answer = match behind {
                    _ if text.contains("/invoke ") => {
                        let answer = json!({"id": "m", "type": "message", "role": "assistant", "content": [],
                            "stop_reason": "end_turn", "usage": {"input_tokens": 30, "output_tokens": 12}});
                        whole("200 OK", "", &answer.to_string())
                    }
                    _ if text.contains("/converse ") => {
                        let answer = json!({"output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},
                            "stopReason": "end_turn", "usage": {"inputTokens": 30, "outputTokens": 12, "totalTokens": 42}});
                        whole("200 OK", "", &answer.to_string())
                    }
                    Some(model) => {
                        let arn = format!("arn:aws:bedrock:us-east-1::foundation-model/{model}");
                        let answer = json!({"type": "APPLICATION", "models": [{"modelArn": arn}]});
                        whole("200 OK", "", &answer.to_string())
                    }
                    None => whole("403 Forbidden", "", r#"{"message":"no"}"#),
                };
                kept.lock().unwrap().push(text);
                stream.write_all(&answer).await.unwrap();
            }
        }
    })
    .await;
    (provider, heads)
}

fn rig() -> Rig {
    let rig = Played::rig();
    let price = json!({"version": "v", "rates": {"input": [[0, 1_000_000]], "output": [[0, 2_000_000]]}});
    let said = json!([{"provider": "bedrock", "model": "anthropic.claude-v9", "prices": [price]}]);
    rig.apply(&json!({"epoch": "1", "prices": {"said": said}}));
    rig
}

fn config(provider: &Scripted) -> Value {
    json!({"provider": "bedrock", "custom_host": provider.url(), "aws_region": "us-east-1",
        "aws_access_key_id": "AKID", "aws_secret_access_key": "s"})
}

fn ask(path: &str, config: &Value, model: &str) -> Ask {
    let body = json!({"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    Ask::new("POST", path)
        .header("content-type", "application/json")
        .header("x-gateway-config", &config.to_string())
        .body(body.to_string())
}

fn lines(heads: &Mutex<Vec<String>>) -> Vec<String> {
    let line = |head: &String| head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
    heads.lock().unwrap().iter().map(line).collect()
}

#[tokio::test]
async fn the_model_behind_a_profile_is_asked_for_once_and_decides_how_it_is_asked_and_what_it_costs() {
    let (provider, heads) = bedrock(Some("anthropic.claude-v9")).await;
    let rig = rig();
    let plain = config(&provider);
    let pinned = {
        let mut pinned = plain.clone();
        pinned["aws_bedrock_model"] = PROFILE.into();
        pinned
    };
    let several = json!({"strategy": {"mode": "fallback"}, "targets": [plain]});
    for (config, model) in [(&plain, PROFILE), (&pinned, "ours"), (&several, PROFILE), (&pinned, "anthropic.claude-v9")]
    {
        let told = rig.send(ask(MESSAGES, config, model)).await;
        assert_eq!(told.status, 200, "{}", told.text());
        let record = rig.record();
        // 30 tokens of a thousand, 12 of two thousand.
        let expected = json!([54_000, "v", PROFILE]);
        assert_eq!(pick(&record, ["cost_nanodollars", "price_version", "ai_model"]), expected, "{record:#}");
    }
    let invoke = format!("POST /model/{PATH}/invoke");
    let expected = [format!("GET /inference-profiles/{PATH}"), invoke.clone(), invoke.clone(), invoke.clone(), invoke];
    assert_eq!(lines(&heads), expected);
    let first = heads.lock().unwrap()[0].clone();
    assert!(first.contains("AWS4-HMAC-SHA256 Credential=AKID/") && first.contains("/us-east-1/bedrock/"), "{first}");
}

#[tokio::test]
async fn who_may_not_know_it_is_asked_in_the_way_that_all_models_take_and_is_not_asked_again_at_once() {
    let (provider, heads) = bedrock(None).await;
    let rig = rig();
    for path in [MESSAGES, CHAT] {
        let told = rig.send(ask(path, &config(&provider), PROFILE)).await;
        assert_eq!(told.status, 200, "{}", told.text());
        assert_eq!(rig.record().get("cost_nanodollars"), Some(&Value::Null));
    }
    let converse = format!("POST /model/{PATH}/converse");
    assert_eq!(lines(&heads), [format!("GET /inference-profiles/{PATH}"), converse.clone(), converse]);
}
