//! Who is meant by a request: by its config, its headers, or the name of its model.

use crate::harness::{Ask, CHAT, MESSAGES, Rig, by_with, settled, sha256, way, words};
use bytes::Bytes;
use penstock_core::ingress::body::{Body, BodyEnd, feed_channel};
use penstock_mock::Server;
use serde_json::json;

fn saved(rig: &Rig) {
    rig.apply(&json!({"epoch": "1", "providers": [{"slug": "mine", "provider": "mock"}, {"slug": "other", "provider": "mock"}]}));
}

fn plain(path: &str, model: &str) -> Ask {
    Ask::new("POST", path).header("content-type", "application/json").body(words(model, false))
}

#[tokio::test]
async fn a_model_may_name_the_saved_provider_before_a_slash() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    saved(&rig);
    for (count, path) in [(1, CHAT), (2, MESSAGES), (3, "/v1/embeddings")] {
        let told = rig.send(plain(path, "@mine/mock?chunks=1")).await;
        assert_eq!(told.status, 200, "{}", told.text());
        assert_eq!(settled(&provider, count).await[count - 1].model, "mock?chunks=1");
        assert_eq!(rig.record()["ai_model"], "mock?chunks=1");
    }
    let told = rig.send(plain(CHAT, "@gone/mock")).await;
    assert_eq!((told.status, told.code().as_str()), (400, "not_found_in_workspace"));
    for model in ["mock", "@mine", ""] {
        let told = rig.send(plain(CHAT, model)).await;
        assert_eq!((told.status, told.code().as_str()), (400, "provider_needed"), "{model}");
    }
}

#[tokio::test]
async fn a_provider_that_is_named_elsewhere_wins_and_its_own_models_stay_as_they_are() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    saved(&rig);
    for (model, sent) in [("@mine/m", "m"), ("@cf/meta/m", "@cf/meta/m")] {
        let told = rig.send(plain(CHAT, model).header("x-gateway-provider", "@other")).await;
        assert_eq!((told.status, rig.record()["ai_model"].as_str()), (200, Some(sent)), "{}", told.text());
        let told = rig.send(by_with(&json!({"provider": "mock"}), CHAT, words(model, false))).await;
        assert_eq!((told.status, rig.record()["ai_model"].as_str()), (200, Some(sent)));
    }
    let models: Vec<_> = settled(&provider, 4).await.into_iter().map(|entry| entry.model).collect();
    assert_eq!(models, ["m", "m", "@cf/meta/m", "@cf/meta/m"]);
}

const FORM: &str = "multipart/form-data; boundary=edge";

fn form(model: &str, size: usize, is_first: bool) -> String {
    let model = format!("--edge\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n");
    let head = "--edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"";
    let file = format!("{head}\r\n\r\n{}\r\n", "\r\n--edg\r\n".repeat(size / 9));
    (if is_first { model + &file } else { file + &model }) + "--edge--\r\n"
}

#[tokio::test]
async fn the_model_of_a_form_may_name_it_too() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    saved(&rig);
    let path = "/v1/audio/transcriptions";
    let mut seen = 0;
    for (model, sent) in [("@mine/whisper-1", "whisper-1"), ("@cf/whisper", "@cf/whisper")] {
        for (size, is_first) in [(900, true), (900, false), (900_000, true)] {
            for named in [None, Some("@mine")] {
                if named.is_none() && model == sent {
                    continue;
                }
                for declared in [true, false] {
                    let (asked, expected) = (form(model, size, is_first), form(sent, size, is_first));
                    let ask = Ask::new("POST", path).header("content-type", FORM);
                    let ask = if let Some(name) = named { ask.header("x-gateway-provider", name) } else { ask };
                    let told = rig.send(ask.with(arriving(&asked, declared))).await.json();
                    let place = format!("{model} {size} {is_first} {named:?} {declared}");
                    assert_eq!(
                        (&told["body_bytes"], &told["body_sha"]),
                        (&json!(expected.len()), &json!(sha256(&expected))),
                        "{place}"
                    );
                    assert_eq!(rig.record()["ai_model"], *sent, "{place}");
                    seen += 1;
                }
            }
        }
    }
    assert_eq!(settled(&provider, seen).await.len(), 18);
    let ask = Ask::new("POST", path).header("content-type", FORM);
    let told = rig.send(ask.body(form("whisper-1", 900, true))).await;
    assert_eq!((told.status, told.code().as_str()), (400, "provider_needed"));
}

/// A body that comes in pieces.
fn arriving(text: &str, declared: bool) -> Body {
    let (feeder, reading) = feed_channel(|| ());
    for piece in text.as_bytes().chunks(7_001) {
        feeder.push(Bytes::copy_from_slice(piece));
    }
    feeder.finish(BodyEnd::Complete);
    Body::Streamed(reading, declared.then_some(text.len() as u64))
}

#[tokio::test]
async fn a_set_model_may_name_it_too() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    saved(&rig);
    let config = json!({"override_params": {"model": "@mine/mock?chunks=2"}});
    let told = rig.send(by_with(&config, CHAT, words("m", false))).await;
    assert_eq!((told.status, settled(&provider, 1).await[0].model.as_str()), (200, "mock?chunks=2"));
}

#[tokio::test]
async fn a_passthrough_target_takes_the_provider_of_the_request() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    saved(&rig);
    let alone = json!({"passthrough": true});
    let among =
        json!({"strategy": {"mode": "fallback"}, "targets": [{"passthrough": true, "override_params": {"seed": 1}}]});
    for config in [alone, among] {
        let ask = |model: &str| by_with(&config, CHAT, words(model, false));
        assert_eq!(rig.send(ask("@mine/mock")).await.status, 200);
        assert_eq!(rig.send(ask("mock").header("x-gateway-provider", "@mine")).await.status, 200);
        for unresolved in [ask("mock"), ask("mock").header("x-gateway-provider", "mock")] {
            let told = rig.send(unresolved).await;
            assert_eq!((told.status, told.code().as_str()), (400, "provider_unresolved"));
            assert!(told.text().contains("@slug/model"));
        }
    }
    settled(&provider, 4).await;
}

#[tokio::test]
async fn what_a_caller_sends_for_one_provider_goes_to_nobody_else_whom_a_config_names() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    saved(&rig);
    let keyed = |key: &str| json!({"provider": "mock", "api_key": key});
    let config = json!({"strategy": {"mode": "fallback", "on_status_codes": [404]},
        "targets": [{"provider": "mock", "override_params": {"model": "mock?status=500"}}, keyed("sk-2")]});
    let told = rig.send(by_with(&config, CHAT, words("m", false)).header("authorization", "Bearer sk-caller")).await;
    assert_eq!((told.status, way(&told)[0]), (200, "config.targets[1]"));
    let sent: Vec<_> =
        settled(&provider, 2).await.iter().map(|entry| entry.header("authorization").map(ToOwned::to_owned)).collect();
    assert_eq!(sent.len(), 2);
    assert!(!json!(sent).to_string().contains("sk-caller"), "{sent:?}");
    let single = rig
        .send(
            by_with(&json!({"provider": "mock", "retry": {"attempts": 1}}), CHAT, words("m", false))
                .header("authorization", "Bearer sk-caller"),
        )
        .await;
    assert_eq!(single.status, 200);
    assert!(settled(&provider, 3).await[2].header("authorization").is_some());
}

#[tokio::test]
async fn more_targets_than_allowed_are_refused_when_they_are_asked_for() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.max_root_targets = 2);
    let config = |count| json!({"strategy": {"mode": "fallback"}, "targets": vec![json!({"provider": "mock"}); count]});
    rig.apply(&json!({"epoch": "1", "configs": [{"slug": "pc-many", "config": config(3)}]}));
    assert_eq!(rig.send(by_with(&config(2), CHAT, words("m", false))).await.status, 200);
    let many = by_with(&config(3), CHAT, words("m", false));
    for ask in [many, plain(CHAT, "m").header("x-gateway-config", "pc-many")] {
        let told = rig.send(ask).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_config"));
        let expected = json!(["path: targets, message: must hold at most 2 targets, not 3"]);
        assert_eq!(told.json()["errors"], expected);
    }
}

#[tokio::test]
async fn a_conditional_root_and_what_is_nested_have_limits_of_their_own() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| {
        (settings.max_root_targets, settings.max_conditional_targets, settings.max_nested_targets) = (1, 3, 2);
    });
    let targets = |count| vec![json!({"provider": "mock", "name": "t"}); count];
    let conditional = |count| json!({"strategy": {"mode": "conditional", "conditions": [], "default": "t"}, "targets": targets(count)});
    let nested = |count| json!({"targets": [{"strategy": {"mode": "fallback"}, "targets": targets(count)}]});
    for (config, refused) in [
        (conditional(3), None),
        (conditional(4), Some("path: targets, message: must hold at most 3 targets, not 4")),
        (nested(2), None),
        (nested(3), Some("path: targets[0], message: must hold at most 2 targets below it, not 3")),
    ] {
        let told = rig.send(by_with(&config, CHAT, words("m", false))).await;
        match refused {
            None => assert_eq!(told.status, 200, "{}", told.text()),
            Some(message) => assert_eq!((told.status, &told.json()["errors"]), (400, &json!([message]))),
        }
    }
}
