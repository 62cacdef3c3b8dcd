//! The sixteen fault scenarios of failoverbench's catalogue (version 0.1), with its checks and verdicts. Times are a
//! tenth to a twentieth of the original.

use std::time::{Duration, Instant};

use crate::harness::{CHAT_PATH, TestGateway, chat_request, post_with_config, wait_for_ledger_entries};
use Check::{
    Alive, Complete, ExactAttempts, MaxAttempts, MaxDurationMs, MinAttempts, MinRetryGapMs, Model, NoMasking, Usage,
};
use penstock_mock::{Entry, Server};
use serde_json::{Value, json};

/// Condition on a call, as observed by its client and its provider.
#[derive(Clone, Copy, Debug)]
enum Check {
    /// Minimum number of attempts at the first target.
    MinAttempts(usize),
    MaxAttempts(usize),
    ExactAttempts(usize),
    /// Minimum milliseconds between the first two attempts at the first target.
    MinRetryGapMs(f64),
    /// Maximum total duration in milliseconds.
    MaxDurationMs(u128),
    Complete,
    /// The response names the model that produced it.
    Model,
    Usage,
    /// A healthy call succeeds afterwards.
    Alive,
    /// A rejected prefill does not hide the original failure.
    NoMasking,
}

/// Behaviour of both targets, the checks that decide the verdict, and the advisory checks.
struct Scenario {
    id: &'static str,
    first_behaviour: &'static str,
    second_behaviour: &'static str,
    is_error_ideal: bool,
    required: &'static [Check],
    advised: &'static [Check],
}

const HEALTHY_BEHAVIOUR: &str = "prefix=on";

const fn scenario(
    id: &'static str,
    first: &'static str,
    required: &'static [Check],
    advised: &'static [Check],
) -> Scenario {
    Scenario {
        id,
        first_behaviour: first,
        second_behaviour: HEALTHY_BEHAVIOUR,
        is_error_ideal: false,
        required,
        advised,
    }
}

const CATALOGUE: &[Scenario] = &[
    scenario("S01", "status=429&retry_after=0.2&times=1", &[MaxAttempts(3)], &[MinAttempts(2), MinRetryGapMs(180.0)]),
    scenario("S02", "status=429", &[MaxAttempts(4)], &[]),
    scenario("S03", "status=500&times=1", &[], &[MinAttempts(2)]),
    scenario("S04", "status=503", &[MaxAttempts(6)], &[]),
    scenario("S05", "fault=reset&times=1", &[], &[]),
    scenario("S06", "fault=silence", &[MaxDurationMs(5_000)], &[MaxAttempts(1)]),
    scenario("S07", "fault=slow_first&first_ms=2000", &[], &[MaxDurationMs(1_500)]),
    scenario("S08", "fault=cut&after=40", &[], &[]),
    scenario("S09", "fault=stall&after=20", &[MaxDurationMs(2_500), Alive], &[]),
    scenario("S10", "fault=malformed_chunk&after=10", &[Alive], &[Complete]),
    scenario("S11", "fault=no_done", &[MaxDurationMs(800)], &[Usage]),
    scenario("S12", "status=400&code=context_length_exceeded", &[ExactAttempts(1)], &[]),
    Scenario {
        is_error_ideal: true,
        ..scenario("S13", "status=400&code=content_policy_violation", &[ExactAttempts(1)], &[])
    },
    Scenario { second_behaviour: "prefix=off", ..scenario("S14", "fault=cut&after=40", &[NoMasking], &[]) },
    scenario("S15", "status=503&times=9", &[], &[]),
    scenario("S16", "status=503", &[MaxAttempts(6), Model], &[Usage]),
];

/// Number of calls in the scenario in which the first target fails and then recovers.
const SEQUENCE_CALLS: usize = 10;

/// Result of a call, as a careful client reads the response.
#[derive(Debug, Default)]
struct CallResult {
    error: Option<String>,
    content: String,
    model: String,
    has_usage: bool,
    duration_ms: u128,
}

fn fallback_config(mode: &str, first: &str, second: &str) -> Value {
    let target = |name: &str, does: &str| json!({"provider": "mock", "override_params": {"model": format!("{name}?chunks=60&{does}")}});
    json!({"strategy": {"mode": "fallback"}, "retry": {"attempts": 2, "use_retry_after_headers": true}, "recovery": mode,
        "request_timeout": 500, "targets": [target("first", first), target("second", second)]})
}

async fn send_call(gateway: &TestGateway, config: &Value) -> CallResult {
    let body = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "Why does a gateway earn trust only when its provider misbehaves?"}]});
    let began = Instant::now();
    let response = gateway.send(post_with_config(config, CHAT_PATH, body.to_string())).await;
    let mut call = CallResult { duration_ms: began.elapsed().as_millis(), ..CallResult::default() };
    if response.status != 200 {
        call.error = Some(response.text());
        return call;
    }
    for data in response.text().lines().filter_map(|line| line.strip_prefix("data: ")) {
        // A careful client skips events that it cannot parse and treats error events as errors.
        let Ok(event) = serde_json::from_str::<Value>(data) else { continue };
        if event["error"].is_object() {
            call.error = Some(event["error"].to_string());
        }
        call.content += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if let Some(model) = event["model"].as_str() {
            model.clone_into(&mut call.model);
        }
        call.has_usage |= event["usage"].is_object();
    }
    if response.is_truncated {
        call.error.get_or_insert_with(|| "cut".to_owned());
    }
    call
}

/// Observations of one scenario, which its checks evaluate.
struct ScenarioResult<'s> {
    call: &'s CallResult,
    expected_content: &'s str,
    first_target_attempts: Vec<&'s Entry>,
    record: &'s Value,
    is_alive: bool,
}

impl ScenarioResult<'_> {
    fn is_complete(&self) -> bool {
        self.call.error.is_none() && self.call.content == self.expected_content
    }

    fn satisfies(&self, check: Check) -> bool {
        match check {
            MinAttempts(count) => self.first_target_attempts.len() >= count,
            MaxAttempts(count) => self.first_target_attempts.len() <= count,
            ExactAttempts(count) => self.first_target_attempts.len() == count,
            MinRetryGapMs(least) => {
                self.first_target_attempts.len() > 1
                    && self.first_target_attempts[1].started_ms - self.first_target_attempts[0].started_ms >= least
            }
            MaxDurationMs(max_ms) => self.call.duration_ms <= max_ms,
            Complete => self.is_complete(),
            Model => self.call.model == "second",
            Usage => self.call.has_usage,
            Alive => self.is_alive,
            NoMasking => {
                let refused = json!(400);
                let steps = self.record["decisions"].as_array().unwrap();
                self.call.error.is_none() || !steps.iter().any(|step| step["status"] == refused)
            }
        }
    }

    /// Returns the verdict as the catalogue defines it.
    fn verdict(&self, scenario: &Scenario) -> &'static str {
        let is_truncated = self.call.error.is_none() && self.call.content != self.expected_content;
        let fails = |checks: &[Check]| checks.iter().any(|check| !self.satisfies(*check));
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

/// Runs the complete sequence. Returns its first unexpected call, or the last call if the first target serves again.
async fn run_sequence(gateway: &TestGateway, config: &Value, canon: &str) -> CallResult {
    let mut last = CallResult::default();
    for turn in 0..SEQUENCE_CALLS {
        last = send_call(gateway, config).await;
        let expected = if turn < 3 { "second" } else { "first" };
        if last.error.is_some() || last.content != canon || last.model != expected {
            last.error.get_or_insert_with(|| format!("the call {turn} was answered by {}", last.model));
            break;
        }
    }
    last
}

async fn run_catalogue(mode: &str) -> Vec<(&'static str, &'static str)> {
    let mut verdicts = Vec::new();
    for scenario in CATALOGUE {
        let provider = Server::start().await;
        let gateway = TestGateway::with_settings(&provider.url(), |settings| {
            (settings.idle_timeout_ms, settings.retry_backoff_ms) = (500, 40);
        });
        let canon =
            gateway.send(chat_request("well?chunks=60")).await.json()["choices"][0]["message"]["content"].clone();
        let canon = canon.as_str().unwrap();
        gateway.drain_records();
        let config = fallback_config(mode, scenario.first_behaviour, scenario.second_behaviour);
        let call = if scenario.id == "S15" {
            run_sequence(&gateway, &config, canon).await
        } else {
            send_call(&gateway, &config).await
        };
        let record = gateway.drain_records().pop().unwrap();
        let is_alive = gateway.send(chat_request("well")).await.status == 200;
        let count = provider.ledger_entries().len();
        let ledger = wait_for_ledger_entries(&provider, count).await;
        let first = ledger.iter().filter(|entry| entry.model.starts_with("first")).collect();
        let result = ScenarioResult {
            call: &call,
            expected_content: canon,
            first_target_attempts: first,
            record: &record,
            is_alive,
        };
        let verdict = result.verdict(scenario);
        if verdict != "pass" {
            eprintln!("{mode} {} {verdict}: {call:?}", scenario.id);
        }
        verdicts.push((scenario.id, verdict));
    }
    verdicts
}

/// Asserts that all scenarios pass, except that the listed ones end as "safe".
async fn assert_verdicts(mode: &str, safe: &[&str]) {
    let expected: Vec<_> =
        CATALOGUE.iter().map(|item| (item.id, if safe.contains(&item.id) { "safe" } else { "pass" })).collect();
    let verdicts = tokio::time::timeout(Duration::from_mins(1), run_catalogue(mode)).await.expect("no scenario hangs");
    assert_eq!(verdicts, expected);
}

#[tokio::test]
async fn thirteen_pass_without_recovery_and_cut_streams_are_safe() {
    assert_verdicts("off", &["S08", "S09", "S14"]).await;
}

#[tokio::test]
async fn all_sixteen_pass_with_hold_recovery() {
    assert_verdicts("hold", &[]).await;
}

#[tokio::test]
async fn fifteen_pass_with_continue_recovery() {
    assert_verdicts("continue", &["S14"]).await;
}
