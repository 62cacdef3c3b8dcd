//! Engine class and functions that the extension module exports to Python.

use std::{
    net::IpAddr,
    path::Path,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use penstock_core::{
    accounting::{
        body_secrets, inline_data,
        record::{batch_records, masking},
        token_counting,
    },
    config::{Config, Strictness, schema},
    endpoints::batches::line_requests::{self, BatchLine},
    error::Problem,
    gateway_state::GatewayState,
    guardrails::{self, checks::default_models::DefaultModels},
    ingress::{Request, base_path::strip_base_path, client_sdk, message::RequestHead},
    limits::{counter::RecordedUsage, node_counters::NodeCounters},
    process::{
        preempt, secret,
        settings::{Settings, TargetLimits},
    },
    prompts::prompt::CompiledPrompt,
    routing::Trial,
    state::snapshot::Snapshot,
};
use penstock_net::{body::Body, check_destination};
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    intern,
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyTuple},
};

use crate::{
    callback::Callback,
    errors,
    exchange::Exchange,
    peer,
    reader::BodyReader,
    runtime::{Job, JobRunner, Runtime},
    scope::{self, ExpectedBody},
    websocket::WebSocketHandle,
};

/// Gateway engine; one per worker process.
#[pyclass(frozen, module = "penstock._engine")]
pub struct Engine {
    state: Arc<GatewayState>,
    runtime: OnceLock<Runtime>,
    /// The event loop's original `call_soon_threadsafe`.
    call_soon: OnceLock<Py<PyAny>>,
    /// Address of the Python type of the server's watcher objects (`CallbackWatcherHTTP`); 0 until one was seen.
    watcher: AtomicUsize,
}

#[pymethods]
impl Engine {
    /// Creates an engine from `settings`, a JSON object. Raises `EngineError` for unknown or invalid settings.
    #[new]
    fn new(py: Python<'_>, settings: &[u8]) -> PyResult<Self> {
        let settings: Settings = serde_json::from_slice(settings)
            .map_err(|error| errors::validation_error(py, &[Problem::new("$", error.to_string())]))?;
        let state = GatewayState::new(settings).map_err(|problems| errors::validation_error(py, &problems))?;
        Ok(Self {
            state: Arc::new(state),
            runtime: OnceLock::new(),
            call_soon: OnceLock::new(),
            watcher: AtomicUsize::new(0),
        })
    }

    /// Starts the engine's thread and stores the event loop's `call_soon_threadsafe`. Must be called after the fork.
    /// Calls `lower_priority` on each thread that must run at lower priority than the threads that serve requests.
    fn start(&self, event_loop: &Bound<'_, PyAny>, lower_priority: Py<PyAny>) -> PyResult<()> {
        let call_soon = event_loop.getattr(intern!(event_loop.py(), "call_soon_threadsafe"))?;
        drop(self.call_soon.set(call_soon.unbind()));
        let runtime =
            Runtime::start(Arc::clone(&self.state), Arc::new(move || lower_thread_priority(&lower_priority)))?;
        self.runtime.set(runtime).map_err(|_| PyRuntimeError::new_err("the engine was started already"))
    }

    /// Compiles a snapshot and replaces the current one. Raises `EngineError` with all problems if it is invalid.
    fn apply(&self, py: Python<'_>, snapshot: &[u8]) -> PyResult<()> {
        py.detach(|| self.state.apply_snapshot(snapshot)).map_err(|problems| errors::validation_error(py, &problems))
    }

    /// Serves a request that reached the application through a task of the server, not through `intercept_call`. Calls
    /// `done` when the response is finished.
    fn handle_request(&self, scope: &Bound<'_, PyDict>, receive: &Bound<'_, PyAny>, done: Py<PyAny>) -> PyResult<()> {
        let proto = receive.getattr(intern!(scope.py(), "__self__"))?.unbind();
        self.state.record_sink.metrics.asgi_fallback_requests.add(1);
        self.begin_request(scope, proto, Some(done))
    }

    /// Serves a WebSocket request. Calls `on_event` when an event for the client is ready, and `on_writable` when the
    /// queue to the provider has space again.
    fn open_websocket(
        &self,
        scope: &Bound<'_, PyDict>,
        on_event: Py<PyAny>,
        on_writable: Py<PyAny>,
    ) -> PyResult<WebSocketHandle> {
        let mut head = scope::parse_websocket_head(scope)?;
        self.complete_head(scope, &mut head);
        let jobs = self.job_runner()?;
        let under_way = jobs.track_request(scope);
        let addresses = peer::connection_addresses(scope);
        let state = Arc::clone(&self.state);
        Ok(WebSocketHandle::start(jobs, state, head, under_way, addresses, on_event, on_writable))
    }

    /// Replaces the event loop's `call_soon_threadsafe`. Serves requests before they become tasks, and passes every
    /// other call to the original function.
    #[pyo3(signature = (callback, *args, context = None))]
    fn intercept_call<'py>(
        &self,
        callback: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = callback.py();
        if let Ok(callback) = callback.cast_exact::<Callback>() {
            if let Ok(future) = args.get_borrowed_item(0) {
                callback.get().fire(&future);
            }
            return Ok(py.None().into_bound(py));
        }
        if args.len() == 2 && self.try_intercept(args) {
            return Ok(py.None().into_bound(py));
        }
        self.call_original(callback, args, context)
    }

    /// Returns the counters as a JSON object.
    fn metrics<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.state.record_sink.metrics.to_json().to_string().as_bytes())
    }

    /// Makes `/ready` report that the gateway is draining. Ends streams that are still open after `seconds`.
    fn drain(&self, seconds: f64) {
        self.state.drain();
        if let (Some(runtime), Ok(max_wait)) = (self.runtime.get(), Duration::try_from_secs_f64(seconds)) {
            runtime.end_streams_after(Arc::clone(&self.state), max_wait);
        }
    }

    /// Sends the last records and stops the engine's thread.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            if let Some(runtime) = self.runtime.get() {
                runtime.stop();
            }
        });
    }
}

/// Lowers the priority of the current thread. A failure is only reported, because it merely slows other requests down a
/// little.
fn lower_thread_priority(lower_priority: &Py<PyAny>) {
    Python::attach(|py| {
        if let Err(error) = lower_priority.call0(py) {
            error.write_unraisable(py, None);
        }
    });
}

impl Engine {
    /// Returns true if the arguments were a request that was about to become a task. The engine then serves it instead.
    fn try_intercept(&self, args: &Bound<'_, PyTuple>) -> bool {
        let (Ok(coroutine), Ok(watcher)) = (args.get_borrowed_item(0), args.get_borrowed_item(1)) else { return false };
        if !self.is_watcher(&watcher) {
            return false;
        }
        let py = args.py();
        let begin = || {
            let scope = watcher.getattr(intern!(py, "scope"))?;
            let proto = watcher.getattr(intern!(py, "proto"))?;
            self.begin_request(scope.cast::<PyDict>()?, proto.unbind(), None)
        };
        // On failure the server handles the request through its own task.
        if begin().is_err() {
            return false;
        }
        self.state.record_sink.metrics.fast_path_requests.add(1);
        drop(coroutine.call_method0(intern!(py, "close")));
        true
    }

    fn is_watcher(&self, candidate: &Bound<'_, PyAny>) -> bool {
        let kind = candidate.get_type();
        let address = kind.as_ptr() as usize;
        let cached_address = self.watcher.load(Ordering::Relaxed);
        if cached_address != 0 {
            return cached_address == address;
        }
        let is_it = kind.name().is_ok_and(|name| name == "CallbackWatcherHTTP")
            && candidate.getattr(intern!(candidate.py(), "scope")).is_ok_and(|scope| scope.is_instance_of::<PyDict>());
        if is_it {
            self.watcher.store(address, Ordering::Relaxed);
        }
        is_it
    }

    fn begin_request(&self, scope: &Bound<'_, PyDict>, proto: Py<PyAny>, done: Option<Py<PyAny>>) -> PyResult<()> {
        let mut head = scope::parse_head(scope)?;
        self.complete_head(scope, &mut head);
        let expected = scope::expected_body(scope, &head)?;
        let jobs = self.job_runner()?;
        let exchange = Exchange::new(proto, scope.clone().unbind(), done);
        if expected == ExpectedBody::Empty {
            jobs.submit(Job { request: Request { head, body: Body::empty() }, exchange });
        } else {
            BodyReader::start(scope, jobs.clone(), head, exchange, expected);
        }
        Ok(())
    }

    /// Removes the base path, and adds the address of the connection's peer if the request needs it.
    fn complete_head(&self, scope: &Bound<'_, PyDict>, head: &mut RequestHead) {
        strip_base_path(&mut head.path, &self.state.settings.base_path);
        if self.state.needs_peer(&head.path) {
            head.peer_ip = peer::client_address(scope).map(|(address, _)| address.ip());
        }
    }

    fn job_runner(&self) -> PyResult<&JobRunner> {
        let runtime = self.runtime.get().ok_or_else(|| PyRuntimeError::new_err("the engine was not started"))?;
        Ok(runtime.job_runner())
    }

    fn call_original<'py>(
        &self,
        callback: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = callback.py();
        let original_call_soon =
            self.call_soon.get().ok_or_else(|| PyRuntimeError::new_err("the engine was not started"))?;
        let all: Vec<_> = std::iter::once(callback.clone()).chain(args.iter()).collect();
        let all = PyTuple::new(py, all)?;
        let keywords = PyDict::new(py);
        if let Some(context) = context {
            keywords.set_item(intern!(py, "context"), context)?;
        }
        original_call_soon.bind(py).call(all, Some(&keywords))
    }
}

/// Maximum numbers of targets of a config, from a Python tuple: at the root, at a conditional root and nested.
#[derive(FromPyObject)]
pub struct MaxTargets(usize, usize, usize);

/// Validates a document with the parser that requests use. `kind` is `config`, `guardrail`, `prompt` or `snapshot`.
/// `limits` are the maximum numbers of targets at the root of a config, at a conditional root, and below each target.
#[pyfunction]
#[pyo3(signature = (kind, data, limits = None))]
pub fn check(py: Python<'_>, kind: &str, data: &[u8], limits: Option<MaxTargets>) -> PyResult<()> {
    let limits = limits.map(|MaxTargets(max_root, max_conditional, max_nested)| TargetLimits {
        max_root,
        max_conditional,
        max_nested,
    });
    // Releases the interpreter, because a large document takes long.
    let problems = py.detach(|| match kind {
        "config" => Config::parse_with_limits(limits, data, Strictness::StrictWithLints).err(),
        "snapshot" => Snapshot::validate(data).err(),
        "prompt" => CompiledPrompt::parse(data).err(),
        "guardrail" => guardrails::saved::validate(data).err(),
        other => {
            let message = format!("must be config, guardrail, prompt or snapshot, not `{other}`");
            Some(vec![Problem::new("kind", message)])
        }
    });
    problems.map_or(Ok(()), |problems| Err(errors::validation_error(py, &problems)))
}

/// Runs a guardrail, given as the JSON of its checks and actions, on the JSON of a request or response. Returns the
/// response of `POST /v1/guardrails/test`. May wait for other hosts, so it must not run on an event loop.
#[pyfunction]
pub fn run_guardrail<'py>(
    py: Python<'py>,
    settings: &[u8],
    content: &[u8],
    subject: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let settings: Settings =
        serde_json::from_slice(settings).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let trial_result = py.detach(|| -> PyResult<_> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Trial::parse(content, subject).and_then(|trial| runtime.block_on(trial.run(&settings))))
    })?;
    let json = trial_result.map_err(|problems| errors::validation_error(py, &problems))?.to_string();
    Ok(PyBytes::new(py, json.as_bytes()))
}

/// Classifies texts, given as `{"kind", "inputs", "categories"}`, for `POST /v1/execute-guardrails/{kind}`.
#[pyfunction]
pub fn classify_texts<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    // Releases the interpreter, because long texts take long.
    let classified = py.detach(|| guardrails::checks::classification::classify(data));
    let json = classified.map_err(PyValueError::new_err)?.to_string();
    Ok(PyBytes::new(py, json.as_bytes()))
}

/// Returns the names of variables, sections and partials in the content of a prompt, as a JSON object.
#[pyfunction]
pub fn prompt_variables<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let names = py.detach(|| CompiledPrompt::parse(data).map(|prompt| prompt.variable_names()));
    let names = names.map_err(|problems| errors::validation_error(py, &problems))?;
    let json = serde_json::to_vec(&names).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &json))
}

/// Returns the providers as a JSON array of `{"slug", "base_url", "api_format", "offers", "options"}`.
#[pyfunction]
pub fn catalogue(py: Python<'_>) -> Bound<'_, PyBytes> {
    PyBytes::new(py, penstock_core::providers_json().to_string().as_bytes())
}

/// Returns the checks of guardrails as a JSON array. Each has `id`, `name`, `description`, `hooks`, `parameters` and
/// `secrets`.
#[pyfunction]
pub fn guardrail_checks(py: Python<'_>) -> Bound<'_, PyBytes> {
    PyBytes::new(py, guardrails::checks::catalogue().to_string().as_bytes())
}

/// Adds the checks of plug-ins, given as a JSON array. Call it once, before the process forks.
#[pyfunction]
pub fn register_plugins(data: &[u8]) -> PyResult<()> {
    guardrails::checks::plugins::register(data).map_err(PyValueError::new_err)
}

/// Sets the models of checks that name none; an empty string stands for none. Call it once, before the process forks.
#[pyfunction]
pub fn set_default_models(moderation: &str, personal_data: &str) -> PyResult<()> {
    let models = DefaultModels::parse(moderation, personal_data).map_err(PyValueError::new_err)?;
    guardrails::checks::default_models::set_default_models(models);
    Ok(())
}

/// Sets the path of the Unix socket of the process that runs plug-ins. Call it once, before the process forks.
#[pyfunction]
pub fn set_plugin_socket(path: PathBuf) {
    guardrails::checks::plugins::set_socket(path);
}

/// Returns the JSON Schema of a config.
#[pyfunction]
pub fn config_schema(py: Python<'_>) -> Bound<'_, PyBytes> {
    PyBytes::new(py, schema::config_schema().to_string().as_bytes())
}

/// Makes the kernel preempt this process after time slices of `turn` seconds while it is busy. Must be called after the
/// fork.
#[pyfunction]
pub fn start_preemption_ticker(turn: f64) -> PyResult<()> {
    let turn = Duration::try_from_secs_f64(turn).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(preempt::start_preemption_ticker(turn)?)
}

/// Ticker for bursts of work that are known in advance.
#[pyclass(frozen, module = "penstock._engine")]
pub struct BurstTicker(preempt::BurstTicker);

#[pymethods]
impl BurstTicker {
    /// Starts the thread of the ticker, for time slices of `turn` seconds. Must be called after the fork.
    #[new]
    fn new(turn: f64) -> PyResult<Self> {
        let turn = Duration::try_from_secs_f64(turn).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self(preempt::BurstTicker::start(turn)?))
    }

    /// Ticks until the process is no longer busy.
    fn announce_burst(&self) {
        self.0.announce_burst();
    }
}

/// Returns true if a JSON field of this name holds a secret, in any letter case and with any separator.
#[pyfunction]
pub fn is_secret_field(name: &str) -> bool {
    secret::is_secret_field(name)
}

/// Returns the API format of the client that sent these headers: `anthropic`, `google`, `cohere` or `openai`. Names are
/// in lower case.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "a Python function takes the values that were converted for it")]
pub fn client_format(headers: Vec<(Vec<u8>, Vec<u8>)>) -> &'static str {
    client_sdk::client_format_name(&headers.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect())
}

/// Returns why a client outside of the engine may not connect to a destination that a tenant chose; `None` if it may.
/// `host` is the host of a URL, with an IPv6 address in brackets. `addresses` are all addresses of the host. If they
/// are empty, only the name of the host is checked.
#[pyfunction]
pub fn refuse_destination(
    trusted_hosts: &Bound<'_, PyList>,
    host: &str,
    port: u16,
    addresses: &Bound<'_, PyList>,
) -> PyResult<Option<&'static str>> {
    let trusted_hosts: Vec<String> = trusted_hosts.extract()?;
    let mut parsed: Vec<IpAddr> = Vec::with_capacity(addresses.len());
    for address in addresses {
        let text: String = address.extract()?;
        parsed.push(text.parse().map_err(|error| PyValueError::new_err(format!("`{text}` {error}")))?);
    }
    Ok(check_destination(&trusted_hosts, host, port, &parsed).err())
}

/// Translates a batch line to the provider's API. Returns the body, and the dropped parameters separated by commas.
#[pyfunction]
pub fn translate_batch_line<'py>(
    py: Python<'py>,
    provider: &str,
    path: &str,
    body: &[u8],
) -> PyResult<(Bound<'py, PyBytes>, String)> {
    let translated = line_requests::translate_line(BatchLine { provider, path, body })
        .map_err(|problem| errors::validation_error(py, &[problem]))?;
    Ok((PyBytes::new(py, &translated.body), translated.dropped_params))
}

/// Translates a provider's response to a batch line, or its error, to the client's API format. Returns its status and
/// the body.
#[pyfunction]
pub fn translate_batch_result<'py>(
    py: Python<'py>,
    provider: &str,
    path: &str,
    body: &[u8],
    status: u16,
    response: &[u8],
) -> PyResult<(u16, Bound<'py, PyBytes>)> {
    let result = line_requests::translate_line_response(BatchLine { provider, path, body }, status, response);
    result
        .map(|(status, bytes)| (status, PyBytes::new(py, &bytes)))
        .map_err(|problem| errors::validation_error(py, &[problem]))
}

/// Masks the secrets in a recorded body, which may have been cut. Returns `None` if it has none.
#[pyfunction]
pub fn mask_body_secrets<'py>(py: Python<'py>, body: &[u8]) -> Option<Bound<'py, PyBytes>> {
    Some(PyBytes::new(py, &body_secrets::mask_body_secrets(body)?))
}

/// Masks the values of those parameters of a URL's query that may be secrets.
#[pyfunction]
pub fn mask_query(query: &str) -> String {
    masking::mask_query(query)
}

/// Returns the part of a header's value that may be shown, and `None` if it may be a secret. The name is in lower case.
#[pyfunction]
pub fn shown_header<'v>(name: &str, value: &'v str) -> Option<&'v str> {
    masking::shown_header(name, value)
}

/// Counts the tokens of a request whose process was killed: of its body, and of the text of its response so far. Returns
/// `None` if its operation is not billed by the tokens of its text.
#[pyfunction]
pub fn count_interrupted(
    py: Python<'_>,
    operation: &str,
    model: &str,
    body: &[u8],
    response_text: &str,
) -> Option<(usize, usize)> {
    // Releases the interpreter, because the first count loads a vocabulary.
    py.detach(|| token_counting::count_interrupted(operation, model, body, response_text))
}

/// Replaces each long base64 text in a recorded body by its size and digest. Returns `None` if there is none.
#[pyfunction]
pub fn replace_inline_data<'py>(py: Python<'py>, body: &[u8]) -> Option<Bound<'py, PyBytes>> {
    // Releases the interpreter, because decoding a large body takes long.
    let replaced = py.detach(|| inline_data::replace_inline_data(body))?;
    Some(PyBytes::new(py, &replaced))
}

/// Passes the budget usage of the ledger to the data plane of this node. Each usage is a tuple: limit id, group value,
/// start of the period in milliseconds, amount, number of resets by operators, and sum of cost corrections. Returns the
/// number of usages that were written.
#[pyfunction]
pub fn set_recorded_usage(py: Python<'_>, folder: &str, usages: Vec<(String, String, u64, u64, u64, i64)>) -> usize {
    py.detach(|| {
        let counters = NodeCounters::new(Some(Path::new(folder)));
        let write = |(limit_id, group, start_ms, recorded, resets, corrected): (String, String, u64, u64, u64, i64)| {
            let known = RecordedUsage { recorded, resets, corrected };
            counters.set_recorded(&limit_id, &group, start_ms, known).is_ok()
        };
        usages.into_iter().map(write).filter(|is_written| *is_written).count()
    })
}

/// Writes request log records for the lines of a batch that ran at a provider.
#[pyclass(frozen, module = "penstock._engine")]
pub struct BatchRecorder(batch_records::BatchRecorder);

#[pymethods]
impl BatchRecorder {
    /// Creates a recorder from `prices`, the price section of a snapshot.
    #[new]
    fn new(py: Python<'_>, prices: &[u8]) -> PyResult<Self> {
        batch_records::BatchRecorder::new(prices).map(Self).map_err(|problems| errors::validation_error(py, &problems))
    }

    /// Returns the record of a batch line and its response, as JSON with a final newline.
    fn record<'py>(&self, py: Python<'py>, entry: &[u8], response: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let written = self.0.write_record(entry, response);
        written.map(|line| PyBytes::new(py, &line)).map_err(|problem| errors::validation_error(py, &[problem]))
    }

    /// Returns the total cost of the recorded lines in nano-dollars.
    #[getter]
    fn cost(&self) -> u64 {
        self.0.total_nanodollars()
    }
}
