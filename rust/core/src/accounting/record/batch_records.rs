//! Records of requests that ran outside the gateway: the lines of a batch that the provider executed, with their cost.

use std::{sync::Arc, time::Duration};

use penstock_llm::{api_format::ApiFormat, catalog, operation::Operation, usage::Usage};
use serde::Deserialize;
use uuid::Uuid;

use crate::{
    accounting::{
        prices::{
            self, Adjustment, Prices, ProviderPricing, PublishedAdjustment, PublishedPrice, PublishedPrices,
            RequestPricing,
        },
        record::{Outcome, Record, RecordSink, metadata::Metadata},
    },
    error::Problem,
    ingress::message::RequestHead,
    process::settings::Settings,
};

/// Input for the record of one batch line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchRecordInput {
    id: Uuid,
    /// Time of the request, in milliseconds since the Unix epoch.
    created_at: u64,
    trace_id: String,
    /// Path with its `/v1` prefix.
    path: String,
    /// Slug of the provider that ran the batch line.
    provider: String,
    model: String,
    status: u16,
    api_key_id: Option<String>,
    /// Value of the metadata header: a JSON object.
    metadata: Option<String>,
    /// Prices that the saved provider has for the model, in place of those of the price list.
    #[serde(default)]
    prices: Vec<PublishedPrice>,
    /// Adjustment of all prices of the saved provider.
    #[serde(default)]
    adjustment: Option<PublishedAdjustment>,
    /// False for a single request, which has the usual price.
    #[serde(default = "is_batch_by_default")]
    is_batch: bool,
}

fn is_batch_by_default() -> bool {
    true
}

/// Writes records of batch lines, priced by a published price list.
pub struct BatchRecorder {
    prices: Arc<Prices>,
    sink: Arc<RecordSink>,
}

impl BatchRecorder {
    pub fn new(prices: &[u8]) -> Result<Self, Vec<Problem>> {
        let published: PublishedPrices =
            serde_json::from_slice(prices).map_err(|error| vec![Problem::new("$", error.to_string())])?;
        let mut problems = Vec::new();
        let prices = Arc::new(Prices::compile(published, &mut problems));
        let mut sink = RecordSink::new(&Settings::default());
        sink.should_record = true;
        if problems.is_empty() { Ok(Self { prices, sink: Arc::new(sink) }) } else { Err(problems) }
    }

    /// Returns the record of a batch line as one line of JSON with its line end. `response` is the response in `OpenAI`
    /// format. The output is deterministic.
    pub fn write_record(&self, entry: &[u8], response: &[u8]) -> Result<Vec<u8>, Problem> {
        let invalid = |error: serde_json::Error| Problem::new("$", error.to_string());
        let entry: BatchRecordInput = serde_json::from_slice(entry).map_err(invalid)?;
        let provider = catalog::find_provider(&entry.provider);
        let provider = provider.ok_or_else(|| Problem::new("$.provider", "is not a known provider"))?;
        let mut problems = Vec::new();
        let pricing = ProviderPricing {
            model_prices: Some(prices::compile_prices(entry.prices, "$.prices", &mut problems)),
            adjustment: entry
                .adjustment
                .map(|published| Arc::new(Adjustment::compile(published, "$.adjustment", &mut problems))),
            is_prepaid: false,
        };
        if let Some(problem) = problems.pop() {
            return Err(problem);
        }
        let created = Duration::from_millis(entry.created_at);
        let operation = Operation::from_method_and_path("POST", entry.path.strip_prefix("/v1").unwrap_or(&entry.path));
        let head = RequestHead { method: "POST".into(), path: entry.path, ..RequestHead::default() };
        let mut record = Record::for_external_request(entry.id, created, Arc::new(head), Arc::clone(&self.sink));
        let log = &mut record.log;
        log.operation = Some(operation);
        log.provider = provider.slug();
        (log.model, log.status) = (entry.model, entry.status);
        (log.api_key_id, log.trace_id) = (entry.api_key_id, Some(entry.trace_id));
        log.metadata = entry.metadata.as_deref().map(Metadata::parse).unwrap_or_default();
        log.bytes_out = response.len() as u64;
        log.billing.usage = Usage::from_response(ApiFormat::OpenAi, response);
        log.billing.tariff = RequestPricing {
            prices: Arc::clone(&self.prices),
            provider_pricing: pricing,
            saved_models: None,
            is_batch: entry.is_batch,
        };
        record.close(Outcome::Complete);
        Ok(self.drain_outbox())
    }

    /// Returns the total cost of all recorded lines, in nano-dollars.
    pub fn total_nanodollars(&self) -> u64 {
        self.sink.metrics.cost_nanodollars.get()
    }

    fn drain_outbox(&self) -> Vec<u8> {
        let lines = self.sink.outbox.take_pending().unwrap_or_default();
        let written = lines.clone();
        self.sink.outbox.acknowledge(lines);
        written
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const TEST_PRICES: &[u8] = br#"{"overrides":[{"provider":"openai","model":"m","prices":[
        {"version":"v","rates":{"input":[[0,2000]],"output":[[0,4000]]}}]}]}"#;

    fn record_line(status: u16, response: &[u8], prices: &Value) -> Value {
        let ledger = BatchRecorder::new(TEST_PRICES).unwrap();
        let entry = json!({
            "id": "0199aaaa-0000-7000-8000-000000000001", "created_at": 1_700_000_000_123_u64, "trace_id": "gw_batch_1",
            "path": "/v1/chat/completions", "provider": "openai", "model": "m", "status": status, "api_key_id": "k",
            "metadata": r#"{"team":"red"}"#, "prices": prices,
        })
        .to_string();
        let first = ledger.write_record(entry.as_bytes(), response).unwrap();
        assert_eq!(first, ledger.write_record(entry.as_bytes(), response).unwrap());
        assert!(first.ends_with(b"\n"));
        serde_json::from_slice(&first).unwrap()
    }

    const RESPONSE_BODY: &[u8] = br#"{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}"#;

    #[test]
    fn completed_line_costs_half_the_price() {
        let record = record_line(200, RESPONSE_BODY, &json!([]));
        assert_eq!((&record["cost_nanodollars"], &record["price_version"]), (&json!(20), &json!("v")));
        assert_eq!((&record["total_units"], &record["is_success"]), (&json!(15), &json!(true)));
        assert_eq!(
            (&record["created_at"], &record["trace_id"]),
            (&json!("2023-11-14T22:13:20.123Z"), &json!("gw_batch_1"))
        );
        assert_eq!((&record["ai_org"], &record["operation"]), (&json!("openai"), &json!("chatComplete")));
        assert_eq!((&record["metadata"], &record["api_key_id"]), (&json!({"team": "red"}), &json!("k")));
    }

    #[test]
    fn single_request_has_the_usual_price() {
        let ledger = BatchRecorder::new(TEST_PRICES).unwrap();
        let entry = json!({
            "id": "0199aaaa-0000-7000-8000-000000000001", "created_at": 1_u64, "trace_id": "t", "status": 200,
            "path": "/v1/chat/completions", "provider": "openai", "model": "m", "is_batch": false,
        })
        .to_string();
        let record: Value =
            serde_json::from_slice(&ledger.write_record(entry.as_bytes(), RESPONSE_BODY).unwrap()).unwrap();
        assert_eq!(record["cost_nanodollars"], json!(40));
    }

    #[test]
    fn saved_provider_prices_take_precedence_and_failed_lines_are_free() {
        let own_prices = json!([{"version": "own", "rates": {}, "batch": {"input": [[0, 1000]]}}]);
        let record = record_line(200, RESPONSE_BODY, &own_prices);
        assert_eq!((&record["cost_nanodollars"], &record["price_version"]), (&json!(10), &json!("own")));
        let failed = record_line(429, br#"{"error":{}}"#, &json!([]));
        assert_eq!((&failed["is_success"], failed.get("cost_nanodollars")), (&json!(false), None));
    }

    #[test]
    fn rejects_invalid_prices_and_lines() {
        assert!(BatchRecorder::new(b"{").is_err());
        assert!(BatchRecorder::new(TEST_PRICES).unwrap().write_record(b"{}", b"").is_err());
    }
}
