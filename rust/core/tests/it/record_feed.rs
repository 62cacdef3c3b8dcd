//! Record shipping to the control process. Records go in batches; each batch is repeated until it is accepted, and no
//! record is accepted twice.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::harness::{
    CHAT_PATH, TestGateway, chat_request, parse_json_lines, stream_request, wait_until, with_timeout,
};
use penstock_core::endpoints::management_proxy;
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::oneshot,
    task::JoinHandle,
};

/// A received batch.
#[derive(Debug, Clone, PartialEq)]
struct RecordBatch {
    is_retry: bool,
    lines: Vec<u8>,
}

/// How the receiver reacts to a batch.
#[derive(Debug, Clone, Copy)]
enum ScriptedReply {
    Accept,
    Reject,
    /// Closes the connection without a reply.
    Disconnect,
}

/// Receives batches like the control process and replies by a script. Accepts every batch after the end of the script.
struct RecordReceiver {
    dir: PathBuf,
    batches: Arc<Mutex<Vec<RecordBatch>>>,
    connection_count: Arc<AtomicUsize>,
    serve_task: Option<JoinHandle<()>>,
}

static DIR_COUNT: AtomicUsize = AtomicUsize::new(0);

impl RecordReceiver {
    /// Creates the directory of the socket; does not listen yet.
    fn new_stopped() -> Self {
        let number = DIR_COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("penstock-feed-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Self { dir, batches: Arc::default(), connection_count: Arc::default(), serve_task: None }
    }

    fn start(script: &'static [ScriptedReply]) -> Self {
        let mut taker = Self::new_stopped();
        taker.listen(script);
        taker
    }

    fn listen(&mut self, script: &'static [ScriptedReply]) {
        let listener = UnixListener::bind(self.dir.join("records.sock")).unwrap();
        let (batches, connections) = (Arc::clone(&self.batches), Arc::clone(&self.connection_count));
        self.serve_task = Some(tokio::spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                serve_connection(io, script, &batches).await;
            }
        }));
    }

    fn received_batches(&self) -> Vec<RecordBatch> {
        self.batches.lock().unwrap().clone()
    }

    fn received_records(&self) -> Vec<Value> {
        self.received_batches().iter().flat_map(|batch| parse_json_lines(&batch.lines)).collect()
    }

    fn start_gateway(&self, url: &str) -> TestGateway {
        TestGateway::with_settings(url, |settings| settings.control_socket = Some(self.dir.join("control.sock")))
    }
}

impl Drop for RecordReceiver {
    fn drop(&mut self) {
        if let Some(serving) = &self.serve_task {
            serving.abort();
        }
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

async fn serve_connection(mut io: UnixStream, script: &[ScriptedReply], batches: &Mutex<Vec<RecordBatch>>) {
    let mut head = [0; 9];
    while io.read_exact(&mut head).await.is_ok() {
        let mut lines = vec![0; u64::from_le_bytes(head[..8].try_into().unwrap()) as usize];
        io.read_exact(&mut lines).await.unwrap();
        let reply = {
            let mut taken = batches.lock().unwrap();
            taken.push(RecordBatch { is_retry: head[8] == 1, lines });
            script.get(taken.len() - 1).copied().unwrap_or(ScriptedReply::Accept)
        };
        match reply {
            ScriptedReply::Accept => io.write_all(b"+").await.unwrap(),
            ScriptedReply::Reject => io.write_all(b"-").await.unwrap(),
            ScriptedReply::Disconnect => return,
        }
    }
}

/// Ships records until the returned sender is dropped or signals a stop.
fn start_shipping(rig: &TestGateway) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (tell, stop) = oneshot::channel();
    (tell, tokio::spawn(management_proxy::ship_records(Arc::clone(&rig.state), stop)))
}

async fn wait_until_all_shipped(rig: &TestGateway) {
    wait_until("all are shipped", || rig.state.record_sink.outbox.unacknowledged_bytes() == 0).await;
}

#[tokio::test]
async fn ships_records_in_batches_over_one_connection() {
    let provider = Server::start().await;
    let taker = RecordReceiver::start(&[]);
    let rig = taker.start_gateway(&provider.url());
    let (_go_on, shipping) = start_shipping(&rig);
    for index in 0..200 {
        rig.send(chat_request("mock").header("x-gateway-trace-id", &format!("t-{index}"))).await;
    }
    wait_until_all_shipped(&rig).await;
    let traces: Vec<_> = taker.received_records().iter().map(|record| record["trace_id"].clone()).collect();
    assert_eq!(traces, (0..200).map(|index| format!("t-{index}")).collect::<Vec<_>>());
    assert!(taker.received_batches().len() < 50 && taker.received_batches().iter().all(|batch| !batch.is_retry));
    assert_eq!(taker.connection_count.load(Ordering::Relaxed), 1);
    shipping.abort();
}

#[tokio::test]
async fn repeats_a_batch_until_accepted_and_marks_retries() {
    let provider = Server::start().await;
    let mut taker = RecordReceiver::new_stopped();
    let rig = taker.start_gateway(&provider.url());
    let (_go_on, shipping) = start_shipping(&rig);
    for _ in 0..3 {
        rig.send(chat_request("mock")).await;
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(rig.state.record_sink.outbox.unacknowledged_bytes() > 0);
    taker.listen(&[ScriptedReply::Reject, ScriptedReply::Disconnect]);
    rig.send(chat_request("mock")).await;
    wait_until_all_shipped(&rig).await;
    // The batch was offered before the receiver listened, then rejected once and lost once. After that each record was
    // accepted once.
    let batches = taker.received_batches();
    assert!(batches.len() >= 3 && batches[0].lines == batches[1].lines && batches[1].lines == batches[2].lines);
    assert_eq!([true, true, true], [batches[0].is_retry, batches[1].is_retry, batches[2].is_retry]);
    let mut ids: Vec<_> = batches[2..]
        .iter()
        .flat_map(|batch| parse_json_lines(&batch.lines))
        .map(|line| line["id"].to_string())
        .collect();
    let total = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((total, ids.len(), rig.state.record_sink.outbox.dropped_lines()), (4, 4, 0));
    shipping.abort();
}

#[tokio::test]
async fn delivers_current_batch_before_shipping_stops() {
    let provider = Server::start().await;
    let taker = RecordReceiver::start(&[ScriptedReply::Reject]);
    let rig = taker.start_gateway(&provider.url());
    let (stop, shipping) = start_shipping(&rig);
    rig.send(chat_request("mock")).await;
    wait_until("it was offered", || !taker.received_batches().is_empty()).await;
    stop.send(()).unwrap();
    with_timeout(shipping).await.unwrap();
    let offered: Vec<_> =
        taker.received_batches().iter().map(|batch| (batch.is_retry, parse_json_lines(&batch.lines).len())).collect();
    assert_eq!((offered, rig.state.record_sink.outbox.unacknowledged_bytes()), (vec![(false, 1), (true, 1)], 0));
}

#[tokio::test]
async fn flushes_last_records_within_a_deadline() {
    let provider = Server::start().await;
    let taker = RecordReceiver::start(&[]);
    let rig = taker.start_gateway(&provider.url());
    rig.send(chat_request("mock")).await;
    drop(rig.handle_request(stream_request(CHAT_PATH, "mock?chunk_ms=50")).await);
    with_timeout(management_proxy::flush_records(&rig.state, Duration::from_secs(5))).await;
    let outcomes: Vec<_> = taker.received_records().iter().map(|record| record["outcome"].clone()).collect();
    assert_eq!(
        (json!(outcomes), rig.state.record_sink.outbox.unacknowledged_bytes()),
        (json!(["complete", "aborted"]), 0)
    );

    let absent = RecordReceiver::new_stopped();
    let rig = absent.start_gateway(&provider.url());
    rig.send(chat_request("mock")).await;
    with_timeout(management_proxy::flush_records(&rig.state, Duration::from_millis(120))).await;
}
