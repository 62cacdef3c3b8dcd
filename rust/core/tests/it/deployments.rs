//! Which deployment or model of a provider is asked, whoever names it, and that it must be one that may be used.

use crate::harness::{Ask, CHAT, MESSAGES, played::Played, words};
use serde_json::{Value, json};

#[tokio::test]
async fn a_config_says_which_deployment_a_model_has() {
    let deployments = json!([{"deployment_id": "d1", "alias": "gpt-4o", "api_version": "2024-10-21"},
        {"deployment_id": "d2", "alias": "o3", "api_version": "v1", "is_default": true}]);
    for (path, model, line, told_model) in [
        (CHAT, "gpt-4o", "POST /deployments/d1/chat/completions?api-version=2024-10-21 ", "gpt-4o"),
        // No path names it, and the body does.
        (CHAT, "other", "POST /v1/chat/completions ", "d2"),
        (MESSAGES, "other", "POST /v1/chat/completions ", "d2"),
        ("/v1/responses", "gpt-4o", "POST /responses?api-version=2024-10-21 ", "d1"),
        ("/v1/responses", "other", "POST /v1/responses ", "d2"),
    ] {
        let played = Played::answering(200, "application/json", b"{}".to_vec(), 50).await;
        let config = json!({"provider": "azure-openai", "api_key": "k", "resource_name": "r",
            "custom_host": played.provider.url(), "deployments": deployments});
        let ask = Ask::new("POST", path).header("content-type", "application/json").body(words(model, false));
        let told = Played::rig().send(ask.header("x-gateway-config", &config.to_string())).await;
        let (head, body) = played.sent();
        assert!(head.starts_with(line), "{head} {}", told.text());
        assert_eq!(body["model"], told_model, "{path} {head}");
    }
}

#[tokio::test]
async fn a_model_in_the_place_of_the_one_that_a_request_names_must_be_one_that_may_be_used() {
    let played = Played::answering(200, "application/json", b"{}".to_vec(), 50).await;
    let rig = Played::rig();
    let options = json!({"aws_region": "eu-west-1"});
    rig.apply(&json!({"epoch": "1",
        "providers": [{"slug": "br", "provider": "bedrock", "api_key": "k", "custom_host": played.provider.url(),
            "models": "m", "options": options}],
        "models": [{"id": "m", "allow_all": false, "models": [{"slug": "good", "enabled": true}, {"slug": "fine", "enabled": true}]}]}));
    let ask = |name: &str, model: &str| {
        let ask = Ask::new("POST", CHAT).header("x-gateway-provider", "@br").header("content-type", "application/json");
        ask.header(&format!("x-gateway-{name}"), model).body(words("good", false))
    };
    for name in ["aws-bedrock-model", "provider-model"] {
        let told = rig.send(ask(name, "bad")).await;
        assert_eq!((told.status, told.code().as_str()), (403, "model_not_allowed"), "{name}");
    }
    assert_eq!(played.provider.connections(), 0);
    rig.send(ask("provider-model", "fine")).await;
    assert!(played.sent().0.starts_with("POST /model/fine/converse "), "{}", played.sent().0);
}

#[tokio::test]
async fn a_deployment_in_the_place_of_a_models_own_must_be_one_that_may_be_used() {
    let played = Played::answering(200, "application/json", b"{}".to_vec(), 50).await;
    let rig = Played::rig();
    let row = |slug: &str, provider: &str, options: Value| json!({"slug": slug, "provider": provider, "api_key": "k", "models": "m", "options": options, "custom_host": played.provider.url()});
    let azure = json!({"resource_name": "res", "api_version": "2024-10-21"});
    let mut usual = azure.clone();
    usual["deployment_id"] = json!("usual");
    rig.apply(&json!({"epoch": "1",
        "providers": [row("az", "azure-openai", azure), row("usual", "azure-openai", usual),
            row("db", "databricks", json!({"databricks_workspace": "w"}))],
        "models": [{"id": "m", "allow_all": false, "models": [{"slug": "good", "enabled": true},
            {"slug": "own", "enabled": true, "options": {"deployment_id": "its-own"}}]}]}));
    let ask = |provider: &str, path: &str, model: &str| {
        let ask = Ask::new("POST", path).header("x-gateway-provider", provider);
        ask.header("content-type", "application/json").body(words(model, false))
    };
    let alias = json!({"provider": "@az", "deployments": [{"alias": "good", "deployment_id": "bad", "api_version": "2024-10-21"}]});
    for (at, asking) in [
        ask("@az", CHAT, "good").header("x-gateway-azure-deployment-id", "bad"),
        ask("@az", "/v1/proxy/deployments/bad/chat/completions", "good"),
        ask("@az", "/openai/deployments/bad/chat/completions", "good"),
        ask("@az", CHAT, "good").header("x-gateway-config", &alias.to_string()),
        ask("@db", CHAT, "good").header("x-gateway-databricks-serving-endpoint-name", "bad"),
    ]
    .into_iter()
    .enumerate()
    {
        let told = rig.send(asking).await;
        assert_eq!((told.status, told.code().as_str()), (403, "model_not_allowed"), "{at}: {}", told.text());
    }
    assert_eq!(played.provider.connections(), 0);
    // What was saved says is meant: of the model before that of all.
    for (provider, model, deployment) in
        [("@az", "good", "good"), ("@usual", "good", "usual"), ("@usual", "own", "its-own"), ("@az", "own", "its-own")]
    {
        rig.send(ask(provider, CHAT, model)).await;
        let line = played.sent().0;
        assert!(line.starts_with(&format!("POST /deployments/{deployment}/chat/completions?")), "{model}: {line}");
    }
}

#[tokio::test]
async fn a_request_that_names_no_model_asks_none_where_only_some_may_be_used() {
    let played = Played::answering(200, "application/json", b"{}".to_vec(), 50).await;
    let rig = Played::rig();
    let row = |slug: &str, provider: &str, options: Value| json!({"slug": slug, "provider": provider, "api_key": "k", "models": slug, "options": options, "custom_host": played.provider.url()});
    let usual = json!({"resource_name": "res", "api_version": "2024-10-21", "deployment_id": "usual"});
    let models = |id: &str, allow_all: bool, enabled: bool| json!({"id": id, "allow_all": allow_all, "models": [{"slug": "m", "enabled": enabled}]});
    rig.apply(&json!({"epoch": "1",
        "providers": [row("some", "openai", json!({})), row("most", "openai", json!({})), row("all", "openai", json!({})),
            row("az", "azure-openai", usual)],
        "models": [models("some", false, true), models("most", true, false), models("all", true, true), models("az", false, true)]}));
    let ask = |at: &str, path: &str, body: &str| {
        let ask = Ask::new("POST", path).header("x-gateway-provider", &format!("@{at}"));
        ask.header("content-type", "application/json").body(body.to_owned())
    };
    let unnamed = [
        ("/v1/responses", r#"{"prompt":{"id":"pmpt_1"}}"#),
        ("/v1/images/generations", r#"{"prompt":"a cat"}"#),
        ("/v1/fine_tuning/jobs", r#"{"training_file":"file-1"}"#),
        (CHAT, r#"{"messages":[{"role":"user","content":"hi"}]}"#),
    ];
    let graded = r#"{"model":"m","training_file":"f","method":{"type":"reinforcement","reinforcement":{"grader":{"type":"score_model","model":"n"}}}}"#;
    let told = rig.send(ask("some", unnamed[2].0, graded)).await;
    assert_eq!((told.status, told.code().as_str()), (403, "model_not_allowed"), "{}", told.text());
    for (path, body) in unnamed {
        for at in ["some", "most"] {
            let told = rig.send(ask(at, path, body)).await;
            assert_eq!((told.status, told.code().as_str()), (403, "model_not_allowed"), "{at} {path}: {}", told.text());
        }
    }
    assert_eq!(played.provider.connections(), 0);
    for (path, body) in unnamed {
        assert_eq!(rig.send(ask("all", path, body)).await.status, 200, "{path}");
    }
    assert_eq!(
        rig.send(ask("some", unnamed[2].0, &graded.replace(r#""model":"n""#, r#""model":"m""#))).await.status,
        200
    );
    // A deployment that was saved is asked, whatever the body names.
    assert_eq!(rig.send(ask("az", CHAT, unnamed[3].1)).await.status, 200);
    assert!(played.sent().0.starts_with("POST /deployments/usual/chat/completions?"));
}

#[tokio::test]
async fn a_model_that_works_for_another_must_be_one_that_may_be_used() {
    let played = Played::answering(200, "application/json", b"{}".to_vec(), 50).await;
    let rig = Played::rig();
    let row = |slug: &str, provider: &str| json!({"slug": slug, "provider": provider, "api_key": "k", "models": slug, "custom_host": played.provider.url()});
    let models = |id: &str, allow_all: bool, others: bool| {
        let rows: Vec<_> = ["n", "o"].iter().map(|slug| json!({"slug": slug, "enabled": others})).collect();
        let good = [json!({"slug": "m", "enabled": true}), json!({"slug": "p", "enabled": true})];
        json!({"id": id, "allow_all": allow_all, "models": good.into_iter().chain(rows).collect::<Vec<_>>()})
    };
    rig.apply(&json!({"epoch": "1",
        "providers": [row("some", "openai"), row("most", "openrouter"), row("all", "openai"), row("claude", "anthropic")],
        "models": [models("some", false, false), models("most", true, false), models("all", true, true),
            models("claude", false, false)]}));
    let ask = |at: &str, path: &str, body: &str| {
        let ask = Ask::new("POST", path).header("x-gateway-provider", &format!("@{at}"));
        ask.header("content-type", "application/json").body(body.to_owned())
    };
    let (draws, instead) = (
        r#"{"model":"m","input":"a cat","tools":[{"type":"image_generation","model":"n"}]}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"models":["p","n"]}"#,
    );
    let advised = r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"advisor","name":"a","model":"n"}]}"#;
    let together = format!(r#"{{"requests":[{{"custom_id":"a","params":{advised}}}]}}"#);
    let asked = [
        ("some", "/v1/responses", draws),
        ("some", "/v1/proxy/responses", draws),
        ("most", CHAT, instead),
        ("claude", MESSAGES, advised),
        ("claude", "/v1/messages/batches", &together),
    ];
    for (at, path, body) in asked {
        let told = rig.send(ask(at, path, body)).await;
        let is_named = told.text().contains("the model `n` may not be used here");
        assert!(told.status == 403 && is_named, "{at} {path}: {} {}", told.status, told.text());
    }
    assert_eq!(played.provider.connections(), 0);
    for (at, path, body) in asked {
        let told = rig.send(ask(at, path, &body.replace(r#""n""#, r#""p""#))).await;
        assert_eq!(told.status, 200, "{at} {path}: {}", told.text());
    }
    assert_eq!(rig.send(ask("all", "/v1/responses", draws)).await.status, 200);
}
