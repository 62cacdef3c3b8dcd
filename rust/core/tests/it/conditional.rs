//! What a request says decides which target answers it, on every route.

use crate::harness::{CHAT, MESSAGES, Rig, by, by_with, settled, target, way, words};
use penstock_mock::Server;
use serde_json::{Value, json};

fn named(name: &str) -> Value {
    let mut target = target("chunks=1");
    target["name"] = json!(name);
    target
}

fn conditional(conditions: &Value) -> Value {
    json!({"strategy": {"mode": "conditional", "conditions": conditions, "default": "other"},
        "targets": [named("first"), named("second"), named("other")]})
}

#[tokio::test]
async fn the_first_condition_that_holds_names_the_target() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = conditional(&json!([
        {"query": {"metadata.plan": {"$eq": "paid"}}, "then": "first"},
        {"query": {"$or": [{"params.model": {"$regex": "^gpt-"}}, {"params.max_tokens": {"$gt": 100}}]}, "then": "second"},
    ]));
    let long = json!({"model": "m", "max_tokens": 101, "messages": []}).to_string();
    for (metadata, body, expected) in [
        (r#"{"plan":"paid"}"#, words("gpt-5", false), 0),
        (r#"{"plan":"free"}"#, words("gpt-5", false), 1),
        (r#"{"plan":"free"}"#, long, 1),
        (r#"{"plan":"free"}"#, words("mock", false), 2),
    ] {
        let told = rig.send(by_with(&config, CHAT, body).header("x-gateway-metadata", metadata)).await;
        assert_eq!((told.status, way(&told)[0]), (200, format!("config.targets[{expected}]").as_str()));
    }
    let conditions: Vec<_> = rig.records().iter().map(|record| record["decisions"][0]["condition"].clone()).collect();
    assert_eq!(conditions, [json!(0), json!(1), json!(1), json!(null)]);
}

#[tokio::test]
async fn the_path_is_asked_about_as_it_came_and_pass_through_bodies_too() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = conditional(&json!([
        {"query": {"url.pathname": {"$regex": "/messages$"}}, "then": "first"},
        {"query": {"url.pathname": "/v1/proxy/chat/completions", "params.stream": true}, "then": "second"},
    ]));
    for (path, stream, expected) in [
        (MESSAGES, false, 0),
        ("/v1/proxy/chat/completions", true, 1),
        ("/v1/proxy/chat/completions", false, 2),
        (CHAT, true, 2),
    ] {
        let told = rig.send(by_with(&config, path, words("mock", stream))).await;
        assert_eq!((told.status, way(&told)[0]), (200, format!("config.targets[{expected}]").as_str()), "{path}");
    }
}

#[tokio::test]
async fn a_request_that_no_condition_fits_is_refused_where_there_is_no_default() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut config = conditional(&json!([{"query": {"metadata.plan": "paid"}, "then": "first"}]));
    config["strategy"].as_object_mut().unwrap().remove("default");
    let told = rig.send(by(&config)).await;
    assert_eq!((told.status, told.code().as_str(), &told.json()["status"]), (400, "no_target", &json!("failure")));
    settled(&provider, 0).await;
}

#[tokio::test]
async fn what_is_wrong_with_conditions_is_told_with_its_place() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig
        .send(by(&conditional(&json!([
            {"query": {"metadata.plan": {"$like": 1}}, "then": "first"},
            {"query": {}, "then": "nobody"},
        ]))))
        .await;
    assert_eq!((told.status, told.code().as_str()), (400, "invalid_config"));
    let errors = told.json()["errors"].to_string();
    assert!(
        errors.contains("strategy.conditions[0].query.metadata.plan.$like")
            && errors.contains("strategy.conditions[1].then"),
        "{errors}"
    );
}
