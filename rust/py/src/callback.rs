//! What the server calls when something that was waited for has happened. Never runs Python code of ours.

use std::sync::{Mutex, PoisonError};

use pyo3::{
    intern,
    prelude::*,
    types::{PyBytes, PyDict, PyString},
};
use tokio::sync::oneshot;

use crate::{reader::BodyReader, runtime::JobRunner};

/// What is waited for.
pub enum WaitEvent {
    /// The next piece of a request's body, for the reader of this number.
    BodyChunk(JobRunner, u64),
    /// The caller's leaving.
    Disconnect(Py<PyAny>, oneshot::Sender<()>),
    /// Room in the way to a caller who reads slowly.
    Writable(oneshot::Sender<()>),
}

/// A done-callback for one of the server's futures.
#[pyclass(frozen, module = "penstock._engine")]
pub struct Callback(Mutex<Option<WaitEvent>>);

#[pymethods]
impl Callback {
    /// The event loop's way, where nothing is intercepted.
    fn __call__(&self, future: &Bound<'_, PyAny>) {
        self.fire(future);
    }
}

impl Callback {
    /// Happens at most once.
    pub fn fire(&self, future: &Bound<'_, PyAny>) {
        let event = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match event {
            Some(WaitEvent::BodyChunk(jobs, id)) => {
                // Where the reader is not there it was given up meanwhile.
                if let Some(reader) = jobs.body_readers.take_reader(id) {
                    reader.handle_chunk(future.py(), parse_message(future));
                }
            }
            Some(WaitEvent::Disconnect(proto, tell)) => match parse_message(future) {
                // The body's end was not read before; behind it waits what we want to know.
                Some(BodyMessage { has_more: false, .. }) => watch_disconnect(future.py(), &proto, tell),
                Some(BodyMessage { has_more: true, .. }) | None => drop(tell.send(())),
            },
            Some(WaitEvent::Writable(tell)) => drop(tell.send(())),
            None => (),
        }
    }
}

/// A piece of a request's body.
pub struct BodyMessage<'py> {
    pub body: Option<Bound<'py, PyBytes>>,
    pub has_more: bool,
}

/// The message that a future of `receive` brought; `None` where the caller left or broke the framing.
fn parse_message<'py>(future: &Bound<'py, PyAny>) -> Option<BodyMessage<'py>> {
    let py = future.py();
    let message = future.call_method0(intern!(py, "result")).ok()?;
    let message = message.cast::<PyDict>().ok()?;
    let kind = message.get_item(intern!(py, "type")).ok()??;
    if kind.cast::<PyString>().ok()?.to_str().ok()? != "http.request" {
        return None;
    }
    let body = message.get_item(intern!(py, "body")).ok()?.and_then(|body| body.cast_into::<PyBytes>().ok());
    let more = message.get_item(intern!(py, "more_body")).ok()?.is_some_and(|more| more.is_truthy().unwrap_or(false));
    Some(BodyMessage { body, has_more: more })
}

/// Has a reader wait for the next piece of a request's body.
pub fn receive_chunk(py: Python<'_>, proto: &Py<PyAny>, reader: Box<BodyReader>) {
    let Ok(future) = call_receive(py, proto) else { return reader.handle_chunk(py, None) };
    let (jobs, id) = (reader.job_runner().clone(), reader.id());
    // Before the callback, which may be called at once.
    jobs.body_readers.wait_for_chunk(reader, future.clone().unbind());
    wait_for_future(&future, WaitEvent::BodyChunk(jobs, id));
}

/// Asks to be told when the caller leaves.
pub fn watch_disconnect(py: Python<'_>, proto: &Py<PyAny>, tell: oneshot::Sender<()>) {
    let event = WaitEvent::Disconnect(proto.clone_ref(py), tell);
    match call_receive(py, proto) {
        Ok(future) => wait_for_future(&future, event),
        Err(_) => deliver_without_future(py, event),
    }
}

/// What cannot be waited for has already ended.
fn call_receive<'py>(py: Python<'py>, proto: &Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
    proto.bind(py).call_method0(intern!(py, "receive"))
}

/// Adds a callback to a future of the server's.
pub fn wait_for_future(future: &Bound<'_, PyAny>, event: WaitEvent) {
    let py = future.py();
    let Ok(callback) = Bound::new(py, Callback(Mutex::new(Some(event)))) else { return };
    if future.call_method1(intern!(py, "add_done_callback"), (&callback, py.None())).is_err() {
        let event = callback.get().0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(event) = event {
            deliver_without_future(py, event);
        }
    }
}

fn deliver_without_future(py: Python<'_>, event: WaitEvent) {
    match event {
        WaitEvent::BodyChunk(jobs, id) => {
            if let Some(reader) = jobs.body_readers.take_reader(id) {
                reader.handle_chunk(py, None);
            }
        }
        WaitEvent::Disconnect(_, tell) | WaitEvent::Writable(tell) => drop(tell.send(())),
    }
}
