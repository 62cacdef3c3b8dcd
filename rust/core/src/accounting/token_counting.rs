//! Token counting for responses without reported usage, and usage extraction from compressed responses. Runs on its own
//! thread after the last byte was sent to the client.

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
    api_format::ApiFormat,
    operation::Operation,
    stream::deltas::DeltaText,
    tokens::{Encoding, count_request_body, count_response_body, count_text, encoding_for_model},
    usage::Usage,
};

use crate::accounting::{
    compressed_response::CompressedResponse,
    record::{Billing, Record},
};

/// Maximum number of responses that are queued for counting. The usage of further ones is estimated from their length.
const MAX_QUEUED_JOBS: usize = 256;
/// Maximum bytes of request bodies that are retained until it is known if their tokens must be counted. The usage of
/// further ones is estimated from their length.
const MAX_RETAINED_BYTES: usize = 32 * 1024 * 1024;
/// Responses that end within this time are counted together, because waking a thread costs more than counting most of
/// them.
const BATCH_DELAY: Duration = Duration::from_millis(5);
/// Average length of an English token.
const BYTES_PER_TOKEN: usize = 4;

/// A request body that is retained until its provider reports usage.
pub struct CountInput {
    operation: Operation,
    body: Bytes,
    body_bytes: usize,
    retained_bytes: Arc<AtomicUsize>,
}

impl std::fmt::Debug for CountInput {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "CountInput({} bytes)", self.body_bytes)
    }
}

impl CountInput {
    /// Counts the tokens of the request. Estimates them from its length if it was not retained or is no JSON object.
    pub fn count_tokens(&self, encoding: Encoding) -> usize {
        count_request_body(encoding, &self.body).unwrap_or(self.body_bytes / BYTES_PER_TOKEN)
    }
}

impl Drop for CountInput {
    fn drop(&mut self) {
        self.retained_bytes.fetch_sub(self.body.len(), Ordering::Relaxed);
    }
}

/// Counts the tokens of a request whose process was killed: those of its body, and those of the text of its response so
/// far. Returns `None` if the operation with this id is not billed by the tokens of its text.
pub fn count_interrupted(operation_id: &str, model: &str, body: &[u8], response_text: &str) -> Option<(usize, usize)> {
    let operation = Operation::from_id(operation_id).filter(|operation| operation.has_countable_text())?;
    let encoding = encoding_for_model(model);
    let input = count_request_body(encoding, body).unwrap_or(body.len() / BYTES_PER_TOKEN);
    Some((input, if operation.is_embedding() { 0 } else { count_text(encoding, response_text) }))
}

/// The countable part of a provider's response.
pub enum CountableResponse {
    /// A complete JSON response.
    Complete(Bytes),
    /// The text of a stream.
    Deltas(DeltaText),
    /// Number of bytes that passed through without being buffered.
    ByteLength(u64),
    /// A compressed response that may contain the usage.
    Compressed(CompressedResponse),
}

/// A record that is closed after its tokens are counted.
struct CountJob {
    record: Record,
    operation: Operation,
    /// Request whose tokens are counted; `None` if the response is not billed by tokens.
    input: Option<Arc<CountInput>>,
    response: CountableResponse,
    pending_jobs: Arc<AtomicUsize>,
}

/// Handle to the counting thread, which starts with the first job.
#[derive(Default)]
pub struct TokenCounter {
    queue: OnceLock<Option<SyncSender<CountJob>>>,
    pending_jobs: Arc<AtomicUsize>,
    retained_bytes: Arc<AtomicUsize>,
}

impl TokenCounter {
    /// Retains a request body, or only its length if too many bytes are retained already.
    pub fn retain_body(&self, operation: Operation, body: &Bytes) -> Arc<CountInput> {
        let length = body.len();
        let has_room = self.retained_bytes.load(Ordering::Relaxed) + length <= MAX_RETAINED_BYTES;
        let body = if has_room { body.clone() } else { Bytes::new() };
        self.retained_bytes.fetch_add(body.len(), Ordering::Relaxed);
        let retained_bytes = Arc::clone(&self.retained_bytes);
        Arc::new(CountInput { operation, body, body_bytes: length, retained_bytes })
    }

    /// Returns a buffer for a compressed response, which shares the limit on retained bytes.
    pub fn buffer_compressed(&self, api_format: ApiFormat, is_events: bool) -> CompressedResponse {
        CompressedResponse::new(api_format, is_events, Arc::clone(&self.retained_bytes), MAX_RETAINED_BYTES)
    }

    /// Counts the tokens of a request that has ended in the background, and then closes its record.
    pub fn submit(&self, record: Record, count_input: Option<Arc<CountInput>>, countable_response: CountableResponse) {
        // A request that is passed through unchanged can still be a known operation.
        let asked_for = count_input.as_ref().map(|job_input| job_input.operation);
        let Some(operation) = asked_for.or(record.log.operation) else { return };
        self.pending_jobs.fetch_add(1, Ordering::Relaxed);
        let job = CountJob {
            record,
            operation,
            input: count_input,
            response: countable_response,
            pending_jobs: Arc::clone(&self.pending_jobs),
        };
        let refused = match self.queue.get_or_init(spawn_worker) {
            Some(jobs) => jobs.try_send(job).err().map(|refusal| match refusal {
                TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
            }),
            None => Some(job),
        };
        if let Some(job) = refused {
            job.record.metrics().token_counts_estimated_by_length.add(1);
            let guessed = job.estimate_usage();
            job.finish(guessed);
        }
    }

    /// Returns the number of responses that are not counted yet.
    pub fn pending_jobs(&self) -> usize {
        self.pending_jobs.load(Ordering::Acquire)
    }

    /// Waits until all queued responses are counted.
    pub async fn wait_until_idle(&self) {
        while self.pending_jobs() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Starts the counting thread. Returns `None` if the system cannot create one.
fn spawn_worker() -> Option<SyncSender<CountJob>> {
    let (jobs, queue) = sync_channel(MAX_QUEUED_JOBS);
    let spawned = std::thread::Builder::new().name("penstock-count".into()).spawn(move || run_worker(&queue));
    spawned.ok().map(|_| jobs)
}

/// Processes jobs until the `TokenCounter` is dropped.
fn run_worker(queue: &Receiver<CountJob>) {
    while let Ok(first) = queue.recv() {
        std::thread::sleep(BATCH_DELAY);
        std::iter::once(first).chain(queue.try_iter()).for_each(CountJob::run);
    }
}

impl CountJob {
    fn run(mut self) {
        // A panic must not end the thread, because no further tokens would be counted.
        let resolved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.resolve_usage()));
        let usage = resolved.unwrap_or_else(|_| self.estimate_usage());
        self.finish(usage);
    }

    fn finish(mut self, usage: Option<Usage>) {
        let Billing { usage: billed_usage, interrupted_usage: spent, .. } = &mut self.record.log.billing;
        *billed_usage = match (usage, spent) {
            (Some(usage), Some(spent)) => Some(sum_estimated_usage(usage, *spent)),
            (usage, _) => usage,
        };
        let Self { record, pending_jobs: waiting, .. } = self;
        drop(record);
        waiting.fetch_sub(1, Ordering::Release);
    }

    /// Returns the usage that the provider reported, otherwise a local count.
    fn resolve_usage(&mut self) -> Option<Usage> {
        if let CountableResponse::Compressed(packed) = &self.response {
            let (usage, decompressed) = packed.read_usage(self.operation);
            if usage.is_some() {
                return usage;
            }
            self.response = decompressed?;
        }
        if let CountableResponse::Complete(response) = &self.response {
            self.record.log.count_images(response);
            if self.record.log.defer_charge_if_in_progress(response) {
                return None;
            }
        }
        let count_input = self.input.as_ref()?;
        let encoding = encoding_for_model(self.record.log.resolved_model());
        Some(estimated_usage(count_input.count_tokens(encoding), self.count_response(encoding)))
    }

    fn count_response(&self, encoding: Encoding) -> usize {
        match &self.response {
            _ if self.operation.is_embedding() => 0,
            CountableResponse::Complete(body) => count_response_body(encoding, body).unwrap_or_default(),
            CountableResponse::Deltas(deltas) => {
                deltas.extrapolate_tokens(count_text(encoding, &deltas.buffered_text()))
            }
            CountableResponse::ByteLength(length) => *length as usize / BYTES_PER_TOKEN,
            CountableResponse::Compressed(packed) => packed.compressed_length() / BYTES_PER_TOKEN,
        }
    }

    fn estimate_usage(&self) -> Option<Usage> {
        let length = match &self.response {
            _ if self.operation.is_embedding() => 0,
            CountableResponse::Complete(body) => body.len(),
            CountableResponse::Deltas(deltas) => deltas.total_bytes(),
            CountableResponse::ByteLength(length) => *length as usize,
            CountableResponse::Compressed(packed) => packed.compressed_length(),
        };
        let count_input = self.input.as_ref()?;
        Some(estimated_usage(count_input.body_bytes / BYTES_PER_TOKEN, length / BYTES_PER_TOKEN))
    }
}

fn sum_estimated_usage(usage: Usage, before: Usage) -> Usage {
    let (input, output) = (usage.input.saturating_add(before.input), usage.output.saturating_add(before.output));
    Usage { input, output, is_estimated: true, ..usage }
}

fn estimated_usage(input: usize, output: usize) -> Usage {
    Usage { input: input as u64, output: output as u64, is_estimated: true, ..Usage::default() }
}
