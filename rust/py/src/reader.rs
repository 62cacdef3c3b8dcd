//! A request's body on its way in: gathered where it is small, fed to the engine in pieces where it is large.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use penstock_core::{
    body::{Body, Feeder, feed},
    gateway::Request,
    headers::Head,
};
use pyo3::prelude::*;
use tokio::sync::oneshot;

use crate::{
    callback::{Event, Message, receive, watch},
    exchange::Exchange,
    runtime::{Job, Jobs},
    scope::Expected,
};

/// Bodies up to this size cross the border in one piece.
const GATHERED: usize = 1024 * 1024;

/// Reads the body of one request.
pub struct Reader {
    proto: Py<PyAny>,
    jobs: Jobs,
    /// Until the request is handed to the engine.
    request: Option<(Head, Exchange)>,
    gathered: Vec<u8>,
    expected: Option<u64>,
    read: u64,
    feeding: Option<Feeding>,
}

/// How a large body reaches the engine.
struct Feeding {
    feeder: Feeder,
    parking: Parking,
    /// Tells that the caller left: while a body comes, only its reader can know.
    tell: oneshot::Sender<()>,
}

/// Where a reader waits while the engine has enough to do.
#[derive(Clone, Default)]
struct Parking(Arc<Mutex<Place>>);

#[derive(Default)]
enum Place {
    #[default]
    Reading,
    /// The engine asked for more before the reader was parked.
    Asked,
    Parked(Box<Reader>),
}

impl Reader {
    /// Begins to read; the request is handed over with its body, or with the first part of a large one.
    pub fn begin(py: Python<'_>, jobs: Jobs, head: Head, exchange: Exchange, expected: Expected) {
        let expected = if let Expected::Exactly(length) = expected { Some(length) } else { None };
        let proto = exchange.proto(py);
        let gathered = Vec::with_capacity(expected.map_or(0, |length| (length as usize).min(GATHERED)));
        let request = Some((head, exchange));
        let reader = Box::new(Self { proto, jobs, request, gathered, expected, read: 0, feeding: None });
        // What is known to be large is fed from the start: the engine may refuse it before it has come.
        let reader = if expected.is_some_and(|length| length > GATHERED as u64) { reader.feed() } else { reader };
        reader.more(py);
    }

    /// A piece has come, or (`None`) will never come.
    pub fn take(mut self: Box<Self>, py: Python<'_>, message: Option<Message<'_>>) {
        let Some(Message { body: Some(body), more }) = message else { return self.fail() };
        let piece = body.as_bytes();
        self.read += piece.len() as u64;
        let complete = !more || self.expected == Some(self.read);
        if self.feeding.is_none() {
            self.gathered.extend_from_slice(piece);
            if complete {
                return self.submit_whole();
            }
            if self.gathered.len() > GATHERED {
                self = self.feed();
            }
            return self.more(py);
        }
        let piece = Bytes::copy_from_slice(piece);
        self.push(py, piece, complete);
    }

    fn push(mut self: Box<Self>, py: Python<'_>, piece: Bytes, complete: bool) {
        let Some(Feeding { feeder, parking, .. }) = &self.feeding else { return };
        let parking = parking.clone();
        parking.reading();
        let wants_more = feeder.push(piece);
        if complete {
            feeder.end(true);
            if let Some(Feeding { tell, .. }) = self.feeding.take() {
                watch(py, &self.proto, tell);
            }
        } else if wants_more {
            self.more(py);
        } else if let Some(reader) = parking.park(self) {
            reader.more(py);
        }
    }

    fn more(self: Box<Self>, py: Python<'_>) {
        let proto = self.proto.clone_ref(py);
        receive(py, &proto, Event::Piece(self));
    }

    fn submit_whole(mut self: Box<Self>) {
        if let Some((head, exchange)) = self.request.take() {
            let body = Body::Whole(std::mem::take(&mut self.gathered).into());
            self.jobs.submit(Job { request: Request { head, body }, exchange });
        }
    }

    /// From here on pieces are fed.
    fn feed(mut self: Box<Self>) -> Box<Self> {
        let parking = Parking::default();
        let place = parking.clone();
        let (feeder, reading) = feed(move || place.resume());
        if !self.gathered.is_empty() {
            feeder.push(std::mem::take(&mut self.gathered).into());
        }
        let (tell, gone) = oneshot::channel();
        self.feeding = Some(Feeding { feeder, parking, tell });
        if let Some((head, exchange)) = self.request.take() {
            let body = Body::Fed(reading, self.expected);
            self.jobs.submit(Job { request: Request { head, body }, exchange: exchange.watched(gone) });
        }
        self
    }

    fn fail(self: Box<Self>) {
        // A request that was not handed over yet is, so that it is answered and has its record.
        let mut reader = if self.feeding.is_none() { self.feed() } else { self };
        if let Some(Feeding { feeder, tell, .. }) = reader.feeding.take() {
            // In this order: whoever waits for the body learns that it is broken, whoever does not that nobody waits for him.
            feeder.end(false);
            tell.send(()).ok();
        }
    }
}

impl Parking {
    fn reading(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Place::Reading;
    }

    /// Gives the reader back where the engine has asked meanwhile.
    fn park(&self, reader: Box<Reader>) -> Option<Box<Reader>> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*place, Place::Asked) {
            *place = Place::Reading;
            return Some(reader);
        }
        *place = Place::Parked(reader);
        None
    }

    fn resume(&self) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *place, Place::Asked);
        if let Place::Parked(reader) = before {
            *place = Place::Reading;
            drop(place);
            Python::attach(|py| reader.more(py));
        }
    }
}
