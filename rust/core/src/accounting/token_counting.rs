//! Counts tokens where a provider did not say, and looks where it said so in a compressed answer: on a thread of its own, when the
//! last byte has gone to the caller.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};

use bytes::Bytes;
use penstock_llm::{
    api_format::Dialect,
    operation::Operation,
    tokens::{Encoding, count, count_answer, count_messages, encoding_for},
    usage::{Deltas, Usage},
};

use crate::{
    accounting::record::{Payment, Record},
    response::compressed::Packed,
};

/// Answers that may wait to be counted; those on top are guessed.
const MOST_WAITING: usize = 256;
/// Request bodies that are kept until it is known whether they must be counted, in bytes; those on top are guessed.
const MOST_KEPT: usize = 32 * 1024 * 1024;
/// Answers that end within this time are counted together: waking a thread costs more than counting most of them.
const LINGER: Duration = Duration::from_millis(5);
/// What an English token is long.
const BYTES_PER_TOKEN: usize = 4;

/// A request's body, kept while its provider has not said what it cost.
pub struct Asked {
    operation: Operation,
    body: Bytes,
    length: usize,
    kept: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Asked({} bytes)", self.length)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.body.len(), Ordering::Relaxed);
    }
}

/// What a provider answered, as far as it can be counted.
pub enum Answered {
    /// A whole answer of JSON.
    Whole(Bytes),
    /// The text of a stream.
    Deltas(Deltas),
    /// So many bytes passed and were not kept.
    Length(u64),
    /// What it cost may stand in it.
    Packed(Packed),
}

/// A record that closes when its tokens are counted.
struct Job {
    record: Record,
    operation: Operation,
    /// None where tokens are not what it costs.
    asked: Option<Asked>,
    answered: Answered,
    waiting: Arc<AtomicUsize>,
}

/// The way to the thread that counts, which starts with the first answer to count.
#[derive(Default)]
pub struct Counting {
    jobs: OnceLock<Option<SyncSender<Job>>>,
    waiting: Arc<AtomicUsize>,
    kept: Arc<AtomicUsize>,
}

impl Counting {
    /// Keeps a request's body, unless too much is kept already.
    pub fn keep(&self, operation: Operation, body: &Bytes) -> Asked {
        let length = body.len();
        let has_room = self.kept.load(Ordering::Relaxed) + length <= MOST_KEPT;
        let body = if has_room { body.clone() } else { Bytes::new() };
        self.kept.fetch_add(body.len(), Ordering::Relaxed);
        Asked { operation, body, length, kept: Arc::clone(&self.kept) }
    }

    /// For an answer that comes compressed.
    pub fn packed(&self, dialect: Dialect, is_events: bool) -> Packed {
        Packed::new(dialect, is_events, (Arc::clone(&self.kept), MOST_KEPT))
    }

    /// Counts in the background; the record, which has ended, closes then.
    pub fn submit(&self, record: Record, asked: Option<Asked>, answered: Answered) {
        // What is passed on untouched may be an operation all the same.
        let asked_for = asked.as_ref().map(|asked| asked.operation);
        let Some(operation) = asked_for.or(record.facts.operation) else { return };
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let job = Job { record, operation, asked, answered, waiting: Arc::clone(&self.waiting) };
        let refused = match self.jobs.get_or_init(start) {
            Some(jobs) => jobs.try_send(job).err().map(|refusal| match refusal {
                TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
            }),
            None => Some(job),
        };
        if let Some(job) = refused {
            job.record.metrics().counts_guessed.add(1);
            let guessed = job.guess();
            job.close(guessed);
        }
    }

    /// Answers that are not counted yet.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Waits until everything is counted.
    pub async fn settled(&self) {
        while self.waiting() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// `None` where the system has no thread to give.
fn start() -> Option<SyncSender<Job>> {
    let (jobs, queue) = sync_channel(MOST_WAITING);
    let work = std::thread::Builder::new().name("penstock-count".into()).spawn(move || work(&queue));
    work.ok().map(|_| jobs)
}

/// Until the gateway is gone.
fn work(queue: &Receiver<Job>) {
    while let Ok(first) = queue.recv() {
        std::thread::sleep(LINGER);
        std::iter::once(first).chain(queue.try_iter()).for_each(Job::work);
    }
}

impl Job {
    fn work(mut self) {
        // What would end the thread must not: nobody's tokens would be counted any more.
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.find()));
        let usage = found.unwrap_or_else(|_| self.guess());
        self.close(usage);
    }

    fn close(mut self, usage: Option<Usage>) {
        let Payment { usage: told, spent, .. } = &mut self.record.facts.paid;
        *told = match (usage, spent) {
            (Some(usage), Some(spent)) => Some(estimated_in_all(usage, *spent)),
            (usage, _) => usage,
        };
        let Self { record, waiting, .. } = self;
        drop(record);
        waiting.fetch_sub(1, Ordering::Release);
    }

    /// What the provider told, else what is counted.
    fn find(&mut self) -> Option<Usage> {
        if let Answered::Packed(packed) = &self.answered {
            let (told, answered) = packed.read(self.operation);
            if told.is_some() {
                return told;
            }
            self.answered = answered?;
        }
        if let Answered::Whole(answer) = &self.answered {
            self.record.facts.count_drawn(answer);
            if self.record.facts.owes(answer) {
                return None;
            }
        }
        let asked = self.asked.as_ref()?;
        let encoding = encoding_for(self.record.facts.model_told());
        let input = count_messages(encoding, &asked.body).unwrap_or(asked.length / BYTES_PER_TOKEN);
        Some(estimated(input, self.count_answered(encoding)))
    }

    fn count_answered(&self, encoding: Encoding) -> usize {
        match &self.answered {
            _ if self.operation.embeds() => 0,
            Answered::Whole(body) => count_answer(encoding, body).unwrap_or_default(),
            Answered::Deltas(deltas) => deltas.in_proportion(count(encoding, &deltas.text())),
            Answered::Length(length) => *length as usize / BYTES_PER_TOKEN,
            Answered::Packed(packed) => packed.length() / BYTES_PER_TOKEN,
        }
    }

    fn guess(&self) -> Option<Usage> {
        let length = match &self.answered {
            _ if self.operation.embeds() => 0,
            Answered::Whole(body) => body.len(),
            Answered::Deltas(deltas) => deltas.length(),
            Answered::Length(length) => *length as usize,
            Answered::Packed(packed) => packed.length(),
        };
        let asked = self.asked.as_ref()?;
        Some(estimated(asked.length / BYTES_PER_TOKEN, length / BYTES_PER_TOKEN))
    }
}

fn estimated_in_all(usage: Usage, before: Usage) -> Usage {
    let (input, output) = (usage.input.saturating_add(before.input), usage.output.saturating_add(before.output));
    Usage { input, output, estimated: true, ..usage }
}

fn estimated(input: usize, output: usize) -> Usage {
    Usage { input: input as u64, output: output as u64, estimated: true, ..Usage::default() }
}
