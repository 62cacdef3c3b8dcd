//! Records of requests that were answered elsewhere: the lines of a batch that its provider ran, and what they cost.

use std::{sync::Arc, time::Duration};

use penstock_llm::{api_format::Dialect, catalog, operation::Operation, usage::Usage};
use serde::Deserialize;
use uuid::Uuid;

use crate::{
    accounting::{
        prices::{self, Adjustment, Own, Prices, Published, PublishedAdjustment, PublishedPrice, Tariff},
        record::{Outcome, Record, Sink, metadata::Metadata},
    },
    error::Problem,
    ingress::headers::Head,
    process::settings::Settings,
};

/// What is known of a line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    id: Uuid,
    /// Milliseconds since 1970.
    created_at: u64,
    trace_id: String,
    /// With `/v1`.
    path: String,
    /// By its own name.
    provider: String,
    model: String,
    status: u16,
    api_key_id: Option<String>,
    /// As a request's header says it.
    metadata: Option<String>,
    /// What is said of the model where its provider was saved.
    #[serde(default)]
    prices: Vec<PublishedPrice>,
    /// By what all prices of that provider differ.
    #[serde(default)]
    adjustment: Option<PublishedAdjustment>,
}

/// Writes records, by prices as they were published.
pub struct Ledger {
    prices: Arc<Prices>,
    sink: Arc<Sink>,
}

impl Ledger {
    pub fn new(prices: &[u8]) -> Result<Self, Vec<Problem>> {
        let published: Published =
            serde_json::from_slice(prices).map_err(|error| vec![Problem::new("$", error.to_string())])?;
        let mut problems = Vec::new();
        let prices = Arc::new(Prices::compile(published, &mut problems));
        let mut sink = Sink::new(&Settings::default());
        sink.records = true;
        if problems.is_empty() { Ok(Self { prices, sink: Arc::new(sink) }) } else { Err(problems) }
    }

    /// The record of a line that was answered like this, in `OpenAI`'s shape: a line of JSON with its end. The same each
    /// time that it is written.
    pub fn record(&self, entry: &[u8], answer: &[u8]) -> Result<Vec<u8>, Problem> {
        let invalid = |error: serde_json::Error| Problem::new("$", error.to_string());
        let entry: Entry = serde_json::from_slice(entry).map_err(invalid)?;
        let provider = catalog::find(&entry.provider);
        let provider = provider.ok_or_else(|| Problem::new("$.provider", "is not known"))?;
        let mut problems = Vec::new();
        let own = Own {
            priced: Some(prices::compile(entry.prices, "$.prices", &mut problems)),
            adjustment: entry.adjustment.map(|said| Arc::new(Adjustment::compile(said, "$.adjustment", &mut problems))),
            is_prepaid: false,
        };
        if let Some(problem) = problems.pop() {
            return Err(problem);
        }
        let created = Duration::from_millis(entry.created_at);
        let operation = Operation::of("POST", entry.path.strip_prefix("/v1").unwrap_or(&entry.path));
        let head = Head { method: "POST".into(), path: entry.path, ..Head::default() };
        let mut record = Record::of_elsewhere(entry.id, created, Arc::new(head), Arc::clone(&self.sink));
        let facts = &mut record.facts;
        facts.operation = Some(operation);
        facts.provider = provider.slug();
        (facts.model, facts.status) = (entry.model, entry.status);
        (facts.api_key_id, facts.trace_id) = (entry.api_key_id, Some(entry.trace_id));
        facts.metadata = entry.metadata.as_deref().map(Metadata::read).unwrap_or_default();
        facts.bytes_out = answer.len() as u64;
        facts.paid.usage = Usage::from_answer(Dialect::OpenAi, answer);
        facts.paid.tariff = Tariff { prices: Arc::clone(&self.prices), own, others: None, is_batch: true };
        record.close(Outcome::Complete);
        Ok(self.written())
    }

    /// What was spent on all of them, in nano-dollars.
    pub fn cost(&self) -> u64 {
        self.sink.metrics.cost.get()
    }

    fn written(&self) -> Vec<u8> {
        let lines = self.sink.outbox.take().unwrap_or_default();
        let written = lines.clone();
        self.sink.outbox.acknowledge(lines);
        written
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const PRICES: &[u8] = br#"{"said":[{"provider":"openai","model":"m","prices":[
        {"version":"v","rates":{"input":[[0,2000]],"output":[[0,4000]]}}]}]}"#;

    fn written(status: u16, answer: &[u8], prices: &Value) -> Value {
        let ledger = Ledger::new(PRICES).unwrap();
        let entry = json!({
            "id": "0199aaaa-0000-7000-8000-000000000001", "created_at": 1_700_000_000_123_u64, "trace_id": "gw_batch_1",
            "path": "/v1/chat/completions", "provider": "openai", "model": "m", "status": status, "api_key_id": "k",
            "metadata": r#"{"team":"red"}"#, "prices": prices,
        })
        .to_string();
        let first = ledger.record(entry.as_bytes(), answer).unwrap();
        assert_eq!(first, ledger.record(entry.as_bytes(), answer).unwrap());
        assert!(first.ends_with(b"\n"));
        serde_json::from_slice(&first).unwrap()
    }

    const ANSWER: &[u8] = br#"{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}"#;

    #[test]
    fn a_line_that_was_answered_is_recorded_at_half_of_the_price() {
        let record = written(200, ANSWER, &json!([]));
        assert_eq!((&record["cost_nanodollars"], &record["price_version"]), (&json!(20), &json!("v")));
        assert_eq!((&record["total_units"], &record["is_success"]), (&json!(15), &json!(true)));
        assert_eq!(
            (&record["created_at"], &record["trace_id"]),
            (&json!("2023-11-14T22:13:20.123Z"), &json!("gw_batch_1"))
        );
        assert_eq!((&record["ai_org"], &record["operation"]), (&json!("openai"), &json!("chatComplete")));
        assert_eq!(
            (&record["metadata"], &record["api_key_id"]),
            (&json!({"key": ["team"], "value": ["red"]}), &json!("k"))
        );
    }

    #[test]
    fn what_is_said_where_the_provider_was_saved_goes_before_and_what_failed_costs_nothing() {
        let own = json!([{"version": "own", "rates": {}, "batch": {"input": [[0, 1000]]}}]);
        let record = written(200, ANSWER, &own);
        assert_eq!((&record["cost_nanodollars"], &record["price_version"]), (&json!(10), &json!("own")));
        let failed = written(429, br#"{"error":{}}"#, &json!([]));
        assert_eq!((&failed["is_success"], failed.get("cost_nanodollars")), (&json!(false), None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(Ledger::new(b"{").is_err());
        assert!(Ledger::new(PRICES).unwrap().record(b"{}", b"").is_err());
    }
}
