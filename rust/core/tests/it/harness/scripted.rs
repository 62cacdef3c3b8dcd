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
    /// Calls `play` with every connection and the number of earlier connections.
    pub async fn start<P, F>(play: P) -> Self
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
                tokio::spawn(play(stream, count.fetch_add(1, Ordering::Relaxed)));
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
                    for piece in bytes.chunks(step) {
                        stream.write_all(piece).await.unwrap();
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

/// Compresses `text` with gzip.
pub fn gzip_compress(text: &str) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packed, text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

/// Builds a 200 response whose body is already compressed with gzip.
pub fn gzip_response(kind: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: gzip\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
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

/// Sends one request on a new connection; returns the response body without its framing.
pub async fn fetch_body(addr: SocketAddr, request: Vec<u8>) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(&request).await.unwrap();
    let answer = read_message(&mut stream).await.unwrap();
    let end = find_head_end(&answer).unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let body = &answer[end..];
    if head.contains("transfer-encoding: chunked") { decode_chunked(body) } else { body.to_vec() }
}

async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
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

fn find_head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

fn decode_chunked(mut framed: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = framed.iter().position(|byte| *byte == b'\r').unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&framed[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&framed[line + 2..line + 2 + size]);
        framed = &framed[line + 4 + size..];
    }
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
    body.chunks(size).flat_map(|piece| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).collect()
}

/// Builds a complete SSE response in chunks of `size` bytes.
pub fn sse_response(body: &[u8], size: usize) -> Vec<u8> {
    [SSE_RESPONSE_HEAD.as_bytes(), &encode_chunks(body, size), b"0\r\n\r\n"].concat()
}

/// A stream of chat completions as `OpenAI` sends it, with usage.
pub const CHAT_EVENTS: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"model\":\"gpt-4o\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n\
data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"model\":\"gpt-4o\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Größe \\u00e9 \\\"usage\\\" \"},\"finish_reason\":null}],\"usage\":null}\n\n\
: a comment\n\n\
data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"model\":\"gpt-4o\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"model\":\"gpt-4o\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":12,\"total_tokens\":21}}\n\n\
data: [DONE]\n\n";

/// A stream of messages as Anthropic sends it.
pub const MESSAGE_EVENTS: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"claude\",\"content\":[],\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n\
event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n\
event: ping\ndata: {\"type\": \"ping\"}\n\n\
event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Größe\"}}\n\n\
event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":15}}\n\n\
event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
