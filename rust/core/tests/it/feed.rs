//! Records on their way to the control process: in batches, each offered until it is taken, none twice.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::harness::{CHAT, Rig, chat, in_time, lines, stream, until};
use penstock_core::endpoints::management_proxy;
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::oneshot,
    task::JoinHandle,
};

/// A batch as it came.
#[derive(Debug, Clone, PartialEq)]
struct Batch {
    again: bool,
    lines: Vec<u8>,
}

/// What a taker does with a batch.
#[derive(Debug, Clone, Copy)]
enum Reply {
    Write,
    Refuse,
    /// Closes instead of answering.
    Leave,
}

/// Takes batches as the control process does, answering by a script; after its end it writes all.
struct Taker {
    folder: PathBuf,
    batches: Arc<Mutex<Vec<Batch>>>,
    connections: Arc<AtomicUsize>,
    serving: Option<JoinHandle<()>>,
}

static FOLDERS: AtomicUsize = AtomicUsize::new(0);

impl Taker {
    /// Where it will listen once it is up.
    fn down() -> Self {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("penstock-feed-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self { folder, batches: Arc::default(), connections: Arc::default(), serving: None }
    }

    fn up(script: &'static [Reply]) -> Self {
        let mut taker = Self::down();
        taker.rise(script);
        taker
    }

    fn rise(&mut self, script: &'static [Reply]) {
        let listener = UnixListener::bind(self.folder.join("records.sock")).unwrap();
        let (batches, connections) = (Arc::clone(&self.batches), Arc::clone(&self.connections));
        self.serving = Some(tokio::spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                take(io, script, &batches).await;
            }
        }));
    }

    fn batches(&self) -> Vec<Batch> {
        self.batches.lock().unwrap().clone()
    }

    fn records(&self) -> Vec<Value> {
        self.batches().iter().flat_map(|batch| lines(&batch.lines)).collect()
    }

    fn rig(&self, url: &str) -> Rig {
        Rig::with(url, |settings| settings.control_socket = Some(self.folder.join("control.sock")))
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

async fn take(mut io: UnixStream, script: &[Reply], batches: &Mutex<Vec<Batch>>) {
    let mut head = [0; 9];
    while io.read_exact(&mut head).await.is_ok() {
        let mut lines = vec![0; u64::from_le_bytes(head[..8].try_into().unwrap()) as usize];
        io.read_exact(&mut lines).await.unwrap();
        let reply = {
            let mut taken = batches.lock().unwrap();
            taken.push(Batch { again: head[8] == 1, lines });
            script.get(taken.len() - 1).copied().unwrap_or(Reply::Write)
        };
        match reply {
            Reply::Write => io.write_all(b"+").await.unwrap(),
            Reply::Refuse => io.write_all(b"-").await.unwrap(),
            Reply::Leave => return,
        }
    }
}

/// Ships until the sender is dropped or told to stop.
fn shipping(rig: &Rig) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (tell, stop) = oneshot::channel();
    (tell, tokio::spawn(management_proxy::ship_records(Arc::clone(&rig.gateway), stop)))
}

async fn all_are_shipped(rig: &Rig) {
    until("all are shipped", || rig.gateway.record_sink.outbox.unacknowledged_bytes() == 0).await;
}

#[tokio::test]
async fn records_leave_in_batches_over_one_connection() {
    let provider = Server::start().await;
    let taker = Taker::up(&[]);
    let rig = taker.rig(&provider.url());
    let (_go_on, shipping) = shipping(&rig);
    for index in 0..200 {
        rig.send(chat("mock").header("x-gateway-trace-id", &format!("t-{index}"))).await;
    }
    all_are_shipped(&rig).await;
    let traces: Vec<_> = taker.records().iter().map(|record| record["trace_id"].clone()).collect();
    assert_eq!(traces, (0..200).map(|index| format!("t-{index}")).collect::<Vec<_>>());
    assert!(taker.batches().len() < 50 && taker.batches().iter().all(|batch| !batch.again));
    assert_eq!(taker.connections.load(Ordering::Relaxed), 1);
    shipping.abort();
}

#[tokio::test]
async fn a_batch_is_offered_until_it_is_taken_and_says_so() {
    let provider = Server::start().await;
    let mut taker = Taker::down();
    let rig = taker.rig(&provider.url());
    let (_go_on, shipping) = shipping(&rig);
    for _ in 0..3 {
        rig.send(chat("mock")).await;
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(rig.gateway.record_sink.outbox.unacknowledged_bytes() > 0);
    taker.rise(&[Reply::Refuse, Reply::Leave]);
    rig.send(chat("mock")).await;
    all_are_shipped(&rig).await;
    // Refused once, lost once; then each record was taken once. It had been offered before anybody was there.
    let batches = taker.batches();
    assert!(batches.len() >= 3 && batches[0].lines == batches[1].lines && batches[1].lines == batches[2].lines);
    assert_eq!([true, true, true], [batches[0].again, batches[1].again, batches[2].again]);
    let mut ids: Vec<_> =
        batches[2..].iter().flat_map(|batch| lines(&batch.lines)).map(|line| line["id"].to_string()).collect();
    let total = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((total, ids.len(), rig.gateway.record_sink.outbox.dropped_lines()), (4, 4, 0));
    shipping.abort();
}

#[tokio::test]
async fn the_batch_in_hand_is_handed_over_before_shipping_stops() {
    let provider = Server::start().await;
    let taker = Taker::up(&[Reply::Refuse]);
    let rig = taker.rig(&provider.url());
    let (stop, shipping) = shipping(&rig);
    rig.send(chat("mock")).await;
    until("it was offered", || !taker.batches().is_empty()).await;
    stop.send(()).unwrap();
    in_time(shipping).await.unwrap();
    let offered: Vec<_> = taker.batches().iter().map(|batch| (batch.again, lines(&batch.lines).len())).collect();
    assert_eq!((offered, rig.gateway.record_sink.outbox.unacknowledged_bytes()), (vec![(false, 1), (true, 1)], 0));
}

#[tokio::test]
async fn the_last_records_are_flushed_within_a_deadline() {
    let provider = Server::start().await;
    let taker = Taker::up(&[]);
    let rig = taker.rig(&provider.url());
    rig.send(chat("mock")).await;
    drop(rig.open(stream(CHAT, "mock?chunk_ms=50")).await);
    in_time(management_proxy::flush_records(&rig.gateway, Duration::from_secs(5))).await;
    let outcomes: Vec<_> = taker.records().iter().map(|record| record["outcome"].clone()).collect();
    assert_eq!(
        (json!(outcomes), rig.gateway.record_sink.outbox.unacknowledged_bytes()),
        (json!(["complete", "aborted"]), 0)
    );

    let absent = Taker::down();
    let rig = absent.rig(&provider.url());
    rig.send(chat("mock")).await;
    in_time(management_proxy::flush_records(&rig.gateway, Duration::from_millis(120))).await;
}
