//! The sixteen faults of failoverbench's catalogue (version 0.1), its checks and its verdicts, on a clock a tenth to a twentieth as long.

use std::time::{Duration, Instant};

use crate::harness::{CHAT, Rig, by_with, chat, settled};
use Check::{Alive, AtLeast, AtMost, Complete, Exactly, Gap, Model, NoMasking, Usage, Within};
use penstock_mock::{Entry, Server};
use serde_json::{Value, json};

/// What must hold of a call: as its caller and as its provider saw it.
#[derive(Clone, Copy, Debug)]
enum Check {
    /// Attempts at the first target.
    AtLeast(usize),
    AtMost(usize),
    Exactly(usize),
    /// Milliseconds between its first two attempts.
    Gap(f64),
    /// Milliseconds in all.
    Within(u128),
    Complete,
    /// The answer names the model that gave it.
    Model,
    Usage,
    /// A healthy call is answered afterwards.
    Alive,
    /// No refused prefix hides what really happened.
    NoMasking,
}

/// What the first target does, the second, which checks decide and which are advice.
struct Scenario {
    id: &'static str,
    first: &'static str,
    second: &'static str,
    is_error_ideal: bool,
    required: &'static [Check],
    advised: &'static [Check],
}

const WELL: &str = "prefix=on";

const fn scenario(
    id: &'static str,
    first: &'static str,
    required: &'static [Check],
    advised: &'static [Check],
) -> Scenario {
    Scenario { id, first, second: WELL, is_error_ideal: false, required, advised }
}

const CATALOGUE: &[Scenario] = &[
    scenario("S01", "status=429&retry_after=0.2&times=1", &[AtMost(3)], &[AtLeast(2), Gap(180.0)]),
    scenario("S02", "status=429", &[AtMost(4)], &[]),
    scenario("S03", "status=500&times=1", &[], &[AtLeast(2)]),
    scenario("S04", "status=503", &[AtMost(6)], &[]),
    scenario("S05", "fault=reset&times=1", &[], &[]),
    scenario("S06", "fault=silence", &[Within(5_000)], &[AtMost(1)]),
    scenario("S07", "fault=slow_first&first_ms=2000", &[], &[Within(1_500)]),
    scenario("S08", "fault=cut&after=40", &[], &[]),
    scenario("S09", "fault=stall&after=20", &[Within(2_500), Alive], &[]),
    scenario("S10", "fault=malformed_chunk&after=10", &[Alive], &[Complete]),
    scenario("S11", "fault=no_done", &[Within(800)], &[Usage]),
    scenario("S12", "status=400&code=context_length_exceeded", &[Exactly(1)], &[]),
    Scenario {
        is_error_ideal: true,
        ..scenario("S13", "status=400&code=content_policy_violation", &[Exactly(1)], &[])
    },
    Scenario { second: "prefix=off", ..scenario("S14", "fault=cut&after=40", &[NoMasking], &[]) },
    scenario("S15", "status=503&times=9", &[], &[]),
    scenario("S16", "status=503", &[AtMost(6), Model], &[Usage]),
];

/// Requests of the sequence in which the first target is down, and then is not.
const SEQUENCE: usize = 10;

/// What a careful client makes of an answer.
#[derive(Debug, Default)]
struct Call {
    error: Option<String>,
    content: String,
    model: String,
    usage: bool,
    took: u128,
}

fn config(mode: &str, first: &str, second: &str) -> Value {
    let target = |name: &str, does: &str| json!({"provider": "mock", "override_params": {"model": format!("{name}?chunks=60&{does}")}});
    json!({"strategy": {"mode": "fallback"}, "retry": {"attempts": 2, "use_retry_after_headers": true}, "recovery": mode,
        "request_timeout": 500, "targets": [target("first", first), target("second", second)]})
}

async fn call(rig: &Rig, config: &Value) -> Call {
    let body = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "Why does a gateway earn trust only when its provider misbehaves?"}]});
    let began = Instant::now();
    let told = rig.send(by_with(config, CHAT, body.to_string())).await;
    let mut call = Call { took: began.elapsed().as_millis(), ..Call::default() };
    if told.status != 200 {
        call.error = Some(told.text());
        return call;
    }
    for data in told.text().lines().filter_map(|line| line.strip_prefix("data: ")) {
        // A careful client skips what it cannot read, and takes an error for one.
        let Ok(event) = serde_json::from_str::<Value>(data) else { continue };
        if event["error"].is_object() {
            call.error = Some(event["error"].to_string());
        }
        call.content += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if let Some(model) = event["model"].as_str() {
            model.clone_into(&mut call.model);
        }
        call.usage |= event["usage"].is_object();
    }
    if told.cut {
        call.error.get_or_insert_with(|| "cut".to_owned());
    }
    call
}

/// One scenario of a run, with all that its checks look at.
struct Seen<'s> {
    call: &'s Call,
    canon: &'s str,
    first: Vec<&'s Entry>,
    record: &'s Value,
    is_alive: bool,
}

impl Seen<'_> {
    fn is_complete(&self) -> bool {
        self.call.error.is_none() && self.call.content == self.canon
    }

    fn holds(&self, check: Check) -> bool {
        match check {
            AtLeast(count) => self.first.len() >= count,
            AtMost(count) => self.first.len() <= count,
            Exactly(count) => self.first.len() == count,
            Gap(least) => self.first.len() > 1 && self.first[1].started_ms - self.first[0].started_ms >= least,
            Within(most) => self.call.took <= most,
            Complete => self.is_complete(),
            Model => self.call.model == "second",
            Usage => self.call.usage,
            Alive => self.is_alive,
            NoMasking => {
                let refused = json!(400);
                let steps = self.record["decisions"].as_array().unwrap();
                self.call.error.is_none() || !steps.iter().any(|step| step["status"] == refused)
            }
        }
    }

    /// As the catalogue gives it.
    fn verdict(&self, scenario: &Scenario) -> &'static str {
        let is_truncated = self.call.error.is_none() && self.call.content != self.canon;
        let fails = |checks: &[Check]| checks.iter().any(|check| !self.holds(*check));
        if (is_truncated && !scenario.is_error_ideal) || fails(scenario.required) {
            return "fail";
        }
        match (scenario.is_error_ideal, self.call.error.is_some()) {
            (true, false) => "partial",
            (false, true) => "safe",
            _ if fails(scenario.advised) => "partial",
            _ => "pass",
        }
    }
}

/// The whole sequence: the worst of its calls, and whether the first target serves again.
async fn sequence(rig: &Rig, config: &Value, canon: &str) -> Call {
    let mut last = Call::default();
    for turn in 0..SEQUENCE {
        last = call(rig, config).await;
        let expected = if turn < 3 { "second" } else { "first" };
        if last.error.is_some() || last.content != canon || last.model != expected {
            last.error.get_or_insert_with(|| format!("the call {turn} was answered by {}", last.model));
            break;
        }
    }
    last
}

async fn run(mode: &str) -> Vec<(&'static str, &'static str)> {
    let mut verdicts = Vec::new();
    for scenario in CATALOGUE {
        let provider = Server::start().await;
        let rig = Rig::with(&provider.url(), |settings| {
            (settings.idle_timeout_ms, settings.retry_backoff_ms) = (500, 40);
        });
        let canon = rig.send(chat("well?chunks=60")).await.json()["choices"][0]["message"]["content"].clone();
        let canon = canon.as_str().unwrap();
        rig.records();
        let config = config(mode, scenario.first, scenario.second);
        let call = if scenario.id == "S15" { sequence(&rig, &config, canon).await } else { call(&rig, &config).await };
        let record = rig.records().pop().unwrap();
        let is_alive = rig.send(chat("well")).await.status == 200;
        let count = provider.ledger_entries().len();
        let ledger = settled(&provider, count).await;
        let first = ledger.iter().filter(|entry| entry.model.starts_with("first")).collect();
        let seen = Seen { call: &call, canon, first, record: &record, is_alive };
        let verdict = seen.verdict(scenario);
        if verdict != "pass" {
            eprintln!("{mode} {} {verdict}: {call:?}", scenario.id);
        }
        verdicts.push((scenario.id, verdict));
    }
    verdicts
}

/// All pass but for these.
async fn assert_run(mode: &str, safe: &[&str]) {
    let expected: Vec<_> =
        CATALOGUE.iter().map(|one| (one.id, if safe.contains(&one.id) { "safe" } else { "pass" })).collect();
    let verdicts = tokio::time::timeout(Duration::from_mins(1), run(mode)).await.expect("no scenario hangs");
    assert_eq!(verdicts, expected);
}

#[tokio::test]
async fn without_recovery_thirteen_pass_and_cut_streams_end_safely() {
    assert_run("off", &["S08", "S09", "S14"]).await;
}

#[tokio::test]
async fn all_sixteen_pass_where_streams_are_held() {
    assert_run("hold", &[]).await;
}

#[tokio::test]
async fn fifteen_pass_where_streams_are_continued_and_who_cannot_is_not_asked_to() {
    assert_run("continue", &["S14"]).await;
}
