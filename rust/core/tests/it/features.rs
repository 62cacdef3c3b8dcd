//! Every feature of a config acts on every route, whole and streamed, saved or sent along in either spelling.

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, Told,
    scripted::{Scripted, request, whole},
    settled, target, touchy, way,
};
use penstock_core::endpoints::realtime::{self, UpgradeOutcome};
use penstock_mock::{Entry, Server};
use serde_json::{Map, Value, json};

/// Paths of their own, and such as are passed on; whether they may stream.
const ROUTES: &[(&str, bool)] = &[
    (CHAT, true),
    (MESSAGES, true),
    ("/v1/responses", true),
    ("/v1/completions", true),
    ("/v1/embeddings", false),
    ("/v1/rerank", false),
    ("/v1/proxy/chat/completions", true),
    ("/v1/some/inference", true),
];

/// Methods and paths whose requests or answers are no JSON, or where the method is not POST.
const OTHERS: &[(&str, &str, Content)] = &[
    ("GET", "/v1/files/file-1", Content::Nothing),
    ("GET", "/v1/files/file-1/content", Content::Nothing),
    ("DELETE", "/v1/files/file-1", Content::Nothing),
    ("GET", "/v1/models", Content::Nothing),
    ("HEAD", "/v1/some/thing", Content::Nothing),
    ("POST", "/v1/files", Content::Form),
    ("POST", "/v1/audio/transcriptions", Content::Form),
    ("POST", "/v1/images/edits", Content::Form),
    ("POST", "/v1/audio/speech", Content::Json),
    ("PUT", "/v1/some/thing", Content::Json),
    ("GET", "/v1/proxy/files/file-1", Content::Nothing),
    ("DELETE", "/v1/proxy/files/file-1", Content::Nothing),
    ("POST", "/v1/proxy/audio/transcriptions", Content::Form),
    ("PATCH", "/v1/proxy/some/thing", Content::Json),
];

/// What a request carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Nothing,
    Json,
    Form,
}

const FORM: &str = "--edge\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n\
    --edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\x00RIFF\r\n--edge--\r\n";
const SPEECH: &[u8] = b"\0ID3 a pretend voice \x7f\r\n\r\n";

impl Content {
    fn bytes(self) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::Json => body(false).to_string(),
            Self::Form => FORM.to_owned(),
        }
    }

    fn on(self, ask: Ask) -> Ask {
        match self {
            Self::Nothing => ask,
            Self::Json => ask.header("content-type", "application/json").body(self.bytes()),
            Self::Form => ask.header("content-type", "multipart/form-data; boundary=edge").body(self.bytes()),
        }
    }
}

/// How a config comes along.
#[derive(Debug, Clone, Copy)]
enum Form {
    Inline,
    InCamelCase,
    Saved,
}

/// A config, how many requests of a kind are sent with it, and how many of them reach the provider.
struct Case {
    name: &'static str,
    config: Value,
    asks: usize,
    reached: usize,
    /// Of the last.
    holds: fn(&Told, &[Entry]) -> bool,
}

fn case(
    name: &'static str,
    config: Value,
    (asks, reached): (usize, usize),
    holds: fn(&Told, &[Entry]) -> bool,
) -> Case {
    Case { name, config, asks, reached, holds }
}

impl Case {
    /// How often who fails is asked.
    fn reached_failing(&self) -> usize {
        match self.name {
            "fallback" | "cb_config" => 1,
            "retry" => 3,
            _ => 0,
        }
    }
}

fn two(strategy: &Value, targets: &[Value; 2]) -> Value {
    json!({"strategy": strategy, "targets": targets})
}

fn second(told: &Told, _: &[Entry]) -> bool {
    told.status == 200 && way(told)[0] == "config.targets[1]"
}

/// How one of several targets is chosen.
fn strategies() -> Vec<Case> {
    let (bad, well, silent) = (target("status=503"), target("chunks=1"), target("fault=silence"));
    let never = |target: &Value| json!({"provider": "mock", "weight": 0, "override_params": target["override_params"]});
    let named = |name: &str| json!({"provider": "mock", "name": name});
    let listed = json!({"mode": "fallback", "on_status_codes": [429]});
    let hedged = json!({"mode": "fallback", "hedge": {"after_ms": 20}});
    let guarded = json!({"mode": "fallback", "cb_config": touchy()});
    let shared = json!({"mode": "loadbalance"});
    let stuck = json!({"mode": "loadbalance", "sticky": {"hash_fields": ["params.max_tokens"], "ttl": 60}});
    let condition = json!({"query": {"$and": [{"params.max_tokens": {"$gte": 5}}], "metadata.plan": "paid",
        "url.pathname": {"$regex": "^/v1/"}}, "then": "b"});
    let asked = json!({"mode": "conditional", "conditions": [condition], "default": "a"});
    vec![
        case("single", two(&json!({"mode": "single"}), &[well.clone(), bad.clone()]), (1, 1), |told, _| {
            told.status == 200 && way(told)[0] == "config.targets[0]"
        }),
        case("fallback", two(&listed, &[target("status=429"), well.clone()]), (1, 2), second),
        case("hedge", two(&hedged, &[silent, well.clone()]), (1, 2), second),
        case("cb_config", two(&guarded, &[bad.clone(), well.clone()]), (2, 3), second),
        case("loadbalance", two(&shared, &[never(&bad), well.clone()]), (1, 1), second),
        case("sticky", two(&stuck, &[never(&bad), well]), (1, 1), second),
        case("conditional", two(&asked, &[named("a"), named("b")]), (1, 1), second),
    ]
}

/// What happens at a target. `other`: a further provider's address.
fn attempts(other: &str) -> Vec<Case> {
    let (mut persistent, mut impatient) = (target("status=503"), target("fault=silence"));
    persistent["retry"] = json!({"attempts": 2, "on_status_codes": [503], "use_retry_after_headers": true});
    impatient["request_timeout"] = json!(40);
    let mut held = two(&json!({"mode": "fallback"}), &[target("chunks=9&fault=cut&after=1"), target("chunks=1")]);
    held["recovery"] = json!("hold");
    let parameters = json!({"provider": "mock", "default_params": {"model": "default", "user": "ann", "seed": 1},
        "override_params": {"seed": 2}, "drop_params": ["max_tokens"]});
    let forwarding = json!({"provider": "mock", "forward_headers": ["x-team"]});
    let kept = json!({"provider": "mock", "cache": {"mode": "simple", "max_age": 60}});
    vec![
        case("retry", persistent, (1, 3), |told, _| {
            told.status == 503 && way(told)[1] == "-1" && told.header("x-should-retry") == Some("false")
        }),
        case("request_timeout", impatient, (1, 1), |told, _| told.status == 408),
        case("recovery", held, (1, 2), second),
        case("parameters", parameters, (1, 1), |told, entries| {
            let sizes = [changed(false), changed(true)];
            told.status == 200 && entries[0].model == "mock" && sizes.contains(&entries[0].body_bytes)
        }),
        case("forward_headers", forwarding, (1, 1), |_, entries| entries[0].header("x-team") == Some("blue")),
        case("custom_host", json!({"provider": "mock", "custom_host": other}), (1, 0), |told, _| told.status == 200),
        case("passthrough", json!({"passthrough": true}), (1, 1), |told, entries| {
            told.status == 200 && entries[0].header("authorization") == Some("Bearer sk-mine")
        }),
        case("cache", kept, (2, 1), |told, _| way(told)[2] == "HIT"),
    ]
}

/// The same with its keys as JavaScript spells them; what a query asks about keeps its name.
fn in_camel_case(config: &Value) -> Value {
    let camel = |key: &str| {
        if key.contains('.') {
            return key.to_owned();
        }
        let mut parts = key.split('_');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |name, part| name + &part[..1].to_uppercase() + &part[1..])
    };
    match config {
        Value::Object(object) => {
            object.iter().map(|(key, value)| (camel(key), in_camel_case(value))).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(in_camel_case).collect(),
        other => other.clone(),
    }
}

/// What all routes can be asked with.
fn body(stream: bool) -> Value {
    let mut body = json!({"model": "mock", "max_tokens": 9, "input": "hi", "prompt": "hi",
        "messages": [{"role": "user", "content": "hi"}]});
    if stream {
        // Whoever asks for usage gets no other body than he sent.
        (body["stream"], body["stream_options"]) = (json!(true), json!({"include_usage": true}));
    }
    body
}

/// How many bytes it has with the parameters that a case sets and drops.
fn changed(stream: bool) -> u64 {
    let mut body = body(stream);
    body.as_object_mut().unwrap().remove("max_tokens");
    (body["user"], body["seed"]) = (json!("ann"), json!(2));
    body.to_string().len() as u64
}

fn asked(method: &str, path: &str, form: Form, config: &Value) -> Ask {
    let config = match form {
        Form::Inline => config.to_string(),
        Form::InCamelCase => in_camel_case(config).to_string(),
        Form::Saved => "pc-1".to_owned(),
    };
    let ask = Ask::new(method, path).header("x-gateway-config", &config);
    let ask = ask.header("x-gateway-metadata", r#"{"plan":"paid"}"#).header("x-team", "blue");
    ask.header("x-gateway-explain", "true")
}

/// Where the answer says that it came from, if from anywhere.
fn explained(told: &Told) -> Option<String> {
    let said: Value = serde_json::from_str(told.header("x-gateway-explanation")?).ok()?;
    said["target"]["target"].as_str().map(ToOwned::to_owned)
}

fn ask(path: &str, stream: bool, form: Form, config: &Value) -> Ask {
    asked("POST", path, form, config).header("content-type", "application/json").body(body(stream).to_string())
}

fn rig(provider: &Server, config: &Value) -> Rig {
    let rig = Rig::with(&provider.url(), |settings| {
        (settings.retry_backoff_ms, settings.trusted_custom_hosts) = (1, vec!["127.0.0.1".into()]);
    });
    rig.apply(&json!({"epoch": "1", "providers": [{"slug": "mine", "provider": "mock", "api_key": "sk-mine"}],
        "configs": [{"slug": "pc-1", "config": config}]}));
    rig
}

async fn check(case: &Case, (path, stream): (&str, bool), form: Form) {
    let provider = Server::start().await;
    let rig = rig(&provider, &case.config);
    let mut last = None;
    for _ in 0..case.asks {
        let mut ask = ask(path, stream, form, &case.config);
        if case.name == "passthrough" {
            ask = ask.header("x-gateway-provider", "@mine");
        }
        last = Some(rig.send(ask).await);
    }
    let (told, entries) = (last.unwrap(), settled(&provider, case.reached).await);
    let place = format!("{} on {path} {form:?}, streamed: {stream}", case.name);
    assert!((case.holds)(&told, &entries), "{place}: {} {:?} {}", told.status, way(&told), told.text());
    assert_eq!(explained(&told).as_deref(), Some(way(&told)[0]), "{place}");
}

/// Providers that are not well: one fails, one says nothing.
struct Ill {
    failing: Scripted,
    silent: Scripted,
}

impl Ill {
    async fn start() -> Self {
        Self {
            failing: Scripted::closing(whole("503 Service Unavailable", "connection: close\r\n", "{}")).await,
            silent: Scripted::start(|mut stream, _| async move { while request(&mut stream).await.is_some() {} }).await,
        }
    }

    /// What acts on a request whatever it carries. In the place of model names, which most of these do not have, targets differ by their hosts.
    fn cases(&self) -> Vec<Case> {
        let at = |provider: &Scripted| json!({"provider": "mock", "custom_host": format!("{}/v1", provider.url())});
        let (bad, silent, well) = (at(&self.failing), at(&self.silent), json!({"provider": "mock"}));
        let with = |target: &Value, key: &str, value: Value| {
            let mut target = target.clone();
            target[key] = value;
            target
        };
        let never = with(&bad, "weight", json!(0));
        let [one, other] = ["a", "b"].map(|name| with(&well, "name", json!(name)));
        let retry = json!({"attempts": 2, "on_status_codes": [503], "use_retry_after_headers": true});
        let listed = json!({"mode": "fallback", "on_status_codes": [503]});
        let hedged = json!({"mode": "fallback", "hedge": {"after_ms": 20}});
        let guarded = json!({"mode": "fallback", "cb_config": touchy()});
        let stuck = json!({"mode": "loadbalance", "sticky": {"hash_fields": ["metadata.plan"], "ttl": 60}});
        let query = json!({"$and": [{"url.pathname": {"$regex": "^/v1/"}}], "metadata.plan": "paid"});
        let routed = json!({"mode": "conditional", "conditions": [{"query": query, "then": "b"}], "default": "a"});
        let first = |told: &Told, _: &[Entry]| told.status == 200 && way(told)[0] == "config.targets[0]";
        vec![
            case("single", two(&json!({"mode": "single"}), &[well.clone(), bad.clone()]), (1, 0), first),
            case("fallback", two(&listed, &[bad.clone(), well.clone()]), (1, 1), second),
            case("hedge", two(&hedged, &[silent.clone(), well.clone()]), (1, 0), second),
            case("cb_config", two(&guarded, &[bad.clone(), well.clone()]), (2, 1), second),
            case("loadbalance", two(&json!({"mode": "loadbalance"}), &[never.clone(), well.clone()]), (1, 0), second),
            case("sticky", two(&stuck, &[never, well.clone()]), (1, 0), second),
            case("conditional", two(&routed, &[one, other]), (1, 0), second),
            case("retry", with(&bad, "retry", retry), (1, 3), |told, entries| {
                let spent = way(told)[1] == "-1" && told.header("x-should-retry") == Some("false");
                told.status == 503 && spent && entries.is_empty()
            }),
            case("request_timeout", with(&silent, "request_timeout", json!(40)), (1, 0), |told, _| told.status == 408),
            case("forward_headers", with(&well, "forward_headers", json!(["x-team"])), (1, 0), |_, entries| {
                entries[0].header("x-team") == Some("blue")
            }),
            case("passthrough", json!({"passthrough": true}), (1, 0), |told, entries| {
                told.status == 200 && entries[0].header("authorization") == Some("Bearer sk-mine")
            }),
        ]
    }
}

#[tokio::test]
async fn every_feature_acts_whatever_a_request_carries_and_whatever_its_method_is() {
    for (method, path, content) in OTHERS {
        for form in [Form::Inline, Form::InCamelCase, Form::Saved] {
            for at in 0..Ill::start().await.cases().len() {
                let (provider, ill) = (Server::start().await, Ill::start().await);
                let case = ill.cases().remove(at);
                let rig = rig(&provider, &case.config);
                let mut told = None;
                for _ in 0..case.asks {
                    let ask = content.on(asked(method, path, form, &case.config));
                    let names = case.name == "passthrough";
                    told = Some(rig.send(if names { ask.header("x-gateway-provider", "@mine") } else { ask }).await);
                }
                let told = told.unwrap();
                let entries = settled(&provider, if told.status == 200 { case.asks } else { 0 }).await;
                let place = format!("{} on {method} {path} {form:?}", case.name);
                assert!((case.holds)(&told, &entries), "{place}: {} {:?} {}", told.status, way(&told), told.text());
                assert_eq!(ill.failing.connections(), case.reached, "{place}");
                assert_eq!(explained(&told).as_deref(), Some(way(&told)[0]), "{place}");
                for entry in entries {
                    let as_it_came = path.replace("/proxy", "");
                    assert_eq!((&*entry.method, &*entry.path), (*method, &*as_it_came), "{place}");
                    assert_eq!(entry.body_bytes, content.bytes().len() as u64, "{place}");
                }
            }
        }
    }
}

#[tokio::test]
async fn parameters_change_json_alone_and_what_is_kept_are_answers_to_it() {
    for (method, path, content) in OTHERS {
        let provider = Server::start().await;
        let config = json!({"provider": "mock", "cache": "simple", "override_params": {"voice": "alloy"},
            "default_params": {"speed": 2}, "drop_params": ["max_tokens", "file"]});
        let rig = rig(&provider, &config);
        let mut changed = body(false);
        changed.as_object_mut().unwrap().remove("max_tokens");
        (changed["speed"], changed["voice"]) = (json!(2), json!("alloy"));
        let told = [(); 2].map(|()| content.on(asked(method, path, Form::Inline, &config)));
        let [first, second] = told;
        let (first, second) = (rig.send(first).await, rig.send(second).await);
        let is_kept = *method == "POST" && *content == Content::Json;
        assert_eq!(
            [way(&first)[2], way(&second)[2]],
            if is_kept { ["MISS", "HIT"] } else { ["DISABLED"; 2] },
            "{path}"
        );
        let seen = settled(&provider, if is_kept { 1 } else { 2 }).await;
        let sent = if *content == Content::Json { changed.to_string() } else { content.bytes() };
        assert!(seen.iter().all(|entry| entry.body_bytes == sent.len() as u64), "{path}: {seen:#?}");
        if *path == "/v1/audio/speech" {
            let kinds = [&first, &second].map(|told| told.header("content-type"));
            assert_eq!((kinds, &*first.body, &*second.body), ([Some("audio/mpeg"); 2], SPEECH, SPEECH));
        }
    }
}

#[tokio::test]
async fn every_feature_acts_on_every_route_in_every_form() {
    let other = Server::start().await;
    for case in strategies().into_iter().chain(attempts(&format!("{}/v1", other.url()))) {
        for (path, streams) in ROUTES {
            for stream in [false, true].into_iter().filter(|stream| *streams || !stream) {
                for form in [Form::Inline, Form::InCamelCase, Form::Saved] {
                    check(&case, (path, stream), form).await;
                }
            }
        }
    }
}

/// A session opened by a config: the option that agreed, or the status of a refusal, and what the provider saw.
async fn opened(rig: &Rig, ask: Ask) -> (u16, String) {
    let head = ask.request().head;
    match Box::pin(crate::harness::in_time(realtime::handle_upgrade(&rig.gateway, head))).await {
        UpgradeOutcome::Accepted(session) => {
            drop(session);
            let record = rig.record();
            (101, record["last_used_option_index"].as_str().unwrap_or_default().to_owned())
        }
        UpgradeOutcome::Rejected(answer) => {
            let option = answer.head.headers.get_str("x-gateway-last-used-option-index").unwrap_or_default();
            (answer.head.status, option.to_owned())
        }
    }
}

#[tokio::test]
async fn every_feature_acts_on_a_websocket_too() {
    for form in [Form::Inline, Form::InCamelCase, Form::Saved] {
        for path in ["/v1/realtime?model=m", "/v1/proxy/realtime?model=m"] {
            for at in 0..Ill::start().await.cases().len() {
                let (provider, ill) = (Server::start().await, Ill::start().await);
                let case = ill.cases().remove(at);
                let rig = rig(&provider, &case.config);
                let mut told = None;
                for _ in 0..case.asks {
                    let ask = asked("GET", path, form, &case.config);
                    let names = case.name == "passthrough";
                    let ask = if names { ask.header("x-gateway-provider", "@mine") } else { ask };
                    told = Some(opened(&rig, ask).await);
                }
                let expected = match case.name {
                    "single" => (101, "config.targets[0]"),
                    "retry" => (503, "config"),
                    "request_timeout" => (408, "config"),
                    "forward_headers" | "passthrough" => (101, "config"),
                    _ => (101, "config.targets[1]"),
                };
                let place = format!("{} on {path} {form:?}", case.name);
                let (status, option) = told.unwrap();
                assert_eq!((status, option.as_str()), expected, "{place}");
                let entries = settled(&provider, if status == 101 { case.asks } else { 0 }).await;
                assert_eq!(ill.failing.connections(), case.reached_failing(), "{place}");
                match case.name {
                    "forward_headers" => assert_eq!(entries[0].header("x-team"), Some("blue"), "{place}"),
                    "passthrough" => assert_eq!(entries[0].header("authorization"), Some("Bearer sk-mine"), "{place}"),
                    _ => (),
                }
            }
        }
    }
}
