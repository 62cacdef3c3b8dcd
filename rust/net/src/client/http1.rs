//! HTTP/1.1 client. Writes a request, reads the head of the response, then returns the body as it arrives. Each
//! returned chunk joins all bytes that are ready.

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};

use super::message::BodyFraming;
use super::message::RemainingLength;
use super::message::ResponseHead;
use super::message::upstream_error;
use super::pool::OriginPool;
use super::response_body::ReadTimeout;
use crate::{
    body::{Body, Feed},
    connect::connection::Connection,
    error::{Error, Result},
    headers::Headers,
};

const MAX_HEADER_FIELDS: usize = 128;
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Maximum number of bytes that are buffered while a chunk size or trailer line is incomplete.
const MAX_CHUNK_SIZE_LINE_BYTES: usize = 4 * 1024;
/// Maximum number of bytes of one read while the head is incomplete. A small body arrives with the head. A larger
/// buffer would stay allocated with the connection.
const HEAD_READ_BYTES: usize = 16 * 1024;

/// How the end of a response body is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunked,
    /// The body ends when the connection closes.
    Close,
}

/// Head of a response, with the framing of its body and the reuse of the connection that follow from it.
#[derive(Debug)]
pub struct MessageHead {
    pub response: ResponseHead,
    pub framing: Framing,
    /// True if the connection can be reused after the body.
    pub is_reusable: bool,
}

/// Sends a request and reads the head of the response.
pub async fn exchange(
    connection: &mut Connection,
    head: &[u8],
    body: Body,
    body_framing: BodyFraming,
) -> Result<MessageHead> {
    let sent = match body {
        Body::Complete(bytes) => connection.write(head, &bytes).await.map_err(|error| upstream_error(&error)),
        Body::Streamed(feed, length) => {
            send_streamed_body(connection, head, feed, length, body_framing.is_chunked).await
        }
    };
    match sent {
        Ok(()) => read_head(connection, body_framing.is_bodiless).await,
        // A provider may respond and close before it has read the whole request. Its response then contains the reason.
        Err(broken @ Error::ResponseBroken { .. }) => {
            let response = read_head(connection, body_framing.is_bodiless).await;
            response.map(|response| MessageHead { is_reusable: false, ..response }).map_err(|_| broken)
        }
        Err(error) => Err(error),
    }
}

async fn send_streamed_body(
    connection: &mut Connection,
    head: &[u8],
    mut feed: Box<Feed>,
    length: Option<u64>,
    chunked: bool,
) -> Result<()> {
    let mut remaining = RemainingLength(length.filter(|_| !chunked));
    connection.write(head, &[]).await.map_err(|error| upstream_error(&error))?;
    loop {
        let chunk = tokio::select! {
            biased;
            piece = feed.next() => piece,
            refusal = connection.wait_for_rejection() => return Err(upstream_error(&refusal)),
        };
        let Some(chunk) = chunk.transpose()? else { break };
        if chunk.is_empty() {
            continue;
        }
        remaining.subtract(&chunk)?;
        let sent = if chunked {
            let size = format!("{:x}\r\n", chunk.len());
            match connection.write(size.as_bytes(), &chunk).await {
                Ok(()) => connection.write(b"\r\n", &[]).await,
                refused => refused,
            }
        } else {
            connection.write(&chunk, &[]).await
        };
        sent.map_err(|error| upstream_error(&error))?;
    }
    remaining.check_complete()?;
    if chunked {
        connection.write(b"0\r\n\r\n", &[]).await.map_err(|error| upstream_error(&error))?;
    }
    Ok(())
}

/// Reads the response to an upgrade request, for which 101 is a final status.
pub async fn read_upgrade_response(connection: &mut Connection) -> Result<MessageHead> {
    read_final_head(connection, HeadRules { is_bodiless: false, is_upgrade: true }).await
}

async fn read_head(connection: &mut Connection, bodiless: bool) -> Result<MessageHead> {
    read_final_head(connection, HeadRules { is_bodiless: bodiless, is_upgrade: false }).await
}

/// Properties of a request that determine whether a response head is final and has a body.
#[derive(Clone, Copy)]
struct HeadRules {
    is_bodiless: bool,
    is_upgrade: bool,
}

async fn read_final_head(connection: &mut Connection, last: HeadRules) -> Result<MessageHead> {
    let mut total = 0;
    loop {
        if !connection.buffer.is_empty() {
            match parse_head(&connection.buffer, last)? {
                Some((length, _)) if length + total > MAX_HEAD_BYTES => return Err(head_too_long_error()),
                // Interim 1xx responses precede the final one. Their total size is limited, so that they cannot go on
                // forever.
                Some((length, None)) => {
                    total += length;
                    connection.buffer.advance(length);
                    continue;
                }
                Some((length, Some(head))) => {
                    connection.buffer.advance(length);
                    return Ok(head);
                }
                None if connection.buffer.len() + total > MAX_HEAD_BYTES => return Err(head_too_long_error()),
                None => (),
            }
        }
        if connection.read(HEAD_READ_BYTES).await.map_err(|error| upstream_error(&error))? == 0 {
            return Err(Error::ResponseBroken { cause: "the connection closed before a response arrived".into() });
        }
    }
}

fn head_too_long_error() -> Error {
    Error::ResponseBroken { cause: format!("the head of the response is longer than {MAX_HEAD_BYTES} bytes") }
}

/// Parses a response head. `None` if it is incomplete; else its length in bytes, and the head if it is final.
fn parse_head(
    buffer: &[u8],
    HeadRules { is_bodiless: bodiless, is_upgrade: switches }: HeadRules,
) -> Result<Option<(usize, Option<MessageHead>)>> {
    // Left uninitialised: most of the array stays unused, and filling it would cost more than parsing.
    let mut fields = [const { MaybeUninit::uninit() }; MAX_HEADER_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let read = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, buffer, &mut fields);
    let broken = |error: httparse::Error| Error::ResponseBroken { cause: format!("not an HTTP response: {error}") };
    let httparse::Status::Complete(length) = read.map_err(broken)? else { return Ok(None) };
    let status = parsed.code.unwrap_or_default();
    // The gateway's HTTP server accepts only statuses from 100 to 999; any other would crash the whole process.
    if !(100..=999).contains(&status) {
        return Err(Error::ResponseBroken { cause: format!("status {status} is not an HTTP status") });
    }
    if status < 200 && !(switches && status == 101) {
        return Ok(Some((length, None)));
    }
    let mut headers = Headers::with_response_capacity(parsed.headers.len(), length);
    parsed.headers.iter().for_each(|field| headers.push(field.name.as_bytes(), field.value));
    let (framing, is_clear) = match status {
        _ if bodiless => (Framing::Length(0), true),
        101 | 304 => (Framing::Length(0), true),
        // A 204 that declares a body may actually send one, so the connection is not reused.
        204 => (Framing::Length(0), matches!(parse_framing(&headers), Ok((Framing::Length(0) | Framing::Close, _)))),
        _ => parse_framing(&headers)?,
    };
    let keeps = parsed.version == Some(1) && !headers.has_token("connection", "close");
    let reusable = framing != Framing::Close && is_clear && keeps;
    Ok(Some((length, Some(MessageHead { response: ResponseHead { status, headers }, framing, is_reusable: reusable }))))
}

/// Returns how a body ends, and true if every HTTP implementation would agree on it (RFC 9112 §6.3).
fn parse_framing(headers: &Headers) -> Result<(Framing, bool)> {
    let lengths = || headers.iter().filter(|(name, _)| *name == b"content-length").map(|(_, value)| value);
    let codings = headers.iter().filter(|(name, _)| *name == b"transfer-encoding").map(|(_, value)| value);
    let codings = codings.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    // `identity` was once a coding that means no coding (RFC 2616 §3.6).
    let mut codings = codings.filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity"));
    match (codings.next(), codings.next()) {
        (None, _) => (),
        (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => {
            return Ok((Framing::Chunked, lengths().next().is_none()));
        }
        // Rejects other codings, because the body would be forwarded without the header that names its coding.
        _ => {
            return Err(Error::ResponseBroken {
                cause: "its transfer-encoding is not supported; expected `chunked`".into(),
            });
        }
    }
    let Some(first) = lengths().next() else { return Ok((Framing::Close, true)) };
    let digits = std::str::from_utf8(first).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|text| text.parse().ok()) {
        Some(length) if lengths().all(|other| other == first) => Ok((Framing::Length(length), true)),
        _ => Err(Error::ResponseBroken { cause: "its content-length is invalid".into() }),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    /// Expects a size line.
    Size,
    /// Expects this many bytes of data.
    Data(u64),
    /// Expects the line end after the data.
    DataEnd,
    /// Expects trailer lines, at most this many. An empty line ends the body.
    Trailer(usize),
    Done,
    /// The framing is invalid. All data before the error was returned.
    Invalid,
}

/// Reads the body of a response as it arrives.
#[derive(Debug)]
pub struct Http1BodyReader {
    connection: Option<Connection>,
    framing: Framing,
    /// Remaining bytes of a `Length` body.
    remaining: u64,
    chunk_state: ChunkState,
    pool: Option<OriginPool>,
    read_timeout: ReadTimeout,
}

impl Http1BodyReader {
    pub fn new(connection: Connection, framing: Framing, pool: Option<OriginPool>, max_wait: ReadTimeout) -> Self {
        let remaining = if let Framing::Length(length) = framing { length } else { 0 };
        let connection = Some(connection);
        let mut body =
            Self { connection, framing, remaining, chunk_state: ChunkState::Size, pool, read_timeout: max_wait };
        if framing == Framing::Length(0) {
            body.finish();
        }
        body
    }

    pub fn is_done(&self) -> bool {
        self.connection.is_none()
    }

    pub fn content_length(&self) -> Option<usize> {
        match self.framing {
            Framing::Length(length) => Some(length as usize),
            _ => None,
        }
    }

    pub fn read_timeout_mut(&mut self) -> &mut ReadTimeout {
        &mut self.read_timeout
    }

    /// Returns all bytes that are ready, in one chunk. At most `max_bytes` of them are read from the connection now;
    /// others were buffered before.
    pub async fn next_chunk(&mut self, max_bytes: usize) -> Option<Result<Bytes>> {
        loop {
            let connection = self.connection.as_mut()?;
            if !connection.buffer.is_empty() || self.chunk_state == ChunkState::Invalid {
                match self.decode() {
                    Ok(chunk) if chunk.is_empty() => (),
                    Ok(chunk) => return Some(Ok(chunk)),
                    Err(error) => return Some(Err(self.fail(error))),
                }
                self.connection.as_ref()?;
            }
            match self.fill_buffer(max_bytes).await {
                Ok(true) => (),
                Ok(false) => {
                    self.release_buffer();
                    return Some(Ok(Bytes::new()));
                }
                Err(error) => return Some(Err(self.fail(error))),
            }
            self.connection.as_ref()?;
        }
    }

    /// Frees the memory of the buffer while the stream is idle. An empty buffer still holds the memory of the last
    /// read.
    fn release_buffer(&mut self) {
        if let Some(connection) = self.connection.as_mut().filter(|connection| connection.buffer.is_empty()) {
            connection.buffer = BytesMut::new();
        }
    }

    /// Waits for more bytes. Returns false if only the interval for reporting idle time has passed. A closed connection
    /// ends a body with `Framing::Close`; with any other framing it is an error.
    async fn fill_buffer(&mut self, max_bytes: usize) -> Result<bool> {
        let Some(connection) = self.connection.as_mut() else { return Ok(true) };
        let Some(count) = self.read_timeout.wait_for(connection.read(max_bytes)).await? else { return Ok(false) };
        match (count.map_err(|error| upstream_error(&error))?, self.framing) {
            (0, Framing::Close) => self.connection = None,
            (0, _) => {
                return Err(Error::ResponseBroken {
                    cause: "the connection closed before the end of the response".into(),
                });
            }
            _ => (),
        }
        Ok(true)
    }

    fn decode(&mut self) -> Result<Bytes> {
        let Some(connection) = self.connection.as_mut() else { return Ok(Bytes::new()) };
        let buffer = &mut connection.buffer;
        match self.framing {
            Framing::Close => Ok(buffer.split().freeze()),
            Framing::Length(_) => {
                let count = self.remaining.min(buffer.len() as u64);
                self.remaining -= count;
                let chunk = buffer.split_to(count as usize).freeze();
                if self.remaining == 0 {
                    self.finish();
                }
                Ok(chunk)
            }
            Framing::Chunked => {
                let chunk = decode_chunks(buffer, &mut self.chunk_state)?;
                if self.chunk_state == ChunkState::Done {
                    self.finish();
                }
                Ok(chunk)
            }
        }
    }

    /// Returns the connection to the pool, unless it holds bytes that belong to no response.
    fn finish(&mut self) {
        if let (Some(connection), Some(pool)) = (self.connection.take(), self.pool.take())
            && connection.buffer.is_empty()
        {
            pool.put_idle(connection);
        }
    }

    fn fail(&mut self, error: Error) -> Error {
        self.connection = None;
        error
    }
}

/// Takes all complete data from the buffer and joins chunks into one. If invalid framing follows the data, the next
/// call returns the error.
fn decode_chunks(buffer: &mut BytesMut, state: &mut ChunkState) -> Result<Bytes> {
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    loop {
        match *state {
            ChunkState::Data(0) => *state = ChunkState::DataEnd,
            ChunkState::Data(remaining) if !buffer.is_empty() => {
                let count = remaining.min(buffer.len() as u64);
                *state = ChunkState::Data(remaining - count);
                if first.is_empty() {
                    first = buffer.split_to(count as usize).freeze();
                } else {
                    if joined.is_empty() {
                        joined.reserve(first.len() + buffer.len());
                        joined.extend_from_slice(&first);
                    }
                    joined.extend_from_slice(&buffer[..count as usize]);
                    buffer.advance(count as usize);
                }
            }
            ChunkState::Invalid if first.is_empty() => return Err(chunked_framing_error()),
            ChunkState::Done | ChunkState::Invalid | ChunkState::Data(_) => break,
            ChunkState::Size | ChunkState::DataEnd | ChunkState::Trailer(_) => match take_line(buffer) {
                Ok(None) => break,
                Ok(Some(line)) => *state = next_state(*state, &line).unwrap_or(ChunkState::Invalid),
                Err(InvalidFraming) => *state = ChunkState::Invalid,
            },
        }
    }
    Ok(if joined.is_empty() { first } else { joined.freeze() })
}

/// Error for invalid chunked framing.
struct InvalidFraming;

/// Returns the state after a line. `None` if the line is invalid in this state.
fn next_state(state: ChunkState, line: &[u8]) -> Option<ChunkState> {
    match state {
        ChunkState::DataEnd => line.is_empty().then_some(ChunkState::Size),
        ChunkState::Trailer(_) if line.is_empty() => Some(ChunkState::Done),
        ChunkState::Trailer(remaining) => remaining.checked_sub(1).map(ChunkState::Trailer),
        _ => parse_chunk_size(line)
            .map(|size| if size == 0 { ChunkState::Trailer(MAX_HEADER_FIELDS) } else { ChunkState::Data(size) }),
    }
}

/// Takes a line without its end from the buffer. `None` if it is incomplete.
fn take_line(buffer: &mut BytesMut) -> std::result::Result<Option<Bytes>, InvalidFraming> {
    match memchr::memchr(b'\n', buffer) {
        Some(end) if end > 0 && buffer[end - 1] == b'\r' => {
            let line = buffer.split_to(end + 1).freeze();
            Ok(Some(line.slice(..end - 1)))
        }
        Some(_) => Err(InvalidFraming),
        None if buffer.len() > MAX_CHUNK_SIZE_LINE_BYTES => Err(InvalidFraming),
        None => Ok(None),
    }
}

fn parse_chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii_end();
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn chunked_framing_error() -> Error {
    Error::ResponseBroken { cause: "its chunked framing is invalid".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT_RULES: HeadRules = HeadRules { is_bodiless: false, is_upgrade: false };

    fn decode_parts(chunks: &[&[u8]]) -> (Vec<u8>, ChunkState) {
        let mut buffer = BytesMut::new();
        let (mut state, mut out) = (ChunkState::Size, Vec::new());
        for chunk in chunks {
            buffer.extend_from_slice(chunk);
            out.extend_from_slice(&decode_chunks(&mut buffer, &mut state).unwrap());
        }
        (out, state)
    }

    #[test]
    fn joins_chunks_that_arrive_together() {
        let (out, state) = decode_parts(&[b"3\r\nabc\r\n2;x=1\r\nde\r\n0\r\nt: 1\r\n\r\n"]);
        assert_eq!((out.as_slice(), state), (&b"abcde"[..], ChunkState::Done));
    }

    #[test]
    fn decodes_the_same_bytes_at_every_split() {
        let encoded = b"3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n";
        for cut in 0..encoded.len() {
            let (out, state) = decode_parts(&[&encoded[..cut], &encoded[cut..]]);
            assert_eq!((out.as_slice(), state), (&b"abc0123456789abcdef"[..], ChunkState::Done), "cut at {cut}");
        }
    }

    #[test]
    fn rejects_invalid_framing() {
        for broken in [&b"x\r\n"[..], b"3\nabc\r\n", b"\r\n", b"fffffffffffffffff\r\n", b"-1\r\n"] {
            let mut buffer = BytesMut::from(broken);
            assert!(decode_chunks(&mut buffer, &mut ChunkState::Size).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn returns_data_before_invalid_framing() {
        for broken in [&b"3\r\nabc\r\n2\r\nde\r\nx\r\n"[..], b"5\r\nabcdef\r\n"] {
            let (mut buffer, mut state) = (BytesMut::from(broken), ChunkState::Size);
            assert_eq!(&decode_chunks(&mut buffer, &mut state).unwrap()[..], b"abcde", "{broken:?}");
            assert!(decode_chunks(&mut buffer, &mut state).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn rejects_endless_trailers() {
        let trailers = |count: usize| [b"0\r\n".to_vec(), b"a: b\r\n".repeat(count), b"\r\n".to_vec()].concat();
        let (out, state) = decode_parts(&[&trailers(MAX_HEADER_FIELDS)]);
        assert_eq!((out.len(), state), (0, ChunkState::Done));
        let mut buffer = BytesMut::from(&trailers(MAX_HEADER_FIELDS + 1)[..]);
        assert!(decode_chunks(&mut buffer, &mut ChunkState::Size).is_err());
    }

    #[test]
    fn rejects_a_status_outside_of_100_to_999() {
        for line in ["HTTP/1.1 99 Odd\r\n\r\n", "HTTP/1.1 1000 Odd\r\n\r\n", "HTTP/1.1 099 Odd\r\n\r\n"] {
            assert!(parse_head(line.as_bytes(), DEFAULT_RULES).is_err(), "{line}");
        }
        let (_, head) = parse_head(b"HTTP/1.1 600 Odd\r\ncontent-length: 0\r\n\r\n", DEFAULT_RULES).unwrap().unwrap();
        assert_eq!(head.unwrap().response.status, 600);
    }

    #[test]
    fn determines_the_end_of_a_body_or_does_not_reuse_the_connection() {
        let (length, chunked) =
            (|length| Some((Framing::Length(length), true)), |clear| Some((Framing::Chunked, clear)));
        for (status, fields, ends) in [
            (200, "content-length: 3\r\n", length(3)),
            (200, "transfer-encoding: Chunked\r\n", chunked(true)),
            (200, "transfer-encoding: identity\r\ncontent-length: 3\r\n", length(3)),
            (200, "transfer-encoding: chunked\r\ncontent-length: 3\r\n", chunked(false)),
            (200, "transfer-encoding: gzip, chunked\r\n", None),
            (200, "transfer-encoding: chunked\r\ntransfer-encoding: gzip\r\n", None),
            (200, "transfer-encoding: chunked, chunked\r\n", None),
            (200, "", Some((Framing::Close, false))),
            (204, "", length(0)),
            (204, "content-length: 0\r\n", length(0)),
            (204, "content-length: 3\r\n", Some((Framing::Length(0), false))),
            (204, "transfer-encoding: chunked\r\n", Some((Framing::Length(0), false))),
            (304, "content-length: 3\r\n", length(0)),
        ] {
            let parsed = parse_head(format!("HTTP/1.1 {status} X\r\n{fields}\r\n").as_bytes(), DEFAULT_RULES);
            let head = parsed.ok().map(|parsed| parsed.unwrap().1.unwrap());
            assert_eq!(head.map(|head| (head.framing, head.is_reusable)), ends, "{status} {fields}");
        }
    }

    #[test]
    fn rejects_conflicting_content_lengths() {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n";
        assert!(parse_head(head, DEFAULT_RULES).is_err());
    }
}
