//! A provider whose every byte is chosen by the test, with the minimum of HTTP that it needs.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::sleep,
};

/// Listens on loopback and runs its script on every connection.
pub struct ScriptedServer {
    pub addr: SocketAddr,
    connection_count: Arc<AtomicUsize>,
    accept_task: JoinHandle<()>,
}

impl ScriptedServer {
    /// Calls `serve` with every connection and the number of earlier connections.
    pub async fn start<P, F>(serve: P) -> Self
    where
        P: Fn(TcpStream, usize) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve(stream, count.fetch_add(1, Ordering::Relaxed)));
            }
        });
        Self { addr, connection_count: connections, accept_task: accepting }
    }

    /// Responds to every request with these bytes and keeps the connection open.
    pub async fn start_responding(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = Arc::new(bytes.into());
        Self::start(move |mut stream, _| {
            let bytes = Arc::clone(&bytes);
            async move { while read_request(&mut stream).await.is_some() && stream.write_all(&bytes).await.is_ok() {} }
        })
        .await
    }

    /// Responds to one request per connection with these bytes, then closes the connection.
    pub async fn start_closing_after_response(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = Arc::new(bytes.into());
        Self::start(move |mut stream, _| {
            let bytes = Arc::clone(&bytes);
            async move {
                let _ = read_request(&mut stream).await;
                let _ = stream.write_all(&bytes).await;
            }
        })
        .await
    }

    /// Responds with these bytes in writes of `step` bytes, and keeps the connection open.
    pub async fn start_dripping(bytes: Vec<u8>, step: usize) -> Self {
        let bytes = Arc::new(bytes);
        Self::start(move |mut stream, _| {
            let bytes = Arc::clone(&bytes);
            async move {
                while read_request(&mut stream).await.is_some() {
                    for chunk in bytes.chunks(step) {
                        stream.write_all(chunk).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                }
            }
        })
        .await
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn connection_count(&self) -> usize {
        self.connection_count.load(Ordering::Relaxed)
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}

/// Reads the next request, head and body; `None` if the connection ends first.
pub async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    read_message(stream).await
}

/// Reads until the head of the next request is complete. Returns all bytes received so far; `None` if the connection
/// ends first.
pub async fn read_request_head(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while find_head_end(&bytes).is_none() {
        read_more(stream, &mut bytes).await?;
    }
    Some(bytes)
}

/// Returns true if a connection arrives within `moment`.
pub async fn accepts_connection_within(listener: &TcpListener, moment: Duration) -> bool {
    tokio::select! {
        _ = listener.accept() => true,
        () = sleep(moment) => false,
    }
}

/// Reads the next message, head and body; `None` if the connection ends first.
pub async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = find_head_end(&bytes) {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let is_whole = if head.contains("transfer-encoding: chunked") {
                bytes[end..].ends_with(b"0\r\n\r\n")
            } else {
                bytes.len() >= end + length.unwrap_or(0_usize)
            };
            if is_whole {
                return Some(bytes);
            }
        }
        read_more(stream, &mut bytes).await?;
    }
}

async fn read_more(stream: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> Option<()> {
    match stream.read_buf(bytes).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(()),
    }
}

/// Returns where the body begins.
pub fn find_head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Builds a complete JSON response.
pub fn json_response(status: &str, more: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{more}content-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

pub const SSE_RESPONSE_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// Encodes a body in chunks of `size` bytes, without the final empty chunk.
pub fn encode_chunks(body: &[u8], size: usize) -> Vec<u8> {
    body.chunks(size).flat_map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat()).collect()
}

/// Builds a complete SSE response in chunks of `size` bytes.
pub fn sse_response(body: &[u8], size: usize) -> Vec<u8> {
    [SSE_RESPONSE_HEAD.as_bytes(), &encode_chunks(body, size), b"0\r\n\r\n"].concat()
}
