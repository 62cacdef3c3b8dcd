//! The way back to the caller: an answer handed to the server, piece by piece, no faster than the caller reads.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use penstock_core::{
    answer::{Answer, Contents, Cut, Reply, Stream},
    gateway::Gateway,
    headers::Headers,
};
use pyo3::{
    intern,
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyTuple},
};
use tokio::sync::{futures::Notified, oneshot};

use crate::{
    callback::{self, Event},
    hangup,
    runtime::Job,
};

/// Requests that take longer than this are watched for a caller who leaves; before, watching costs more than it saves.
const UNWATCHED: Duration = Duration::from_millis(5);

/// One request's connection to the server.
pub struct Exchange {
    proto: Py<PyAny>,
    /// Address and port of the caller, as the server gives them.
    client: Option<Py<PyAny>>,
    /// Ends the server's own task, where there is one.
    done: Option<Py<PyAny>>,
    /// Known already where something else is told when the caller leaves.
    gone: Option<Gone>,
    /// What waits to be sent before the first piece.
    head: Option<Reply>,
    answered: bool,
}

/// Resolves when the caller has left.
pub type Gone = oneshot::Receiver<()>;

/// What ends a stream besides its own end.
struct Ends<'g> {
    gone: Gone,
    closing: Notified<'g>,
    /// Longest wait for a caller who does not read.
    stall: Duration,
}

enum Sent {
    Done,
    /// The caller reads slowly: wait for room.
    Wait(oneshot::Receiver<()>),
    Closed,
}

/// Serves one request from its body to its last byte.
pub async fn serve(gateway: &Gateway, job: Job) {
    let Job { request, mut exchange } = job;
    let mut work = std::pin::pin!(gateway.handle(request));
    let (answer, gone) = if let Ok(answer) = tokio::time::timeout(UNWATCHED, &mut work).await {
        (answer, None)
    } else {
        let mut gone = exchange.watch();
        tokio::select! {
            biased;
            answer = &mut work => (answer, Some(gone)),
            _ = &mut gone => return exchange.abandon(),
        }
    };
    let Answer { reply, body } = answer;
    match body {
        Contents::Whole(bytes) => exchange.whole(reply, &bytes),
        Contents::Stream(stream) => {
            let gone = gone.unwrap_or_else(|| exchange.watch());
            let stall = Duration::from_millis(gateway.settings.write_stall_ms);
            let closing = gateway.closing();
            exchange.stream(reply, *stream, Ends { gone, closing, stall }).await;
        }
    }
}

impl Exchange {
    pub fn new(proto: Py<PyAny>, client: Option<Py<PyAny>>, done: Option<Py<PyAny>>) -> Self {
        Self { proto, client, done, gone: None, head: None, answered: false }
    }

    /// Leaves it to others to notice that the caller leaves.
    pub fn watched(mut self, gone: Gone) -> Self {
        self.gone = Some(gone);
        self
    }

    pub fn proto(&self, py: Python<'_>) -> Py<PyAny> {
        self.proto.clone_ref(py)
    }

    fn watch(&mut self) -> Gone {
        if let Some(gone) = self.gone.take() {
            return gone;
        }
        let (tell, gone) = oneshot::channel();
        Python::attach(|py| callback::watch(py, &self.proto, tell));
        gone
    }

    /// The caller is gone: there is nobody to answer.
    fn abandon(&mut self) {
        self.answered = true;
    }

    fn whole(&mut self, reply: Reply, body: &[u8]) {
        self.head = Some(reply);
        Python::attach(|py| drop(self.send(py, body, false)));
    }

    async fn stream(&mut self, reply: Reply, mut stream: Stream, ends: Ends<'_>) {
        let Ends { mut gone, closing, stall } = ends;
        let mut closing = std::pin::pin!(closing);
        let at_once = reply.is_events();
        self.head = Some(reply);
        // Any other head leaves with the first piece, which is there.
        if at_once && Python::attach(|py| self.start(py)).is_err() {
            return;
        }
        loop {
            let piece = tokio::select! {
                biased;
                piece = stream.next() => piece,
                _ = &mut gone => return self.abandon(),
                () = &mut closing => stream.stop(),
            };
            let sent = match piece {
                Ok(Some(bytes)) if stream.is_ended() => {
                    // Its end has come too: both leave in one crossing.
                    let rest = stream.next().await;
                    self.last(&bytes, rest)
                }
                Ok(Some(bytes)) => Python::attach(|py| self.send(py, &bytes, true)),
                Ok(None) => return Python::attach(|py| drop(self.send(py, &[], false))),
                Err(Cut) => return self.cut(),
            };
            match sent {
                Sent::Done => (),
                Sent::Closed => return,
                Sent::Wait(room) => tokio::select! {
                    biased;
                    _ = room => (),
                    _ = &mut gone => return,
                    () = &mut closing => return self.cut(),
                    () = tokio::time::sleep(stall) => return self.cut(),
                },
            }
        }
    }

    fn last(&mut self, bytes: &[u8], rest: Result<Option<Bytes>, Cut>) -> Sent {
        match rest {
            Ok(None) => {
                Python::attach(|py| drop(self.send(py, bytes, false)));
                Sent::Closed
            }
            Ok(Some(more)) => {
                let joined = [bytes, &more].concat();
                Python::attach(|py| self.send(py, &joined, true))
            }
            Err(Cut) => {
                Python::attach(|py| drop(self.send(py, bytes, true)));
                self.cut();
                Sent::Closed
            }
        }
    }

    /// Ends the answer in a way that no client takes for a good end.
    fn cut(&mut self) {
        if let Some(client) = Python::attach(|py| self.client.as_ref().and_then(|client| client.extract(py).ok())) {
            hangup::hang_up(client);
        }
    }

    /// Sends the head, where it was not sent yet.
    fn start(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(reply) = self.head.take() else { return Ok(()) };
        let message = PyDict::new(py);
        message.set_item(intern!(py, "type"), intern!(py, "http.response.start"))?;
        message.set_item(intern!(py, "status"), reply.status)?;
        message.set_item(intern!(py, "headers"), fields(py, &reply.headers)?)?;
        self.answered = true;
        self.proto.bind(py).call_method1(intern!(py, "send"), (message,)).map(drop)
    }

    fn send(&mut self, py: Python<'_>, body: &[u8], more: bool) -> Sent {
        match self.try_send(py, body, more) {
            Ok(future) if more && is_pending(&future) => {
                let (tell, room) = oneshot::channel();
                callback::wait(&future, Event::Room(tell));
                Sent::Wait(room)
            }
            Ok(_) => Sent::Done,
            Err(_) => Sent::Closed,
        }
    }

    fn try_send<'py>(&mut self, py: Python<'py>, body: &[u8], more: bool) -> PyResult<Bound<'py, PyAny>> {
        self.start(py)?;
        let message = PyDict::new(py);
        message.set_item(intern!(py, "type"), intern!(py, "http.response.body"))?;
        message.set_item(intern!(py, "body"), PyBytes::new(py, body))?;
        message.set_item(intern!(py, "more_body"), more)?;
        self.proto.bind(py).call_method1(intern!(py, "send"), (message,))
    }
}

/// Whether the server has to be waited for. Its answers that are there already have a type of their own, without callbacks;
/// it is remembered, because asking an object for what it lacks costs an exception.
fn is_pending(future: &Bound<'_, PyAny>) -> bool {
    static READY: AtomicUsize = AtomicUsize::new(0);
    let kind = future.get_type().as_ptr() as usize;
    if kind == READY.load(Ordering::Relaxed) {
        return false;
    }
    let pending = future.hasattr(intern!(future.py(), "add_done_callback")).unwrap_or(false);
    if !pending {
        READY.store(kind, Ordering::Relaxed);
    }
    pending
}

fn fields<'py>(py: Python<'py>, headers: &Headers) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (name, value) in headers.iter() {
        list.append(PyTuple::new(py, [PyBytes::new(py, name), PyBytes::new(py, value)])?)?;
    }
    Ok(list)
}

impl Drop for Exchange {
    /// Whatever happened, the caller gets an answer and the server's task its end.
    fn drop(&mut self) {
        if self.answered && self.done.is_none() {
            return;
        }
        if !self.answered {
            let Answer { reply, body } = Answer::internal_error();
            if let Contents::Whole(body) = body {
                self.whole(reply, &body);
            }
        }
        if let Some(done) = self.done.take() {
            Python::attach(|py| drop(done.call0(py)));
        }
    }
}
