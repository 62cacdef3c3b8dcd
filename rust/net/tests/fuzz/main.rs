//! Fuzz test of HTTP/1.1 responses, corrupted as a faulty server or an attacker would do it. The client may neither panic
//! nor hang, and must read the same from the same bytes, however they are split.
//!
//! The seed is fixed, so that a failure is reproducible. `FUZZ_ROUNDS` sets a higher number of rounds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use fastrand::Rng;
use penstock_net::{BodyFraming, IncomingResponse, Origin, OutgoingRequest, Settings, Upstream, body::Body};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
    time::timeout,
};

const SEED: u64 = 0x0050_656e_7374_6f63;
/// Corrupted variants per response.
const ROUNDS_PER_RESPONSE: usize = 60;
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

const RESPONSES: [&str; 6] = [
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{\"a\": [1, 2]}",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0a;x=1\r\n0123456789\r\n0\r\nt: 1\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\n\r\nuntil the end",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
];

/// Fragments of HTTP syntax, valid and invalid, that are inserted at any position.
const FRAGMENTS: [&str; 16] = [
    "\r\n",
    "\n",
    "\r",
    "\0",
    "\r\n\r\n",
    "0\r\n\r\n",
    "ffffffffffffffff\r\n",
    "fffffffffffffff\r\n",
    "-1\r\n",
    "transfer-encoding: chunked\r\n",
    "transfer-encoding: gzip\r\n",
    "content-length: 0\r\n",
    "content-length: 18446744073709551616\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx",
    "\u{feff}é",
];

fn corrupt(random: &mut Rng, response: &str) -> Vec<u8> {
    let mut bytes = response.as_bytes().to_vec();
    for _ in 0..random.usize(1..4) {
        let at = random.usize(..=bytes.len());
        match random.u8(..5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..(at + random.usize(1..8)).min(bytes.len()))),
            2 => bytes.splice(at..at, FRAGMENTS[random.usize(..FRAGMENTS.len())].bytes()).for_each(drop),
            3 if at < bytes.len() => bytes[at] = random.u8(..),
            _ => bytes.extend_from_within(at..),
        }
    }
    bytes
}

/// What a client read: the status, the body and whether it ended in an error. `None` if the head was invalid.
type Outcome = Option<(u16, Vec<u8>, bool)>;

/// Serves one connection: reads the request, writes the response in writes of these sizes, and closes.
async fn serve(listener: &UnixListener, response: &[u8], sizes: &mut impl FnMut() -> usize) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_buf(&mut request).await.unwrap();
    }
    let mut rest = response;
    while !rest.is_empty() {
        let (chunk, later) = rest.split_at(sizes().min(rest.len()));
        // The client may have closed the connection, because what it read was invalid.
        if stream.write_all(chunk).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
        rest = later;
    }
}

async fn read(client: &Upstream, origin: &Origin) -> Outcome {
    let request = OutgoingRequest {
        head: b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
        body: Body::empty(),
        body_framing: BodyFraming::default(),
        is_replayable: false,
    };
    let IncomingResponse { head, mut body } = client.send(origin, request).await.ok()?;
    let mut bytes = Vec::new();
    while let Some(chunk) = body.next_chunk().await {
        match chunk {
            Ok(chunk) => bytes.extend_from_slice(&chunk),
            Err(_) => return Some((head.status, bytes, true)),
        }
    }
    Some((head.status, bytes, false))
}

#[tokio::test]
async fn corrupted_responses_are_read_alike_at_every_split() {
    let path = std::env::temp_dir().join(format!("penstock-net-fuzz-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let _removed = RemoveOnDrop(path.clone());
    let origin = Origin::Unix(Arc::new(path));
    let rounds = std::env::var("FUZZ_ROUNDS").map_or(ROUNDS_PER_RESPONSE, |text| text.parse().unwrap());
    let mut random = Rng::with_seed(SEED);
    let (mut valid, mut invalid) = (0, 0);
    for response in RESPONSES {
        for _ in 0..rounds {
            let bytes = corrupt(&mut random, response);
            let mut outcomes = Vec::new();
            for largest in [1, 7, usize::MAX] {
                // A new client, so that no connection is reused.
                let client = Upstream::new(&Settings::default()).unwrap();
                let mut sizes = || if largest == 7 { random.usize(1..=largest) } else { largest };
                let serving = serve(&listener, &bytes, &mut sizes);
                // The data after the response is not read, so the server may never write all of it.
                let exchange = async {
                    tokio::select! {
                        outcome = read(&client, &origin) => outcome,
                        outcome = async { serving.await; std::future::pending().await } => outcome,
                    }
                };
                outcomes.push(
                    timeout(TEST_TIMEOUT, exchange).await.unwrap_or_else(|_| panic!("hangs: {}", bytes.escape_ascii())),
                );
            }
            assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{}: {outcomes:?}", bytes.escape_ascii());
            *(if outcomes[0].is_some() { &mut valid } else { &mut invalid }) += 1;
        }
    }
    // Both valid and invalid responses must occur, otherwise the test proves nothing.
    assert!(valid > rounds && invalid > rounds, "{valid} {invalid}");
}

struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
