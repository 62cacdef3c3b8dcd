//! The engine as Python sees it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use penstock_core::{
    accounting::record::{batch_records, masking},
    config::{Config, Strictness, TargetLimits, schema},
    endpoints::batches::line_requests::{self, BatchLine},
    error::Problem,
    gateway::{Gateway, Request},
    ingress::body::Body,
    process::{preempt, settings::Settings},
    state::snapshot::Snapshot,
};
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    intern,
    prelude::*,
    types::{PyBytes, PyDict, PyTuple},
};

use crate::{
    callback::Callback,
    conversation::WebSocketHandle,
    errors,
    exchange::Exchange,
    peer,
    reader::BodyReader,
    runtime::{Job, JobRunner, Runtime},
    scope::{self, ExpectedBody},
};

/// One engine per worker process.
#[pyclass(frozen, module = "penstock._engine")]
pub struct Engine {
    gateway: Arc<Gateway>,
    runtime: OnceLock<Runtime>,
    /// The event loop's own `call_soon_threadsafe`.
    call_soon: OnceLock<Py<PyAny>>,
    /// The type of the server's watcher objects, by address, once seen.
    watcher: AtomicUsize,
}

#[pymethods]
impl Engine {
    /// `settings` is a JSON object; what is not known or not right raises `EngineError`.
    #[new]
    fn new(py: Python<'_>, settings: &[u8]) -> PyResult<Self> {
        let settings: Settings = serde_json::from_slice(settings)
            .map_err(|error| errors::validation_error(py, &[Problem::new("$", error.to_string())]))?;
        let gateway = Gateway::new(settings).map_err(|problems| errors::validation_error(py, &problems))?;
        Ok(Self {
            gateway: Arc::new(gateway),
            runtime: OnceLock::new(),
            call_soon: OnceLock::new(),
            watcher: AtomicUsize::new(0),
        })
    }

    /// Starts the engine's thread. `event_loop` is the worker's; call it after the fork. `step_back` is called on each thread
    /// that must give way to those that serve requests.
    fn start(&self, event_loop: &Bound<'_, PyAny>, step_back: Py<PyAny>) -> PyResult<()> {
        let call_soon = event_loop.getattr(intern!(event_loop.py(), "call_soon_threadsafe"))?;
        drop(self.call_soon.set(call_soon.unbind()));
        let runtime = Runtime::start(Arc::clone(&self.gateway), Arc::new(move || lower_thread_priority(&step_back)))?;
        self.runtime.set(runtime).map_err(|_| PyRuntimeError::new_err("the engine was started already"))
    }

    /// Compiles a snapshot and puts it in the place of the old one; `EngineError` tells every problem.
    fn apply(&self, py: Python<'_>, snapshot: &[u8]) -> PyResult<()> {
        py.detach(|| self.gateway.apply_snapshot(snapshot)).map_err(|problems| errors::validation_error(py, &problems))
    }

    /// Takes a request that came through the server's own task; `done` is called when it is answered.
    fn handle_request(&self, scope: &Bound<'_, PyDict>, receive: &Bound<'_, PyAny>, done: Py<PyAny>) -> PyResult<()> {
        let proto = receive.getattr(intern!(scope.py(), "__self__"))?.unbind();
        self.gateway.record_sink.metrics.asgi_fallback_requests.add(1);
        self.begin_request(scope, proto, Some(done))
    }

    /// Takes a request for a WebSocket. `there` is called when there is something to take for the caller, `room` when there is
    /// room again for what could not be given.
    fn open_websocket(
        &self,
        scope: &Bound<'_, PyDict>,
        there: Py<PyAny>,
        room: Py<PyAny>,
    ) -> PyResult<WebSocketHandle> {
        let head = scope::parse_websocket_head(scope)?;
        let jobs = self.job_runner()?;
        let about = (head, jobs.track_request(scope), peer::connection_addresses(scope));
        Ok(WebSocketHandle::start(jobs, Arc::clone(&self.gateway), about, there, room))
    }

    /// Stands in the place of the loop's `call_soon_threadsafe`: takes requests before they become tasks, passes all else on.
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

    /// The counters, as a JSON object.
    fn metrics<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.gateway.record_sink.metrics.to_json().to_string().as_bytes())
    }

    /// From now on `/ready` says no; streams that are still open after so many seconds are ended.
    fn drain(&self, seconds: f64) {
        self.gateway.drain();
        if let (Some(runtime), Ok(patience)) = (self.runtime.get(), Duration::try_from_secs_f64(seconds)) {
            runtime.end_streams_after(Arc::clone(&self.gateway), patience);
        }
    }

    /// Hands over the last records and ends the engine's thread.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            if let Some(runtime) = self.runtime.get() {
                runtime.stop();
            }
        });
    }
}

/// Where it may not be said, it is only a little slower for others.
fn lower_thread_priority(step_back: &Py<PyAny>) {
    Python::attach(|py| {
        if let Err(error) = step_back.call0(py) {
            error.write_unraisable(py, None);
        }
    });
}

impl Engine {
    /// Whether the arguments are a request on its way to becoming a task, and were taken.
    fn try_intercept(&self, args: &Bound<'_, PyTuple>) -> bool {
        let (Ok(coroutine), Ok(watcher)) = (args.get_borrowed_item(0), args.get_borrowed_item(1)) else { return false };
        if !self.is_watcher(&watcher) {
            return false;
        }
        let py = args.py();
        let take = || {
            let scope = watcher.getattr(intern!(py, "scope"))?;
            let proto = watcher.getattr(intern!(py, "proto"))?;
            self.begin_request(scope.cast::<PyDict>()?, proto.unbind(), None)
        };
        // Where it cannot be taken the server's own way is still open.
        if take().is_err() {
            return false;
        }
        self.gateway.record_sink.metrics.fast_path_requests.add(1);
        drop(coroutine.call_method0(intern!(py, "close")));
        true
    }

    fn is_watcher(&self, candidate: &Bound<'_, PyAny>) -> bool {
        let kind = candidate.get_type();
        let address = kind.as_ptr() as usize;
        let known = self.watcher.load(Ordering::Relaxed);
        if known != 0 {
            return known == address;
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
        if self.gateway.is_management_path(&head.path) {
            head.peer_ip = peer::client_address(scope).map(|(address, _)| address.ip());
        }
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
        let real = self.call_soon.get().ok_or_else(|| PyRuntimeError::new_err("the engine was not started"))?;
        let all: Vec<_> = std::iter::once(callback.clone()).chain(args.iter()).collect();
        let all = PyTuple::new(py, all)?;
        let keywords = PyDict::new(py);
        if let Some(context) = context {
            keywords.set_item(intern!(py, "context"), context)?;
        }
        real.bind(py).call(all, Some(&keywords))
    }
}

/// Checks a document with the parser that requests go through. `kind`: `config` or `snapshot`. `limits`: most targets at
/// the root of a config, of a conditional one, and below each of them.
#[pyfunction]
#[pyo3(signature = (kind, data, limits = None))]
pub fn check(py: Python<'_>, kind: &str, data: &[u8], limits: Option<(usize, usize, usize)>) -> PyResult<()> {
    let limits = limits.map(|(root, conditional, nested)| TargetLimits {
        max_root: root,
        max_conditional: conditional,
        max_nested: nested,
    });
    let problems = match kind {
        "config" => Config::parse_with_limits(limits, data, Strictness::StrictWithLints).err(),
        "snapshot" => Snapshot::validate(data).err(),
        other => Some(vec![Problem::new("kind", format!("must be config or snapshot, not `{other}`"))]),
    };
    problems.map_or(Ok(()), |problems| Err(errors::validation_error(py, &problems)))
}

/// The providers, as a JSON array of `{"slug", "base_url", "dialect"}`.
#[pyfunction]
pub fn catalogue(py: Python<'_>) -> Bound<'_, PyBytes> {
    PyBytes::new(py, penstock_core::providers_json().to_string().as_bytes())
}

/// The JSON Schema of a config.
#[pyfunction]
pub fn config_schema(py: Python<'_>) -> Bound<'_, PyBytes> {
    PyBytes::new(py, schema::config_schema().to_string().as_bytes())
}

/// Has the kernel end the turns of this process, of so many seconds, in time while it is busy; call it after the fork.
#[pyfunction]
pub fn start_preemption_ticker(turn: f64) -> PyResult<()> {
    let turn = Duration::try_from_secs_f64(turn).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(preempt::start_preemption_ticker(turn)?)
}

/// Whether a field of this name, in small letters with hyphens, may hold a credential: records mask it.
#[pyfunction]
pub fn is_secret_name(name: &str) -> bool {
    masking::is_secret_name(name)
}

/// What a provider is sent for a line of a batch, and what of it cannot be told, with commas.
#[pyfunction]
pub fn translate_batch_line<'py>(
    py: Python<'py>,
    provider: &str,
    path: &str,
    body: &[u8],
) -> PyResult<(Bound<'py, PyBytes>, String)> {
    let said = line_requests::translate_line(BatchLine { provider, path, body })
        .map_err(|problem| errors::validation_error(py, &[problem]))?;
    Ok((PyBytes::new(py, &said.body), said.dropped_params))
}

/// A provider's answer to a line of a batch with its status, an error too, as its caller reads it.
#[pyfunction]
pub fn translate_batch_result<'py>(
    py: Python<'py>,
    provider: &str,
    path: &str,
    body: &[u8],
    answered: (u16, Bound<'py, PyBytes>),
) -> PyResult<Bound<'py, PyBytes>> {
    let (status, answer) = answered;
    let told = line_requests::translate_line_response(BatchLine { provider, path, body }, status, answer.as_bytes());
    told.map(|told| PyBytes::new(py, &told)).map_err(|problem| errors::validation_error(py, &[problem]))
}

/// Writes the records of lines that a provider answered in a batch of its own.
#[pyclass(frozen, module = "penstock._engine")]
pub struct BatchRecorder(batch_records::BatchRecorder);

#[pymethods]
impl BatchRecorder {
    /// `prices` is what a snapshot says of prices.
    #[new]
    fn new(py: Python<'_>, prices: &[u8]) -> PyResult<Self> {
        batch_records::BatchRecorder::new(prices).map(Self).map_err(|problems| errors::validation_error(py, &problems))
    }

    /// The record of a line and its answer, with the end of its line.
    fn record<'py>(&self, py: Python<'py>, entry: &[u8], answer: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let written = self.0.write_record(entry, answer);
        written.map(|line| PyBytes::new(py, &line)).map_err(|problem| errors::validation_error(py, &[problem]))
    }

    /// What all of them cost, in nano-dollars.
    #[getter]
    fn cost(&self) -> u64 {
        self.0.total_nanodollars()
    }
}
