//! A request in one dialect reaches a provider of another, in that provider's words.

use std::fs;

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, by_with, pick,
    played::{Played, frames, golden, timeless, without_model},
    words,
};
use penstock_mock::Server;
use serde_json::{Value, json};

#[tokio::test]
async fn a_model_in_the_path_is_routed_as_one_in_the_body() {
    let case = golden("openai/generateContent/whole");
    let answered = fs::read(case.join("answered.json")).unwrap();
    let played = Played::answering(200, "application/json", answered, 50).await;
    let (_, asked) = without_model(&fs::read(case.join("asked.json")).unwrap());
    let url = played.provider.url();
    let saved = json!({"epoch": "1", "providers": [
        {"slug": "mine", "provider": "openai", "api_key": "sk-1", "custom_host": url}]});
    let rig = Played::rig();
    rig.gateway.apply_snapshot(saved.to_string().as_bytes()).unwrap();
    let ask = |path: &str| Ask::new("POST", path).header("content-type", "application/json").body(asked.clone());
    for path in [
        "/v1beta/models/@mine/gpt-4o:generateContent",
        "/v1alpha/models/@mine/gpt-4o:generateContent",
        "/v1/models/%40mine%2Fgpt-4o:generateContent",
        "/v1beta1/publishers/google/models/@mine/gpt-4o:generateContent",
        "/v1beta1/projects/p/locations/l/publishers/google/models/@mine/gpt-4o:generateContent",
        "/v1/projects/p/locations/l/publishers/google/models/@mine/gpt-4o:generateContent",
    ] {
        let told = rig.send(ask(path)).await;
        assert_eq!((told.status, played.sent().1["model"].as_str()), (200, Some("gpt-4o")), "{}", told.text());
    }
    let target = json!({"provider": "@mine", "override_params": {"model": "gpt-5", "temperature": 0}});
    let config = json!({"strategy": {"mode": "conditional", "default": "b",
        "conditions": [{"query": {"params.model": "fast"}, "then": "a"}]},
        "targets": [{"name": "a", "provider": "@mine", "override_params": target["override_params"]},
            {"name": "b", "provider": "@mine"}]});
    let asked = |model: &str| {
        ask(&format!("/v1beta/models/{model}:generateContent")).header("x-gateway-config", &config.to_string())
    };
    assert_eq!(rig.send(asked("fast")).await.status, 200);
    assert_eq!(pick(&played.sent().1, ["model", "temperature"]), json!(["gpt-5", 0]));
    assert_eq!(rig.send(asked("slow")).await.status, 200);
    assert_eq!(pick(&played.sent().1, ["model", "temperature"]), json!(["slow", 0.5]));
}

/// The router of Hugging Face does nothing but chat; an endpoint of one's own continues texts.
#[tokio::test]
async fn an_endpoint_of_ones_own_is_asked_for_completions_as_they_came() {
    let answer = br#"{"object":"text_completion","choices":[{"text":" so","index":0,"finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}"#;
    let played = Played::answering(200, "application/json", answer.to_vec(), 50).await;
    let rig = Played::rig();
    let url = played.provider.url();
    for (key, path) in [("huggingface_base_url", "/v1/completions"), ("custom_host", "/v1/chat/completions")] {
        let mut config = json!({"provider": "huggingface", "api_key": "k"});
        config[key] = url.as_str().into();
        let ask = Ask::new("POST", "/v1/completions").header("content-type", "application/json");
        let body = r#"{"model":"tgi","prompt":"It is","max_tokens":3,"n":1}"#;
        let told = rig.send(ask.header("x-gateway-config", &config.to_string()).body(body)).await;
        let (head, sent) = played.sent();
        assert!(head.starts_with(&format!("POST {path} HTTP/1.1")), "{head} {}", told.text());
        assert_eq!(
            (sent["prompt"] == "It is", told.body == answer),
            (path == "/v1/completions", path == "/v1/completions")
        );
    }
}

#[tokio::test]
async fn who_speaks_the_callers_own_dialect_gets_and_gives_the_very_bytes() {
    let body = br#"{ "contents" : [{"parts":[{"text":"Hi"}]}], "unknown": 1 }"#.to_vec();
    let answer = br#"{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":4,"thoughtsTokenCount":2,"cachedContentTokenCount":3,"totalTokenCount":15},"x":1}"#;
    for config in [json!({"provider": "google"}), json!({"provider": "google", "retry": {"attempts": 1}})] {
        let played = Played::answering(200, "application/json", answer.to_vec(), 20).await;
        let rig = Played::rig();
        let mut config = config.clone();
        config["custom_host"] = played.provider.url().into();
        config["api_key"] = "sk-1".into();
        let ask = Ask::new("POST", "/v1/models/gemini-2.5-pro:generateContent?x=1")
            .header("content-type", "application/json")
            .header("x-gateway-config", &config.to_string());
        let told = rig.send(ask.body(body.clone())).await;
        assert_eq!((told.status, told.body.as_slice()), (200, answer.as_slice()));
        let (head, _) = played.sent();
        assert!(head.starts_with("POST /v1beta/models/gemini-2.5-pro:generateContent?x=1 HTTP/1.1"), "{head}");
        assert!(played.sent.lock().unwrap().ends_with(&body));
        assert_eq!(pick(&rig.record(), ["req_units", "res_units"]), json!([9, 6]));
    }
    let stream = frames(&golden("bedrock/chatComplete/stream/answered.hex"));
    let played = Played::answering(200, "application/vnd.amazon.eventstream", stream.clone(), 33).await;
    let rig = Played::rig();
    let told = rig.send(played.ask("bedrock", "/model/m%3A0/converse-stream", b"{ }".to_vec())).await;
    assert_eq!((told.status, told.body.as_slice()), (200, stream.as_slice()));
    assert!(played.sent().0.starts_with("POST /model/m%3A0/converse-stream HTTP/1.1"));
    assert_eq!(pick(&rig.record(), ["outcome", "req_units", "res_units"]), json!(["complete", 20, 5]));
}

#[tokio::test]
async fn what_cannot_be_said_is_refused_before_anything_is_sent() {
    let played = Played::answering(200, "application/json", Vec::new(), 50).await;
    let asked = json!({"model": "claude-x", "n": 3, "messages": []}).to_string();
    let told = Played::rig().send(played.ask("anthropic", CHAT, asked.into())).await;
    assert_eq!((told.status, told.code().as_str()), (400, "untranslatable_request"));
    assert!(told.text().contains("anthropic: n: "), "{}", told.text());
    assert_eq!(played.provider.connections(), 0);
}

#[tokio::test]
async fn a_request_to_bedrock_is_signed_and_carries_no_key() {
    let answered = fs::read(golden("bedrock/chatComplete/whole/answered.json")).unwrap();
    let played = Played::answering(200, "application/json", answered, 50).await;
    let ask = || played.ask("bedrock", CHAT, words("m", false).into()).header("x-gateway-aws-access-key-id", "AKID");
    let signed = ask().header("x-gateway-aws-secret-access-key", "s3cret").header("x-gateway-aws-session-token", "tok");
    assert_eq!(Played::rig().send(signed).await.status, 200);
    let (head, _) = played.sent();
    assert!(head.contains("authorization: AWS4-HMAC-SHA256 Credential=AKID/"), "{head}");
    assert!(head.contains("/eu-west-1/bedrock/aws4_request") && head.contains("x-amz-security-token: tok"), "{head}");
    assert!(!head.contains("s3cret") && !head.contains("sk-1") && head.matches("authorization").count() == 1, "{head}");
    let half = Played::rig().send(ask()).await;
    assert_eq!((half.status, half.code().as_str()), (400, "invalid_provider_option"), "{}", half.text());
    let role = ask().header("x-gateway-aws-auth-type", "serviceRole");
    let role = Played::rig().send(role).await;
    assert_eq!((role.status, role.code().as_str()), (400, "invalid_provider_option"), "{}", role.text());
    assert!(role.text().contains("only a stored provider or config may ask for them"), "{}", role.text());
}

#[tokio::test]
async fn a_request_falls_back_from_one_dialect_to_the_next_each_time_as_the_caller_wrote_it() {
    let error = fs::read(golden("anthropic/chatComplete/error/answered.json")).unwrap();
    let first = Played::answering(529, "application/json", error, 50).await;
    let case = golden("google/chatComplete/tools_stream");
    let second = Played::answering(200, "text/event-stream", fs::read(case.join("answered.sse")).unwrap(), 50).await;
    let target = |provider: &str, played: &Played| json!({"provider": provider, "api_key": "sk-1", "custom_host": played.provider.url()});
    let targets = [target("anthropic", &first), target("google", &second)];
    let config = json!({"strategy": {"mode": "fallback", "on_status_codes": [529]}, "targets": targets});
    let rig = Played::rig();
    let ask = Ask::new("POST", CHAT)
        .header("x-gateway-config", &config.to_string())
        .header("content-type", "application/json")
        .body(fs::read(case.join("asked.json")).unwrap());
    let told = rig.send(ask).await;
    assert_eq!((told.status, told.cut), (200, false), "{}", told.text());
    assert_eq!(timeless(&told.text()), timeless(&fs::read_to_string(case.join("returned.sse")).unwrap()));
    let sent: Value = serde_json::from_slice(&fs::read(case.join("sent.json")).unwrap()).unwrap();
    assert_eq!(second.sent().1, sent);
    assert_eq!(first.sent().1["messages"][0]["role"], "user");
    let record = rig.record();
    assert_eq!(
        pick(&record, ["ai_org", "req_units", "last_used_option_index"]),
        json!(["google", 30, "config.targets[1]"])
    );
}

#[tokio::test]
async fn what_belongs_to_the_callers_dialect_stays_behind() {
    let played = Played::answering(
        200,
        "application/json",
        fs::read(golden("openai/messages/whole/answered.json")).unwrap(),
        50,
    )
    .await;
    let told = Played::rig().send(played.ask("openai", "/v1/messages?beta=true", words("gpt-4o", false).into())).await;
    assert_eq!(told.status, 200);
    let (head, _) = played.sent();
    assert!(head.starts_with("POST /chat/completions HTTP/1.1"), "{head}");
    assert!(!head.contains("anthropic-beta"), "{head}");
    let to_anthropic = fs::read(golden("anthropic/chatComplete/whole/answered.json")).unwrap();
    let played = Played::answering(200, "application/json", to_anthropic, 50).await;
    Played::rig().send(played.ask("anthropic", CHAT, words("claude-x", false).into())).await;
    let (head, _) = played.sent();
    assert!(head.contains("anthropic-beta: caching") && head.contains("anthropic-version: 2023-06-01"), "{head}");
}

#[tokio::test]
async fn the_pretend_provider_is_reached_in_the_dialect_it_is_not_asked_in() {
    let mock = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let ask = |provider: &str, path: &str, stream: bool| {
        Ask::new("POST", path)
            .header("x-gateway-provider", provider)
            .header("x-gateway-custom-host", &format!("{}/v1", mock.url()))
            .header("content-type", "application/json")
            .header("authorization", "Bearer sk-1")
            .body(words("mock", stream))
    };
    let whole = rig.send(ask("anthropic", CHAT, false)).await.json();
    let streamed = rig.send(ask("anthropic", CHAT, true)).await;
    let content = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(!content.is_empty() && !streamed.cut);
    let deltas = streamed.text();
    let deltas = deltas.lines().filter_map(|line| line.strip_prefix("data: {")).map(|rest| format!("{{{rest}"));
    let deltas = deltas.map(|data| serde_json::from_str::<Value>(&data).unwrap());
    let said: String =
        deltas.filter_map(|data| Some(data["choices"][0]["delta"]["content"].as_str()?.to_owned())).collect();
    assert_eq!(said, content);
    let message = rig.send(ask("openai", MESSAGES, false)).await.json();
    assert_eq!(message["content"][0]["text"], content.as_str());
    let events = rig.send(ask("openai", MESSAGES, true)).await;
    assert!(
        events.text().starts_with("event: message_start\n")
            && events.text().ends_with("{\"type\":\"message_stop\"}\n\n")
    );
    assert!(
        rig.records()
            .iter()
            .all(|record| record["units_estimated"] == Value::Null && record["req_units"] != Value::Null)
    );
}

#[tokio::test]
async fn everybody_reaches_a_provider_that_reads_what_it_is_sent() {
    let mock = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let callers = [
        ("google/chatComplete", CHAT),
        ("google/messages", MESSAGES),
        ("google/createModelResponse", "/v1/responses"),
        ("openai/generateContent", "/v1beta/models/mock:generateContent"),
        ("anthropic/converse", "/model/mock/converse"),
        ("openai/invokeModel", "/model/mock/invoke"),
    ];
    for (asked, path) in callers {
        let case = golden(&format!("{asked}/tools"));
        let (_, asked) = without_model(&fs::read(case.join("asked.json")).unwrap());
        let named = path.starts_with("/v1/");
        let asked = if named {
            String::from_utf8(asked).unwrap().replacen('{', "{\"model\":\"mock\",", 1).into()
        } else {
            asked
        };
        for (provider, prefix) in [("openai", "/v1"), ("anthropic", "/v1"), ("google", ""), ("bedrock", "")] {
            let is_native = (provider == "google" && path.starts_with("/v1beta"))
                || (provider == "bedrock" && !path.starts_with("/v1"));
            if is_native {
                continue;
            }
            let ask = Ask::new("POST", path)
                .header("x-gateway-provider", provider)
                .header("x-gateway-custom-host", &format!("{}{prefix}", mock.url()))
                .header("x-gateway-aws-region", "eu-west-1")
                .header("content-type", "application/json")
                .header("authorization", "Bearer sk-1")
                .body(asked.clone());
            let told = rig.send(ask).await;
            assert_eq!(told.status, 200, "{path} to {provider}: {}", told.text());
            assert!(told.text().contains("Hello from the pretend provider"), "{path} to {provider}: {}", told.text());
            assert_eq!(pick(&rig.record(), ["req_units", "res_units"]), json!([12, 8]), "{path} to {provider}");
        }
    }
}

/// Cases of Claude at who hosts it: the path, and what of the caller's betas goes where.
const HOSTED: [(&str, &str, &str, &str); 4] = [
    ("bedrock", "carried_betas", "POST /model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke HTTP/1.1", ""),
    (
        "bedrock",
        "carried_betas_stream",
        "POST /model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke-with-response-stream HTTP/1.1",
        "",
    ),
    ("vertex-ai", "carried", "claude-sonnet-4-5%4020250929:rawPredict HTTP/1.1", "anthropic-beta: one-1, two-2"),
    (
        "vertex-ai",
        "carried_stream",
        "claude-sonnet-4-5%4020250929:streamRawPredict HTTP/1.1",
        "anthropic-beta: one-1, two-2",
    ),
];

#[tokio::test]
async fn messages_for_claude_are_carried_to_its_hosts_and_back_as_they_are() {
    let named = ["anthropic-beta", "x-gateway-anthropic-beta"];
    for ((provider, label, line, beta), named) in HOSTED.into_iter().flat_map(|one| named.map(|named| (one, named))) {
        let case = golden(&format!("{provider}/messages/{label}"));
        let (kind, answered) = match [case.join("answered.hex"), case.join("answered.sse"), case.join("answered.json")]
        {
            [hex, ..] if hex.exists() => ("application/vnd.amazon.eventstream", frames(&hex)),
            [_, sse, _] if sse.exists() => ("text/event-stream; charset=utf-8", fs::read(sse).unwrap()),
            [.., json] => ("application/json", fs::read(json).unwrap()),
        };
        let played = Played::answering(200, kind, answered.clone(), 11).await;
        let rig = Played::rig();
        let asked = fs::read(case.join("asked.json")).unwrap();
        let told = rig
            .send(
                Ask::new("POST", MESSAGES)
                    .header("x-gateway-provider", provider)
                    .header("x-gateway-custom-host", &played.provider.url())
                    .header("x-gateway-vertex-project-id", "p")
                    .header("x-gateway-vertex-region", "europe-west4")
                    .header("x-gateway-aws-region", "eu-west-1")
                    .header("content-type", "application/json")
                    .header("anthropic-version", "2023-06-01")
                    .header(named, "one-1, two-2")
                    .header("authorization", "Bearer sk-1")
                    .body(asked.clone()),
            )
            .await;
        assert_eq!(told.status, 200, "{}", told.text());
        if kind == "application/vnd.amazon.eventstream" {
            assert_eq!(
                told.text(),
                fs::read_to_string(case.join("returned.sse")).unwrap().trim_end().to_owned() + "\n\n"
            );
        } else {
            assert_eq!(told.text().as_bytes(), answered, "{provider} {label}: byte by byte");
        }
        let bytes = played.sent.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(line) && head.contains(beta) && !head.contains("anthropic-version"), "{head}");
        let is_in_body = body.contains(r#""anthropic_beta":["one-1","two-2"]"#);
        assert_eq!(is_in_body, provider == "bedrock", "{provider} {named}: {body}");
        // What the caller wrote stands there as it was written.
        let written = String::from_utf8(asked).unwrap();
        let (_, after) = written.split_once("\"max_tokens\"").unwrap();
        let (thoughts, _) = after.split_once("\"And?\"").unwrap();
        assert!(body.contains(thoughts), "{body}");
        let record = rig.record();
        assert_eq!(pick(&record, ["req_units", "res_units"]), json!([16, 5]), "{provider} {label}: {record}");
    }
}

#[tokio::test]
async fn what_does_not_talk_is_asked_and_told_in_translation_too() {
    let post = |path| ("POST", path);
    for (provider, operation, label, (method, path), line) in [
        ("google", "models", "whole", ("GET", "/v1/models"), "GET /v1beta/models?pageSize=1000 HTTP/1.1"),
        ("cohere", "models", "whole", ("GET", "/v1/models"), "GET /v1/models?page_size=1000 HTTP/1.1"),
        ("bedrock", "models", "whole", ("GET", "/v1/models"), "GET /foundation-models HTTP/1.1"),
        ("stability-ai", "imageGenerate", "whole", post("/v1/images/generations"), "/generate/core HTTP/1.1"),
        (
            "bedrock",
            "imageGenerate",
            "whole",
            post("/v1/images/generations"),
            "/model/amazon.nova-canvas-v1%3A0/invoke HTTP/1.1",
        ),
        ("bedrock", "embed", "whole", post("/v1/embeddings"), "/model/amazon.titan-embed-text-v2%3A0/invoke HTTP/1.1"),
        ("vertex-ai", "embed", "whole", post("/v1/embeddings"), "/models/text-embedding-005:predict HTTP/1.1"),
        (
            "google",
            "messagesCountTokens",
            "whole",
            post("/v1/messages/count_tokens"),
            "gemini-2.5-flash:countTokens HTTP/1.1",
        ),
        (
            "vertex-ai",
            "messagesCountTokens",
            "claude",
            post("/v1/messages/count_tokens"),
            "/count-tokens:rawPredict HTTP/1.1",
        ),
    ] {
        let case = golden(&format!("{provider}/{operation}/{label}"));
        let read = |file: &str| fs::read(case.join(file)).unwrap();
        let played = Played::answering(200, "application/json", read("answered.json"), 50).await;
        let body = if method == "GET" { Vec::new() } else { read("asked.json") };
        let ask = played.ask(provider, path, body).method(method);
        let told = Played::rig().send(ask).await;
        assert_eq!(told.status, 200, "{provider} {operation}: {}", told.text());
        let (mut found, mut expected) = (told.json(), serde_json::from_slice::<Value>(&read("returned.json")).unwrap());
        for answer in [&mut found, &mut expected] {
            answer.as_object_mut().unwrap().retain(|key, _| key != "created");
        }
        assert_eq!(found, expected, "{provider} {operation}");
        let bytes = played.sent.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(line), "{provider} {operation}: {text}");
        let is_form = text.contains("\r\ncontent-type: multipart/form-data; boundary=");
        assert_eq!(is_form, provider == "stability-ai", "{text}");
        assert!(!is_form || text.matches("content-type:").count() == 1, "{text}");
    }
}

/// What Google's own client asks for besides content: a golden case, and the line that its provider gets.
const EMBEDDED_AND_COUNTED: [(&str, &str); 8] = [
    ("openai/batchEmbedContents/whole", "POST /embeddings HTTP/1.1"),
    ("openai/embedContent/whole", "POST /embeddings HTTP/1.1"),
    ("cohere/batchEmbedContents/whole", "POST /v2/embed HTTP/1.1"),
    ("vertex-ai/batchEmbedContents/whole", "/publishers/google/models/gemini-embedding-001:predict HTTP/1.1"),
    ("bedrock/embedContent/whole", "POST /model/amazon.titan-embed-text-v2%3A0/invoke HTTP/1.1"),
    ("anthropic/countTokens/whole", "POST /messages/count_tokens HTTP/1.1"),
    ("bedrock/countTokens/whole", "POST /model/amazon.nova-pro-v1%3A0/count-tokens HTTP/1.1"),
    ("vertex-ai/countTokens/claude", "/publishers/anthropic/models/count-tokens:rawPredict HTTP/1.1"),
];

#[tokio::test]
async fn googles_client_embeds_and_counts_at_providers_of_other_dialects() {
    for (named, line) in EMBEDDED_AND_COUNTED {
        let case = golden(named);
        let read = |file: &str| fs::read(case.join(file)).unwrap();
        let [provider, verb, _] = named.split('/').collect::<Vec<_>>()[..] else { panic!("{named}") };
        let played = Played::answering(200, "application/json", read("answered.json"), 50).await;
        let (model, asked) = without_model(&read("asked.json"));
        let rig = Played::rig();
        let told = rig.send(played.ask(provider, &format!("/v1beta/models/{model}:{verb}"), asked)).await;
        assert_eq!(
            (told.status, told.json()),
            (200, serde_json::from_slice(&read("returned.json")).unwrap()),
            "{named}"
        );
        let (head, body) = played.sent();
        assert!(head.contains(line), "{named}: {head}");
        assert_eq!(body, serde_json::from_slice::<Value>(&read("sent.json")).unwrap(), "{named}");
        let lost = fs::read_to_string(case.join("lost.txt")).ok();
        assert_eq!(told.header("x-gateway-not-translated"), lost.as_deref().map(str::trim_end), "{named}");
        let units =
            if verb == "countTokens" { Value::Null } else { told.json()["usageMetadata"]["promptTokenCount"].clone() };
        assert_eq!(rig.record()["req_units"], units, "{named}");
    }
}

#[tokio::test]
async fn google_embeds_and_counts_for_its_own_client_byte_by_byte_wherever_the_model_was_named() {
    let body = br#"{ "requests" : [{"model":"models/@mine/e-1","content":{"parts":[{"text":"Hi"}]}}] }"#;
    let renamed = br#"{"requests":[{"model":"models/e-1","content":{"parts":[{"text":"Hi"}]}}]}"#;
    for (provider, line) in [
        ("google", "POST /v1beta/models/e-1:VERB HTTP/1.1"),
        ("vertex-ai", "POST /v1/projects/p/locations/europe-west4/publishers/google/models/e-1:VERB HTTP/1.1"),
    ] {
        for verb in ["embedContent", "batchEmbedContents", "countTokens"] {
            if provider == "vertex-ai" && verb != "countTokens" {
                continue;
            }
            let played = Played::answering(200, "application/json", b"{ \"totalTokens\":3 }".to_vec(), 50).await;
            let rig = Played::rig();
            let told = rig.send(played.ask(provider, &format!("/v1beta/models/e-1:{verb}"), body.to_vec())).await;
            assert_eq!((told.status, told.body.as_slice()), (200, b"{ \"totalTokens\":3 }".as_slice()));
            assert!(played.sent().0.contains(&line.replace("VERB", verb)), "{}", played.sent().0);
            assert!(played.sent.lock().unwrap().ends_with(body), "{verb}");
        }
    }
    let played = Played::answering(200, "application/json", b"{}".to_vec(), 50).await;
    let saved = json!({"epoch": "1", "providers": [
        {"slug": "mine", "provider": "google", "api_key": "sk-1", "custom_host": played.provider.url()}]});
    let rig = Played::rig();
    rig.gateway.apply_snapshot(saved.to_string().as_bytes()).unwrap();
    let ask =
        Ask::new("POST", "/v1beta/models/@mine/e-1:batchEmbedContents").header("content-type", "application/json");
    assert_eq!(rig.send(ask.body(body.to_vec())).await.status, 200);
    assert!(played.sent.lock().unwrap().ends_with(renamed), "{:?}", played.sent());
}

#[tokio::test]
async fn claude_at_azure_is_asked_where_anthropics_models_are_and_others_where_the_rest_is() {
    let answer = fs::read(golden("azure-ai/chatComplete/claude").join("answered.json")).unwrap();
    for (prefix, model, path, expected) in [
        ("/models", "claude-opus-4-5", CHAT, "POST /anthropic/v1/messages HTTP/1.1"),
        ("/models", "claude-opus-4-5", MESSAGES, "POST /anthropic/v1/messages HTTP/1.1"),
        ("", "claude-opus-4-5", MESSAGES, "POST /anthropic/v1/messages HTTP/1.1"),
        ("/anthropic", "our-best", MESSAGES, "POST /anthropic/v1/messages HTTP/1.1"),
        ("/models", "gpt-5", CHAT, "POST /models/chat/completions HTTP/1.1"),
    ] {
        let played = Played::answering(200, "application/json", answer.clone(), 50).await;
        let host = format!("{}{prefix}", played.provider.url());
        let config = json!({"provider": "azure-ai", "api_key": "k-1", "custom_host": host});
        let told = Played::rig().send(by_with(&config, path, words(model, false))).await;
        assert_eq!(told.status, 200, "{prefix} {model}: {}", told.text());
        let head = played.sent().0.to_ascii_lowercase();
        assert!(head.starts_with(&expected.to_ascii_lowercase()), "{head}");
        let is_claudes = expected.contains("anthropic");
        assert_eq!(head.contains("\r\nanthropic-version: 2023-06-01\r\n"), is_claudes, "{head}");
        assert_eq!(head.contains("\r\nx-api-key: k-1\r\n"), is_claudes, "{head}");
        assert_eq!(head.contains("\r\nauthorization: bearer k-1\r\n"), !is_claudes, "{head}");
    }
}

#[tokio::test]
async fn rerank_at_azure_is_asked_of_its_maker_beside_the_models_of_others() {
    let body = json!({"model": "rerank-v3", "query": "q", "documents": ["d"]});
    for (prefix, expected) in [("/models", "/providers/cohere/v2/rerank"), ("/cohere/v2", "/cohere/v2/rerank")] {
        let played = Played::answering(200, "application/json", b"{\"results\":[]}".to_vec(), 50).await;
        let host = format!("{}{prefix}", played.provider.url());
        let config = json!({"provider": "azure-ai", "api_key": "k-1", "custom_host": host});
        Played::rig().send(by_with(&config, "/v1/rerank", body.to_string().into_bytes())).await;
        let head = played.sent().0;
        assert!(head.starts_with(&format!("POST {expected} HTTP/1.1")), "{head}");
    }
}

/// Names and values.
type Fields = &'static [(&'static str, &'static str)];

/// Options as a request's headers say them, as a config does, and what of them comes to the provider.
const TOLD: &[(&str, Fields, &str)] = &[
    ("stability-ai", &[("stability-client-id", "c-1")], "stability-client-id: c-1\r\n"),
    ("openrouter", &[("http-referer", "https://app.example"), ("x-title", "App")], "x-title: App\r\n"),
    ("mistral-ai", &[("mistral-fim-completion", "true")], "POST /fim/completions HTTP/1.1"),
    (
        "azure-ai",
        &[("azure-extra-params", "pass-through"), ("azure-endpoint-name", "n")],
        "extra-parameters: pass-through\r\n",
    ),
    (
        "databricks",
        &[("databricks-workspace", "w"), ("databricks-serving-endpoint-name", "own")],
        "POST /own/invocations HTTP/1.1",
    ),
    (
        "vertex-ai",
        &[("vertex-region", "r"), ("vertex-project-id", "p"), ("anthropic-beta", "one-1")],
        "anthropic-beta: one-1\r\n",
    ),
    ("bedrock", &[("aws-region", "r"), ("provider-model", "amazon.nova")], "POST /model/amazon.nova/converse HTTP/1.1"),
    ("sagemaker", &[("aws-region", "r"), ("amzn-sagemaker-session-id", "s-1")], "x-amzn-sagemaker-session-id: s-1\r\n"),
];

#[tokio::test]
async fn what_providers_are_told_besides_comes_from_headers_and_configs_alike() {
    for (slug, options, expected) in TOLD {
        let path = match *slug {
            "stability-ai" | "sagemaker" => "/v1/proxy/anything",
            "vertex-ai" => MESSAGES,
            _ => CHAT,
        };
        let model = if *slug == "vertex-ai" { "claude-x" } else { "m" };
        for in_config in [false, true] {
            let played = Played::answering(200, "application/json", b"{}".to_vec(), 50).await;
            let mut config = json!({"provider": slug, "api_key": "k", "custom_host": played.provider.url()});
            let mut ask = Ask::new("POST", path).header("content-type", "application/json").body(words(model, false));
            for (header, value) in *options {
                if in_config {
                    config[header.replace('-', "_")] = json!(value);
                } else {
                    ask = ask.header(&format!("x-portkey-{header}"), value);
                }
            }
            let told = Played::rig().send(ask.header("x-gateway-config", &config.to_string())).await;
            let (head, _) = played.sent();
            assert!(head.contains(expected), "{slug} {in_config}: {head} {}", told.text());
        }
    }
}

#[tokio::test]
async fn a_version_in_a_body_is_asked_for_in_a_header_unless_the_caller_has_one() {
    let case = golden("anthropic/chatComplete/whole");
    let mut body: Value = serde_json::from_slice(&fs::read(case.join("asked.json")).unwrap()).unwrap();
    body["anthropic_version"] = "2023-01-01".into();
    for (own, expected, named) in
        [(None, "2023-01-01", false), (Some(("x-gateway-anthropic-version", "2024-02-02")), "2024-02-02", true)]
    {
        let played =
            Played::answering(200, "application/json", fs::read(case.join("answered.json")).unwrap(), 50).await;
        let mut asked = played.ask("anthropic", CHAT, body.to_string().into_bytes());
        if let Some((name, value)) = own {
            asked = asked.header(name, value);
        }
        let told = Played::rig().send(asked).await;
        assert_eq!(told.status, 200, "{}", told.text());
        let (head, sent) = played.sent();
        assert_eq!(head.matches("anthropic-version: ").count(), 1, "{head}");
        assert!(head.contains(&format!("anthropic-version: {expected}")), "{head}");
        assert_eq!(sent.get("anthropic_version"), None);
        let lost = told.header("x-gateway-not-translated").unwrap_or_default().to_owned();
        assert_eq!(lost.contains("anthropic_version"), named, "{lost}");
    }
}

#[tokio::test]
async fn betas_in_a_body_are_asked_for_in_a_header_and_only_there() {
    let case = golden("anthropic/chatComplete/asks_for_more");
    let read = |file: &str| fs::read(case.join(file)).unwrap();
    let played = Played::answering(200, "application/json", read("answered.json"), 50).await;
    let told = Played::rig().send(played.ask("anthropic", CHAT, read("asked.json"))).await;
    assert_eq!(told.status, 200, "{}", told.text());
    let (head, body) = played.sent();
    assert!(head.contains("anthropic-beta: one-1,two-2"), "{head}");
    assert_eq!(body, serde_json::from_slice::<Value>(&read("sent.json")).unwrap());
}
