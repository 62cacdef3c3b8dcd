//! Comparison of two versions of a prompt, which run with the same sets of variables. Each run is a request like one
//! that a client sent, with a record of its own. The response has the output, cost and time of each run.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream};
use penstock_net::{body::Body, headers::Headers};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use tokio::time::{Instant, timeout_at};

use crate::{
    endpoints::{
        builtin::reject_without_record,
        collected_body::collect_body,
        prompts::{self, chosen_version::ChosenVersion},
        provider_pipeline::ProviderPipeline,
    },
    error::{Error, PromptError, Result},
    ingress::{
        Request,
        message::{RecordFigures, RecordObserver, RequestHead},
    },
    prompts::{
        comparison_request::ComparisonRequest,
        prompt_request::{PromptAction, PromptPath, PromptRequest},
        saved::PromptReference,
    },
    response::{
        client_response::{ClientResponse, ClientResponseBody},
        offload::run_offloaded,
    },
    state::shared::fair_permits::FairPermits,
};

/// Maximum number of comparisons that one worker runs at the same time.
const MAX_CONCURRENT_COMPARISONS: usize = 8;
/// Maximum number of requests of one comparison at the same time.
const MAX_CONCURRENT_RUNS: usize = 4;
/// Maximum number of comparisons of one workspace at the same time, so that others can run too.
const MAX_COMPARISONS_OF_WORKSPACE: usize = 2;
static COMPARISONS: LazyLock<FairPermits> =
    LazyLock::new(|| FairPermits::new(MAX_CONCURRENT_COMPARISONS, MAX_COMPARISONS_OF_WORKSPACE));
/// Maximum time for all requests of a comparison. Those that have no response by then are reported as failed.
const MAX_COMPARISON_TIME: Duration = Duration::from_mins(10);
/// Maximum size of the response of a run that the comparison returns.
const MAX_RESPONSE_BYTES: usize = 256 * 1024;
/// Maximum time to wait for the count of tokens that the provider did not report.
const FIGURES_WAIT: Duration = Duration::from_secs(5);
/// Headers of the client that are not copied to runs, because they would change a run or the encoding of its response.
const DROPPED_HEADERS: [&[u8]; 3] = [b"idempotency-key", b"accept-encoding", b"expect"];
const NANODOLLARS_PER_CENT: f64 = 1e7;

/// Handles a request whose path compares two versions of a prompt.
pub(super) async fn handle(pipeline: &ProviderPipeline, request: Request, path: PromptPath) -> ClientResponse {
    let Request { head, body } = request;
    match compare(pipeline, &head, path, body).await {
        Ok(json) => prompts::json_response(&pipeline.state, &head, json),
        Err(error) => reject_without_record(&pipeline.state.settings, &error, &head),
    }
}

async fn compare(pipeline: &ProviderPipeline, head: &RequestHead, path: PromptPath, body: Body) -> Result<String> {
    let ProviderPipeline { state, snapshot, .. } = pipeline;
    let workspace = prompts::find_workspace(state, snapshot, head)?;
    if state.is_overloaded() {
        return Err(Error::Overloaded);
    }
    let _permit = COMPARISONS.try_acquire_many(workspace.as_deref(), 1).ok_or(Error::Overloaded)?;
    let (bytes, _share) = collect_body(state, body).await?;
    let request_bytes = bytes.len();
    let request =
        run_offloaded(request_bytes, move || ComparisonRequest::parse(&bytes)).await?.map_err(Error::Prompt)?;
    let reference = path.reference.unwrap_or_default();
    let name = PromptReference::parse(&reference).name;
    if name.len() < reference.len() {
        let message = "name the versions in the body, not in the path".to_owned();
        return Err(Error::Prompt(PromptError::InvalidBody { path: "$.versions".into(), message }));
    }
    let mut versions = Vec::with_capacity(request.versions.len());
    for selector in &request.versions {
        let reference = format!("{name}@{selector}");
        let version =
            ChosenVersion::find(state, snapshot, workspace.clone(), PromptReference::parse(&reference)).await?;
        versions.push((selector.clone(), version));
    }
    let deadline = Instant::now() + MAX_COMPARISON_TIME;
    let head = Arc::new(head.clone());
    let mut runs: Vec<BoxFuture<'static, RunResult>> = Vec::with_capacity(request.requests.len() * versions.len());
    for request in &request.requests {
        for (_, chosen) in &versions {
            let (pipeline, head) = (pipeline.clone(), Arc::clone(&head));
            let run = PlannedRun { pipeline, head, chosen: chosen.clone(), request: request.clone(), request_bytes };
            runs.push(Box::pin(run.send(deadline)));
        }
    }
    let mut results = stream::iter(runs).buffered(MAX_CONCURRENT_RUNS).collect::<Vec<_>>().await.into_iter();
    let sets = request.requests.iter().map(|request: &PromptRequest| ComparedSet {
        variables: &request.variables,
        results: results.by_ref().take(versions.len()).collect(),
    });
    let runs: Vec<_> = sets.collect();
    let chosen_prompt = versions.first().map(|(_, chosen)| Arc::clone(&chosen.prompt)).ok_or(Error::NotFound)?;
    let versions = versions.iter().enumerate().map(|(side, (selector, chosen))| {
        let results = runs.iter().filter_map(|set| set.results.get(side));
        VersionTotals::add_up(selector, chosen, results)
    });
    let versions = versions.collect();
    let prompt = ComparedPrompt { id: &chosen_prompt.id, slug: &chosen_prompt.slug };
    let comparison = Comparison { object: "prompt_comparison", prompt, versions, runs };
    serde_json::to_string(&comparison).map_err(|_| Error::Panicked)
}

/// One version that will run with one set of variables.
struct PlannedRun {
    pipeline: ProviderPipeline,
    /// Head of the client's request for the comparison.
    head: Arc<RequestHead>,
    chosen: ChosenVersion,
    request: PromptRequest,
    request_bytes: usize,
}

impl PlannedRun {
    /// Sends the request. A failure is part of the result.
    async fn send(self, deadline: Instant) -> RunResult {
        let Self { pipeline, head, chosen, request, request_bytes } = self;
        let version = chosen.version.number;
        let prepared = match chosen.prepare(request, request_bytes, PromptAction::Compare).await {
            Ok(prepared) => prepared,
            Err(error) => return RunResult { version, ..RunResult::from_error(&error) },
        };
        let observer = Arc::new(RecordObserver::default());
        let mut head = run_head(&head, &observer);
        prepared.rewrite_head(&mut head, &pipeline.state.settings.header_aliases);
        let body = Body::Complete(prepared.body.into());
        let sent = async {
            let response = pipeline.send(head, body).await;
            let status = response.head.status;
            let cache_status = response.head.headers.get_str("x-gateway-cache-status").map(ToOwned::to_owned);
            (status, cache_status, collect_response(response.body).await)
        };
        let Ok((status, cache_status, body)) = timeout_at(deadline, sent).await else {
            let message = format!("the comparison took longer than {} s", MAX_COMPARISON_TIME.as_secs());
            return RunResult { version, ..RunResult::failed(504, "comparison_timeout", message) };
        };
        let result = RunResult::from_response(status, body).with_figures(observer.wait(FIGURES_WAIT).await);
        RunResult {
            version,
            missing_variables: prepared.missing,
            unknown_variables: prepared.unknown,
            cache_status,
            ..result
        }
    }
}

/// Returns the head of a run: the credential and the control headers are those of the client.
fn run_head(head: &RequestHead, observer: &Arc<RecordObserver>) -> RequestHead {
    let copied = head.headers.iter().filter(|(name, _)| !DROPPED_HEADERS.contains(name));
    RequestHead {
        method: head.method.clone(),
        headers: copied.collect::<Headers>(),
        peer_ip: head.peer_ip,
        observer: Some(Arc::clone(observer)),
        ..RequestHead::default()
    }
}

/// Returns the complete body; `None` if it is too long or incomplete.
async fn collect_response(body: ClientResponseBody) -> Option<Bytes> {
    let mut stream = match body {
        ClientResponseBody::Complete(bytes) => return Some(bytes).filter(|bytes| bytes.len() <= MAX_RESPONSE_BYTES),
        ClientResponseBody::Stream(stream) => stream,
    };
    let (mut read, mut is_short) = (Vec::new(), true);
    loop {
        match stream.next().await {
            // A long response is read to its end, so that its record has the usage that it reports.
            Ok(Some(bytes)) => {
                is_short = is_short && read.len() + bytes.len() <= MAX_RESPONSE_BYTES;
                if is_short {
                    read.extend_from_slice(&bytes);
                }
            }
            Ok(None) => return Some(read.into()).filter(|_| is_short),
            Err(_) => return None,
        }
    }
}

#[derive(Serialize)]
struct Comparison<'c> {
    object: &'static str,
    prompt: ComparedPrompt<'c>,
    versions: Vec<VersionTotals<'c>>,
    runs: Vec<ComparedSet<'c>>,
}

#[derive(Serialize)]
struct ComparedPrompt<'c> {
    id: &'c str,
    slug: &'c str,
}

/// Results of all versions with the same variables.
#[derive(Serialize)]
struct ComparedSet<'c> {
    variables: &'c Value,
    results: Vec<RunResult>,
}

/// Result of one version with one set of variables.
#[derive(Default, Serialize)]
struct RunResult {
    version: u32,
    status: u16,
    /// Text of the first choice; `None` if it has none.
    output: Option<String>,
    response: Option<Box<RawValue>>,
    error: Option<RunError>,
    missing_variables: Vec<String>,
    unknown_variables: Vec<String>,
    cache_status: Option<String>,
    #[serde(flatten)]
    figures: RunFigures,
    log_id: Option<String>,
}

#[derive(Serialize)]
struct RunError {
    code: Option<String>,
    message: String,
}

/// Figures of one run, or of all runs of a version.
#[derive(Default, Serialize)]
struct RunFigures {
    /// US cents; `None` if it is not known.
    cost: Option<f64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    time_ms: Option<f64>,
}

impl RunFigures {
    fn add(&mut self, other: &Self) {
        fn sum<T: std::ops::Add<Output = T> + Copy>(total: &mut Option<T>, more: Option<T>) {
            *total = match (*total, more) {
                (Some(total), Some(more)) => Some(total + more),
                (total, more) => total.or(more),
            };
        }
        sum(&mut self.cost, other.cost);
        sum(&mut self.input_tokens, other.input_tokens);
        sum(&mut self.output_tokens, other.output_tokens);
        sum(&mut self.time_ms, other.time_ms);
    }
}

impl RunResult {
    fn failed(status: u16, code: &str, message: String) -> Self {
        Self { status, error: Some(RunError { code: Some(code.to_owned()), message }), ..Self::default() }
    }

    fn from_error(error: &Error) -> Self {
        Self::failed(error.status(), error.code(), error.message())
    }

    fn from_response(status: u16, body: Option<Bytes>) -> Self {
        let Some(body) = body else {
            let message = format!("the response is incomplete, or longer than {MAX_RESPONSE_BYTES} bytes");
            return Self::failed(status, "response_not_read", message);
        };
        let parsed: Value = serde_json::from_slice(&body).unwrap_or_default();
        if !(200..300).contains(&status) {
            let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
            let code = text(&parsed["error"]["code"]).or_else(|| text(&parsed["data"]["errorCode"]));
            let message = text(&parsed["error"]["message"]).or_else(|| text(&parsed["message"]));
            let message = message.or_else(|| text(&parsed["data"]["message"]));
            let message = message.unwrap_or_else(|| format!("the response has the status {status}"));
            return Self { status, error: Some(RunError { code, message }), ..Self::default() };
        }
        let choice = &parsed["choices"][0];
        let output = choice["message"]["content"].as_str().or_else(|| choice["text"].as_str()).map(ToOwned::to_owned);
        Self { status, output, response: serde_json::from_slice(&body).ok(), ..Self::default() }
    }

    fn with_figures(mut self, figures: Option<RecordFigures>) -> Self {
        let Some(RecordFigures { id, elapsed, nanodollars, tokens }) = figures else { return self };
        self.log_id = Some(id.to_string());
        self.figures = RunFigures {
            cost: nanodollars.map(|nanodollars| nanodollars as f64 / NANODOLLARS_PER_CENT),
            input_tokens: tokens.map(|(input, _)| input),
            output_tokens: tokens.map(|(_, output)| output),
            time_ms: Some((elapsed.as_secs_f64() * 1e4).round() / 10.0),
        };
        self
    }
}

/// One version, with the sums of its runs.
#[derive(Serialize)]
struct VersionTotals<'c> {
    selector: &'c str,
    version: u32,
    version_id: &'c str,
    failed: usize,
    #[serde(flatten)]
    figures: RunFigures,
}

impl<'c> VersionTotals<'c> {
    fn add_up<'r>(selector: &'c str, chosen: &'c ChosenVersion, results: impl Iterator<Item = &'r RunResult>) -> Self {
        let version = &chosen.version;
        let (mut failed, mut figures) = (0, RunFigures::default());
        for result in results {
            failed += usize::from(result.error.is_some());
            figures.add(&result.figures);
        }
        Self { selector, version: version.number, version_id: &version.id, failed, figures }
    }
}
