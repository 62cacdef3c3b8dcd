//! HTTP client for these tests. It exposes the received bytes and how the connection ended.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends where it fails")]
#![allow(dead_code, reason = "each test file is a program of its own and uses what it needs")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use penstock_mock::{Entry, Outcome, Server, ServerOptions};
use serde_json::{Value, json};

pub const CHAT_PATH: &str = "/v1/chat/completions";
pub const COMPLETIONS_PATH: &str = "/v1/completions";
pub const MESSAGES_PATH: &str = "/v1/messages";

/// How reading a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// The response is complete by its own framing.
    Complete,
    Fin,
    Reset,
    /// No more bytes arrived before the read timeout.
    TimedOut,
}

#[derive(Debug)]
pub struct Response {
    pub raw: Vec<u8>,
    pub end: ReadEnd,
    pub time_to_first_byte: Option<Duration>,
    pub elapsed: Duration,
}

impl Response {
    pub fn head(&self) -> String {
        String::from_utf8_lossy(&self.raw[..self.head_len()]).into_owned()
    }

    pub fn status(&self) -> u32 {
        self.head().split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let head = self.head();
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
    }

    /// Received part of the body, without its framing.
    pub fn body(&self) -> Vec<u8> {
        let rest = &self.raw[self.head_len()..];
        if self.header("transfer-encoding").is_some() { decode_chunked(rest).0 } else { rest.to_vec() }
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body()).unwrap()
    }

    /// `event` name, if any, and `data` of each SSE event.
    pub fn events(&self) -> Vec<(Option<String>, String)> {
        let text = self.text();
        let field = |event: &str, name: &str| {
            event.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim_start().to_owned()))
        };
        let blocks = text.split("\n\n").filter(|block| !block.is_empty());
        blocks.map(|block| (field(block, "event:"), field(block, "data:").unwrap_or_default())).collect()
    }

    /// Concatenated text of the content chunks, in any of the three API formats.
    pub fn content(&self) -> String {
        let data = self.events().into_iter().filter_map(|(_, data)| serde_json::from_str::<Value>(&data).ok());
        let text = |value: Value| {
            let locations =
                [&value["choices"][0]["delta"]["content"], &value["choices"][0]["text"], &value["delta"]["text"]];
            locations.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
        };
        data.map(text).collect()
    }

    fn head_len(&self) -> usize {
        find_bytes(&self.raw, b"\r\n\r\n").map_or(self.raw.len(), |at| at + 4)
    }

    fn is_complete(&self) -> bool {
        let length = self.head_len();
        if length == self.raw.len() && !self.raw.ends_with(b"\r\n\r\n") {
            return false;
        }
        match self.header("content-length") {
            Some(expected) => self.raw.len() - length >= expected.parse::<usize>().unwrap(),
            None => self.header("transfer-encoding").is_some() && decode_chunked(&self.raw[length..]).1,
        }
    }
}

pub fn find_bytes(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

fn decode_chunked(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Vec::new();
    while let Some(at) = find_bytes(rest, b"\r\n") {
        let size = std::str::from_utf8(&rest[..at]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        match size {
            Some(0) => return (out, rest.starts_with(b"0\r\n\r\n")),
            Some(size) if rest.len() >= at + 2 + size + 2 => {
                out.extend_from_slice(&rest[at + 2..at + 2 + size]);
                rest = &rest[at + 2 + size + 2..];
            }
            _ => break,
        }
    }
    (out, false)
}

pub fn start_server() -> Server {
    Server::start_with_options(&ServerOptions::default()).unwrap()
}

pub struct Client {
    pub stream: TcpStream,
    sent_at: Instant,
}

impl Client {
    pub fn connect(server: &Server) -> Self {
        Self::from_stream(TcpStream::connect(server.addr).unwrap())
    }

    pub fn from_stream(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, sent_at: Instant::now() }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.sent_at = Instant::now();
        self.stream.write_all(bytes).unwrap();
    }

    pub fn send_request(&mut self, method: &str, target: &str, headers: &str, body: &str) {
        let length = body.len();
        let request =
            format!("{method} {target} HTTP/1.1\r\nhost: mock\r\n{headers}content-length: {length}\r\n\r\n{body}");
        self.write(request.as_bytes());
    }

    pub fn send_chat(&mut self, path: &str, model: &str, stream: bool) {
        self.send_request("POST", path, "content-type: application/json\r\n", &chat_body(model, stream));
    }

    /// Reads one response; gives up after `max_wait` without new bytes.
    pub fn read_response(&mut self, max_wait: Duration) -> Response {
        self.read_until(max_wait, Response::is_complete)
    }

    pub fn read_until(&mut self, max_wait: Duration, enough: impl Fn(&Response) -> bool) -> Response {
        self.stream.set_read_timeout(Some(max_wait)).unwrap();
        let mut response =
            Response { raw: Vec::new(), end: ReadEnd::Complete, time_to_first_byte: None, elapsed: Duration::ZERO };
        let mut part = vec![0; 256 * 1024];
        while !enough(&response) {
            match self.stream.read(&mut part) {
                Ok(0) => response.end = ReadEnd::Fin,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => response.end = ReadEnd::Reset,
                Err(_) => response.end = ReadEnd::TimedOut,
                Ok(got) => {
                    response.time_to_first_byte.get_or_insert_with(|| self.sent_at.elapsed());
                    response.raw.extend_from_slice(&part[..got]);
                    continue;
                }
            }
            break;
        }
        response.elapsed = self.sent_at.elapsed();
        response
    }

    pub fn close(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

pub fn chat_body(model: &str, stream: bool) -> String {
    json!({"messages": [{"role": "user", "content": "hello"}], "model": model, "max_tokens": 9, "stream": stream})
        .to_string()
}

/// Sends one chat request on a new connection and returns the response.
pub fn request_chat(server: &Server, path: &str, model: &str, stream: bool) -> Response {
    let mut client = Client::connect(server);
    client.send_chat(path, model, stream);
    client.read_response(Duration::from_millis(400))
}

pub fn get(server: &Server, target: &str, headers: &str) -> Response {
    let mut client = Client::connect(server);
    client.send_request("GET", target, headers, "");
    client.read_response(Duration::from_millis(400))
}

/// Waits for the outcome of the last request and returns its ledger entry.
pub fn wait_for_last_entry(server: &Server) -> Entry {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let last = server.ledger_entries().pop();
        match last {
            Some(entry) if entry.outcome != Outcome::Open || Instant::now() > deadline => {
                return entry;
            }
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(Instant::now() < deadline + Duration::from_secs(1), "no entry in the ledger");
    }
}
