//! Request ledger of the mock provider. Holds one entry for each of the last 10,000 requests; cheap to write, rendered
//! on demand.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::clock;

const MAX_ENTRIES: u64 = 10_000;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    #[default]
    Open,
    Complete,
    ClientClosed,
    Fault(&'static str),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::Complete => f.write_str("complete"),
            Self::ClientClosed => f.write_str("client_closed"),
            Self::Fault(name) => write!(f, "fault:{name}"),
        }
    }
}

/// Ledger entry of one request, as tests read it. Times are Unix milliseconds with three decimals.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub id: u64,
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body_bytes: u64,
    pub model: String,
    pub started_ms: f64,
    pub first_byte_ms: Option<f64>,
    pub finished_ms: Option<f64>,
    pub bytes_sent: u64,
    pub outcome: Outcome,
}

impl Entry {
    /// Returns the first value of a header, by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header_name, _)| header_name == name).map(|(_, value)| value.as_str())
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(11))?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("method", &self.method)?;
        map.serialize_entry("path", &self.path)?;
        map.serialize_entry("headers", &join_headers(&self.headers))?;
        map.serialize_entry("body_bytes", &self.body_bytes)?;
        map.serialize_entry("model", &self.model)?;
        map.serialize_entry("started_ms", &self.started_ms)?;
        map.serialize_entry("first_byte_ms", &self.first_byte_ms)?;
        map.serialize_entry("finished_ms", &self.finished_ms)?;
        map.serialize_entry("bytes_sent", &self.bytes_sent)?;
        map.serialize_entry("outcome", &self.outcome.to_string())?;
        map.end()
    }
}

/// Returns headers as a JSON object. Joins repeated names with commas, as HTTP does.
pub fn join_headers(headers: &[(String, String)]) -> serde_json::Map<String, serde_json::Value> {
    let mut joined = serde_json::Map::new();
    for (name, value) in headers {
        let text = match joined.get(name).and_then(|existing| existing.as_str()) {
            Some(existing) => format!("{existing}, {value}"),
            None => value.clone(),
        };
        joined.insert(name.clone(), text.into());
    }
    joined
}

/// Data of a request that has been read. `head` is the raw request head.
pub struct RequestStart<'a> {
    pub head: &'a [u8],
    pub model: &'a [u8],
    pub body_bytes: u64,
    pub started_ns: u64,
}

/// Progress of one response.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    pub bytes_sent: u64,
    pub first_byte_ns: u64,
}

#[derive(Default)]
struct Slot {
    id: u64,
    head: Vec<u8>,
    model: Vec<u8>,
    body_bytes: u64,
    started_ns: u64,
    finished_ns: u64,
    progress: Progress,
    outcome: Outcome,
}

/// Ledger of the last requests. Slots reuse their buffers, so that an entry costs two short copies.
pub struct Ledger {
    next_id: AtomicU64,
    ring: Option<Mutex<Ring>>,
}

#[derive(Default)]
struct Ring {
    slots: Vec<Slot>,
    cleared_before: u64,
}

impl Ledger {
    pub fn new(enabled: bool) -> Self {
        Self { next_id: AtomicU64::new(1), ring: enabled.then(Mutex::default) }
    }

    pub fn open(&self, opening: &RequestStart<'_>) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        if let Some(mut ring) = self.lock() {
            ring.slot(id).reset(id, opening);
        }
        id
    }

    pub fn update_progress(&self, id: u64, progress: Progress) {
        if let Some(mut ring) = self.lock() {
            ring.update_slot(id, |slot| slot.progress = progress);
        }
    }

    pub fn close(&self, id: u64, progress: Progress, outcome: Outcome) {
        if let Some(mut ring) = self.lock() {
            ring.update_slot(id, |slot| {
                slot.progress = progress;
                slot.outcome = outcome;
                slot.finished_ns = clock::now_ns();
            });
        }
    }

    pub fn clear(&self) {
        if let Some(mut ring) = self.lock() {
            ring.cleared_before = self.next_id.load(Ordering::Relaxed);
        }
    }

    /// Returns the stored entries, oldest first.
    pub fn entries(&self) -> Vec<Entry> {
        let Some(ring) = self.lock() else {
            return Vec::new();
        };
        let mut slots: Vec<&Slot> = ring.slots.iter().filter(|slot| slot.id >= ring.cleared_before.max(1)).collect();
        slots.sort_unstable_by_key(|slot| slot.id);
        slots.into_iter().map(Slot::to_entry).collect()
    }

    fn lock(&self) -> Option<MutexGuard<'_, Ring>> {
        self.ring.as_ref().map(|ring| ring.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Ring {
    fn slot(&mut self, id: u64) -> &mut Slot {
        let at = (id % MAX_ENTRIES) as usize;
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, Slot::default);
        }
        &mut self.slots[at]
    }

    // Ignores the change if the slot was reused, because 10,000 newer requests may arrive during a response.
    fn update_slot(&mut self, id: u64, change: impl FnOnce(&mut Slot)) {
        let slot = self.slot(id);
        if slot.id == id {
            change(slot);
        }
    }
}

impl Slot {
    fn reset(&mut self, id: u64, opening: &RequestStart<'_>) {
        self.id = id;
        self.head.clear();
        self.head.extend_from_slice(opening.head);
        self.model.clear();
        self.model.extend_from_slice(opening.model);
        self.body_bytes = opening.body_bytes;
        self.started_ns = opening.started_ns;
        self.finished_ns = 0;
        self.progress = Progress::default();
        self.outcome = Outcome::Open;
    }

    fn to_entry(&self) -> Entry {
        let time = |ns: u64| (ns > 0).then(|| clock::unix_ms(ns));
        let (method, path, headers) = crate::request::decode_head(&self.head);
        Entry {
            id: self.id,
            method,
            path,
            headers,
            body_bytes: self.body_bytes,
            model: crate::request::unescape_json(&self.model),
            started_ms: clock::unix_ms(self.started_ns),
            first_byte_ms: time(self.progress.first_byte_ns),
            finished_ms: time(self.finished_ns),
            bytes_sent: self.progress.bytes_sent,
            outcome: self.outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nX-Tag: 1\r\nX-Tag: 2\r\n\r\n";

    fn open_entry(ledger: &Ledger) -> u64 {
        ledger.open(&RequestStart { head: HEAD, model: b"mock", body_bytes: 7, started_ns: clock::now_ns() })
    }

    #[test]
    fn entry_reports_request_and_outcome() {
        let ledger = Ledger::new(true);
        let id = open_entry(&ledger);
        assert_eq!(ledger.entries()[0].outcome, Outcome::Open);
        ledger.close(id, Progress { bytes_sent: 9, first_byte_ns: clock::now_ns() }, Outcome::Fault("cut"));
        let entry = &ledger.entries()[0];
        assert_eq!((entry.method.as_str(), entry.path.as_str(), entry.bytes_sent), ("POST", "/v1/messages", 9));
        assert_eq!(entry.header("x-tag"), Some("1"));
        let json = serde_json::to_value(entry).unwrap();
        assert_eq!(json["headers"]["x-tag"], "1, 2");
        assert_eq!(json["outcome"], "fault:cut");
        assert!(json["finished_ms"].as_f64().unwrap() >= json["started_ms"].as_f64().unwrap());
    }

    #[test]
    fn stores_only_the_latest_entries() {
        let ledger = Ledger::new(true);
        let first = open_entry(&ledger);
        for _ in 0..MAX_ENTRIES {
            open_entry(&ledger);
        }
        ledger.close(first, Progress::default(), Outcome::Complete);
        let entries = ledger.entries();
        assert_eq!((entries.len() as u64, entries[0].id), (MAX_ENTRIES, first + 1));
        assert!(entries.iter().all(|entry| entry.outcome == Outcome::Open));
    }

    #[test]
    fn can_be_cleared_and_disabled() {
        let ledger = Ledger::new(true);
        open_entry(&ledger);
        ledger.clear();
        assert!(ledger.entries().is_empty());
        open_entry(&ledger);
        assert_eq!(ledger.entries().len(), 1);
        let off = Ledger::new(false);
        open_entry(&off);
        assert!(off.entries().is_empty());
    }
}
