//! A provider whose every byte is chosen by the test, and responses for it.

#[path = "../../../../net/tests/it/harness/scripted.rs"]
mod server;

use std::net::SocketAddr;

use tokio::{io::AsyncWriteExt, net::TcpStream};

pub use server::{
    SSE_RESPONSE_HEAD, ScriptedServer, accepts_connection_within, encode_chunks, json_response, read_request,
    read_request_head, sse_response,
};

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

/// Sends one request on a new connection; returns the response body without its framing.
pub async fn fetch_body(addr: SocketAddr, request: Vec<u8>) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(&request).await.unwrap();
    let response = server::read_message(&mut stream).await.unwrap();
    let end = server::find_head_end(&response).unwrap();
    let head = String::from_utf8_lossy(&response[..end]).to_ascii_lowercase();
    let body = &response[end..];
    if head.contains("transfer-encoding: chunked") { decode_chunked(body) } else { body.to_vec() }
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
