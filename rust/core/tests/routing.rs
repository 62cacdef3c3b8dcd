//! Random configs of any nesting go the way that a simple model of them says, and end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod harness;

use fastrand::Rng;
use harness::{CHAT, Rig, Told, by, by_with, target, way};
use penstock_mock::Server;
use serde_json::{Map, Value, json};

const STATUSES: [u16; 5] = [200, 400, 429, 500, 503];

/// A random node: a target, or a group of them. Of the members of a shared group one alone has a weight.
fn node(random: &mut Rng, depth: u32, id: &mut u32) -> Value {
    if depth == 0 || random.u8(0..4) == 0 {
        *id += 1;
        let status = STATUSES[random.usize(0..STATUSES.len())];
        let mut leaf = target(&format!("status={status}&chunks={id}"));
        features(random, &mut leaf);
        return leaf;
    }
    let count = random.usize(1..4);
    let mut targets: Vec<_> = (0..count).map(|_| node(random, depth - 1, id)).collect();
    let chosen = random.usize(0..count);
    for (place, target) in targets.iter_mut().enumerate() {
        target["name"] = json!(format!("t{place}"));
        target["weight"] = json!(u8::from(place == chosen));
    }
    let strategy = match random.u8(0..5) {
        0 => json!({"mode": "single"}),
        1 => json!({"mode": "loadbalance"}),
        2 => json!({"mode": "conditional", "default": format!("t{chosen}"),
            "conditions": [{"query": {"metadata.plan": "paid"}, "then": "t0"}]}),
        3 => json!({"mode": "fallback", "on_status_codes": [429]}),
        _ => json!({"mode": "fallback"}),
    };
    let mut group = json!({"strategy": strategy, "targets": targets});
    features(random, &mut group);
    group
}

/// Some of what is inherited.
fn features(random: &mut Rng, node: &mut Value) {
    if random.u8(0..3) == 0 {
        node["retry"] = json!({"attempts": random.u8(0..2), "on_status_codes": [503]});
    }
    if random.u8(0..3) == 0 {
        node["recovery"] = json!(["off", "hold", "continue"][random.usize(0..3)]);
    }
    if random.u8(0..3) == 0 {
        node["default_params"] = json!({"seed": random.u32(0..100), (format!("only{}", random.u8(0..3))): 1});
    }
}

/// What the model of a walk expects.
#[derive(Debug, Default)]
struct Expected {
    /// The models that are asked for, in order.
    asked: Vec<String>,
    status: u16,
    option: String,
    retries: i32,
}

/// A config walked in the simplest way: everything inherited by copying maps.
fn walk(node: &Value, path: &str, inherited: &Map<String, Value>, expected: &mut Expected) {
    let own = bequeathed(node, inherited);
    let Some(targets) = node["targets"].as_array() else {
        return leaf(node, path, &own, expected);
    };
    for place in ways(node, targets, inherited) {
        walk(&targets[place], &format!("{path}.targets[{place}]"), &own, expected);
        let is_listed = node["strategy"].get("on_status_codes").is_none_or(|listed| {
            expected.status >= 500 || listed.as_array().unwrap().contains(&json!(expected.status))
        });
        if expected.status == 200 || !is_listed {
            break;
        }
    }
}

/// What a node hands down.
fn bequeathed(node: &Value, inherited: &Map<String, Value>) -> Map<String, Value> {
    let said = ["retry", "recovery"].into_iter().filter_map(|key| Some((key.to_owned(), node.get(key)?.clone())));
    inherited.clone().into_iter().chain(said).collect()
}

/// The members of a group that may be tried, in order.
fn ways(node: &Value, targets: &[Value], inherited: &Map<String, Value>) -> Vec<usize> {
    let strategy = &node["strategy"];
    let find = |is_it: &dyn Fn(&Value) -> bool| vec![targets.iter().position(is_it).unwrap()];
    match strategy["mode"].as_str().unwrap() {
        "single" => vec![0],
        "loadbalance" => find(&|target| target["weight"] == 1),
        // The metadata of every second request has this plan.
        "conditional" if inherited.contains_key("paid") => vec![0],
        "conditional" => find(&|target| target["name"] == strategy["default"]),
        _ => (0..targets.len()).collect(),
    }
}

/// Every target that may be tried, in order, with its retries and what becomes of its streams.
fn leaves(node: &Value, path: &str, inherited: &Map<String, Value>) -> Vec<Value> {
    let own = bequeathed(node, inherited);
    let Some(targets) = node["targets"].as_array() else {
        let retries = own.get("retry").map_or(json!(0), |retry| retry["attempts"].clone());
        return vec![json!([path, retries, own.get("recovery").cloned().unwrap_or(json!("off"))])];
    };
    let below = |place: usize| leaves(&targets[place], &format!("{path}.targets[{place}]"), &own);
    ways(node, targets, inherited).into_iter().flat_map(below).collect()
}

fn explained(told: &Told) -> Vec<Value> {
    let targets = told.json()["targets"].as_array().unwrap().clone();
    targets.iter().map(|target| json!([target["target"], target["retries"], target["recovery"]["mode"]])).collect()
}

fn leaf(node: &Value, path: &str, own: &Map<String, Value>, expected: &mut Expected) {
    let model = node["override_params"]["model"].as_str().unwrap();
    let status: u16 = model.split("status=").nth(1).unwrap()[..3].parse().unwrap();
    let attempts = own.get("retry").map_or(0, |retry| retry["attempts"].as_u64().unwrap());
    let sent = if status == 503 { attempts + 1 } else { 1 };
    expected.asked.extend((0..sent).map(|_| model.to_owned()));
    expected.status = status;
    path.clone_into(&mut expected.option);
    expected.retries = if status == 503 && attempts > 0 { -1 } else { 0 };
}

fn check(told: &Told, expected: &Expected, asked: &[String], config: &Value) {
    assert_eq!(asked, expected.asked, "{config:#}");
    let retries = expected.retries.to_string();
    assert_eq!((told.status, way(told)), (expected.status, [&*expected.option, &retries, "DISABLED"]), "{config:#}");
}

#[tokio::test]
async fn every_walk_ends_and_is_the_one_that_the_config_and_its_explanation_say() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| {
        settings.retry_backoff_ms = 1;
        settings.retry_budget_floor = 100_000;
    });
    let mut random = Rng::with_seed(20_260_101);
    let mut seen = 0;
    for round in 0..300 {
        let config = node(&mut random, round % 5, &mut 0);
        let is_paid = round % 2 == 0;
        let mut inherited = Map::new();
        let asked = json!({"path": CHAT, "body": {"model": "m"}}).to_string();
        let (mut ask, mut explain) = (by(&config), by_with(&config, "/v1/explain", asked));
        if is_paid {
            inherited.insert("paid".into(), Value::Null);
            ask = ask.header("x-gateway-metadata", r#"{"plan":"paid"}"#);
            explain = explain.header("x-gateway-metadata", r#"{"plan":"paid"}"#);
        }
        assert_eq!(explained(&rig.send(explain).await), leaves(&config, "config", &inherited), "{config:#}");
        let mut expected = Expected::default();
        walk(&config, "config", &inherited, &mut expected);
        let told = rig.send(ask).await;
        let entries = harness::settled(&provider, seen + expected.asked.len()).await;
        let asked: Vec<_> = entries[seen..].iter().map(|entry| entry.model.clone()).collect();
        seen = entries.len();
        check(&told, &expected, &asked, &config);
    }
    assert!(seen > 200, "{seen} are few");
}
