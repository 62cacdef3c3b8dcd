//! What the server calls when something that was waited for has happened. Never runs Python code of ours.

use std::sync::{Mutex, PoisonError};

use pyo3::{
    intern,
    prelude::*,
    types::{PyBytes, PyDict, PyString},
};
use tokio::sync::oneshot;

use crate::{reader::Reader, runtime::Jobs};

/// What is waited for.
pub enum Event {
    /// The next piece of a request's body, for the reader of this number.
    Piece(Jobs, u64),
    /// The caller's leaving.
    Gone(Py<PyAny>, oneshot::Sender<()>),
    /// Room in the way to a caller who reads slowly.
    Room(oneshot::Sender<()>),
}

/// A done-callback for one of the server's futures.
#[pyclass(frozen, module = "penstock._engine")]
pub struct Callback(Mutex<Option<Event>>);

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
            Some(Event::Piece(jobs, id)) => {
                // Where the reader is not there it was given up meanwhile.
                if let Some(reader) = jobs.waiting.take(id) {
                    reader.take(future.py(), message(future));
                }
            }
            Some(Event::Gone(proto, tell)) => match message(future) {
                // The body's end was not read before; behind it waits what we want to know.
                Some(Message { more: false, .. }) => watch(future.py(), &proto, tell),
                Some(Message { more: true, .. }) | None => drop(tell.send(())),
            },
            Some(Event::Room(tell)) => drop(tell.send(())),
            None => (),
        }
    }
}

/// A piece of a request's body.
pub struct Message<'py> {
    pub body: Option<Bound<'py, PyBytes>>,
    pub more: bool,
}

/// The message that a future of `receive` brought; `None` where the caller left or broke the framing.
fn message<'py>(future: &Bound<'py, PyAny>) -> Option<Message<'py>> {
    let py = future.py();
    let message = future.call_method0(intern!(py, "result")).ok()?;
    let message = message.cast::<PyDict>().ok()?;
    let kind = message.get_item(intern!(py, "type")).ok()??;
    if kind.cast::<PyString>().ok()?.to_str().ok()? != "http.request" {
        return None;
    }
    let body = message.get_item(intern!(py, "body")).ok()?.and_then(|body| body.cast_into::<PyBytes>().ok());
    let more = message.get_item(intern!(py, "more_body")).ok()?.is_some_and(|more| more.is_truthy().unwrap_or(false));
    Some(Message { body, more })
}

/// Has a reader wait for the next piece of a request's body.
pub fn receive_piece(py: Python<'_>, proto: &Py<PyAny>, reader: Box<Reader>) {
    let Ok(future) = receive(py, proto) else { return reader.take(py, None) };
    let (jobs, id) = (reader.jobs().clone(), reader.id());
    // Before the callback, which may be called at once.
    jobs.waiting.expect(reader, future.clone().unbind());
    wait(&future, Event::Piece(jobs, id));
}

/// Asks to be told when the caller leaves.
pub fn watch(py: Python<'_>, proto: &Py<PyAny>, tell: oneshot::Sender<()>) {
    let event = Event::Gone(proto.clone_ref(py), tell);
    match receive(py, proto) {
        Ok(future) => wait(&future, event),
        Err(_) => ended(py, event),
    }
}

/// What cannot be waited for has already ended.
fn receive<'py>(py: Python<'py>, proto: &Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
    proto.bind(py).call_method0(intern!(py, "receive"))
}

/// Adds a callback to a future of the server's.
pub fn wait(future: &Bound<'_, PyAny>, event: Event) {
    let py = future.py();
    let Ok(callback) = Bound::new(py, Callback(Mutex::new(Some(event)))) else { return };
    if future.call_method1(intern!(py, "add_done_callback"), (&callback, py.None())).is_err() {
        let event = callback.get().0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(event) = event {
            ended(py, event);
        }
    }
}

fn ended(py: Python<'_>, event: Event) {
    match event {
        Event::Piece(jobs, id) => {
            if let Some(reader) = jobs.waiting.take(id) {
                reader.take(py, None);
            }
        }
        Event::Gone(_, tell) | Event::Room(tell) => drop(tell.send(())),
    }
}
