//! What the server calls when something that was waited for has happened. Never runs Python code of ours.

use std::sync::{Mutex, PoisonError};

use pyo3::{
    intern,
    prelude::*,
    types::{PyBytes, PyDict, PyString},
};
use tokio::sync::oneshot;

use crate::reader::Reader;

/// What is waited for.
pub enum Event {
    /// The next piece of a request's body.
    Piece(Box<Reader>),
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
            Some(Event::Piece(reader)) => reader.take(future.py(), message(future)),
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

/// Calls `receive` and waits for what it brings. What cannot be waited for has already ended.
pub fn receive(py: Python<'_>, proto: &Py<PyAny>, event: Event) {
    match proto.bind(py).call_method0(intern!(py, "receive")) {
        Ok(future) => wait(&future, event),
        Err(_) => ended(py, event),
    }
}

/// Asks to be told when the caller leaves.
pub fn watch(py: Python<'_>, proto: &Py<PyAny>, tell: oneshot::Sender<()>) {
    let again = proto.clone_ref(py);
    receive(py, proto, Event::Gone(again, tell));
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
        Event::Piece(reader) => reader.take(py, None),
        Event::Gone(_, tell) | Event::Room(tell) => drop(tell.send(())),
    }
}
