//! HTTP/1.1 as a client: a request out, the head of its answer in, then the body as it comes, with all that is ready in one piece.

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};

use super::{AnswerHead, Owed, Shape, broke, connection::Connection, pool::Home};
use crate::upstream::response_body::Patience;
use crate::{
    error::{Error, Result},
    ingress::{
        body::{Body, Feed},
        headers::Headers,
    },
};

const MOST_FIELDS: usize = 128;
const LARGEST_HEAD: usize = 64 * 1024;
/// Longest line that may hold a chunk's size.
const LARGEST_SIZE_LINE: usize = 4 * 1024;
/// With a head comes its body where that is small; a larger buffer would stay with the connection.
const FIRST_READ: usize = 16 * 1024;

/// How an answer's body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunked,
    /// With the connection.
    Close,
}

/// The head of an answer, and what it says of the connection.
#[derive(Debug)]
pub struct Head {
    pub answer: AnswerHead,
    pub framing: Framing,
    /// The connection may be used again after the body.
    pub reusable: bool,
}

/// Writes a request and reads the head of its answer.
pub async fn exchange(connection: &mut Connection, head: &[u8], body: Body, shape: Shape) -> Result<Head> {
    let sent = match body {
        Body::Whole(bytes) => connection.write(head, &bytes).await.map_err(|error| broke(&error)),
        Body::Fed(feed, length) => send_fed(connection, head, (feed, length), shape.chunked).await,
    };
    match sent {
        Ok(()) => read_head(connection, shape.bodiless).await,
        // A provider may answer before it has read everything, and read no more: its answer says why.
        Err(broken @ Error::UpstreamBroke { .. }) => {
            let answer = read_head(connection, shape.bodiless).await;
            answer.map(|answer| Head { reusable: false, ..answer }).map_err(|_| broken)
        }
        Err(error) => Err(error),
    }
}

async fn send_fed(
    connection: &mut Connection,
    head: &[u8],
    (mut feed, length): (Box<Feed>, Option<u64>),
    chunked: bool,
) -> Result<()> {
    let mut owed = Owed(length.filter(|_| !chunked));
    connection.write(head, &[]).await.map_err(|error| broke(&error))?;
    loop {
        let piece = tokio::select! {
            biased;
            piece = feed.next() => piece,
            refusal = connection.refused() => return Err(broke(&refusal)),
        };
        let Some(piece) = piece.transpose()? else { break };
        if piece.is_empty() {
            continue;
        }
        owed.pay(&piece)?;
        let sent = if chunked {
            let size = format!("{:x}\r\n", piece.len());
            match connection.write(size.as_bytes(), &piece).await {
                Ok(()) => connection.write(b"\r\n", &[]).await,
                refused => refused,
            }
        } else {
            connection.write(&piece, &[]).await
        };
        sent.map_err(|error| broke(&error))?;
    }
    owed.end()?;
    if chunked {
        connection.write(b"0\r\n\r\n", &[]).await.map_err(|error| broke(&error))?;
    }
    Ok(())
}

/// Reads the answer to a request for another protocol: there 101 is the last word and not one before it.
pub async fn read_upgrade(connection: &mut Connection) -> Result<Head> {
    read_answer(connection, Last { bodiless: false, switches: true }).await
}

async fn read_head(connection: &mut Connection, bodiless: bool) -> Result<Head> {
    read_answer(connection, Last { bodiless, switches: false }).await
}

/// How the head of an answer is known that is the last.
#[derive(Clone, Copy)]
struct Last {
    bodiless: bool,
    switches: bool,
}

async fn read_answer(connection: &mut Connection, last: Last) -> Result<Head> {
    let mut total = 0;
    loop {
        if !connection.buffer.is_empty() {
            match parse_head(&connection.buffer, last)? {
                Some((length, _)) if length + total > LARGEST_HEAD => return Err(too_long()),
                // 1xx answers come before the one that counts; an endless row of them is bounded by their bytes.
                Some((length, None)) => {
                    total += length;
                    connection.buffer.advance(length);
                    continue;
                }
                Some((length, Some(head))) => {
                    connection.buffer.advance(length);
                    return Ok(head);
                }
                None if connection.buffer.len() + total > LARGEST_HEAD => return Err(too_long()),
                None => (),
            }
        }
        if connection.read(FIRST_READ).await.map_err(|error| broke(&error))? == 0 {
            return Err(Error::UpstreamBroke { cause: "the connection closed before an answer came".into() });
        }
    }
}

fn too_long() -> Error {
    Error::UpstreamBroke { cause: format!("the answer's head is longer than {LARGEST_HEAD} bytes") }
}

/// `None`: not complete. Otherwise its length, and the head where it is final.
fn parse_head(buffer: &[u8], Last { bodiless, switches }: Last) -> Result<Option<(usize, Option<Head>)>> {
    // Most of it is never used: to fill it first would cost more than to read what is.
    let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let read = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, buffer, &mut fields);
    let broken = |error: httparse::Error| Error::UpstreamBroke { cause: format!("not an HTTP answer: {error}") };
    let httparse::Status::Complete(length) = read.map_err(broken)? else { return Ok(None) };
    let status = parsed.code.unwrap_or_default();
    // The server in front of us takes nothing below 100 or above 999, and would take the whole process down.
    if !(100..=999).contains(&status) {
        return Err(Error::UpstreamBroke { cause: format!("status {status} is not one of HTTP") });
    }
    if status < 200 && !(switches && status == 101) {
        return Ok(Some((length, None)));
    }
    let mut headers = Headers::with_room(parsed.headers.len(), length);
    parsed.headers.iter().for_each(|field| headers.push(field.name.as_bytes(), field.value));
    let (framing, is_clear) = match status {
        _ if bodiless => (Framing::Length(0), true),
        101 | 304 => (Framing::Length(0), true),
        // What announces a body that it may not have may well send one.
        204 => (Framing::Length(0), matches!(framing(&headers), Ok((Framing::Length(0) | Framing::Close, _)))),
        _ => framing(&headers)?,
    };
    let keeps = parsed.version == Some(1) && !headers.has_token("connection", "close");
    let reusable = framing != Framing::Close && is_clear && keeps;
    Ok(Some((length, Some(Head { answer: AnswerHead { status, headers }, framing, reusable }))))
}

/// How a body ends, and whether nobody else could think that it ends elsewhere (RFC 9112 §6.3).
fn framing(headers: &Headers) -> Result<(Framing, bool)> {
    let lengths = || headers.iter().filter(|(name, _)| *name == b"content-length").map(|(_, value)| value);
    let codings = headers.iter().filter(|(name, _)| *name == b"transfer-encoding").map(|(_, value)| value);
    let codings = codings.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    // The last was once a word for nothing (RFC 2616 §3.6).
    let mut codings = codings.filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity"));
    match (codings.next(), codings.next()) {
        (None, _) => (),
        (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => {
            return Ok((Framing::Chunked, lengths().next().is_none()));
        }
        // It would be passed on without the word that says what it is.
        _ => return Err(Error::UpstreamBroke { cause: "its transfer-encoding was not asked for".into() }),
    }
    let Some(first) = lengths().next() else { return Ok((Framing::Close, true)) };
    let digits = std::str::from_utf8(first).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|text| text.parse().ok()) {
        Some(length) if lengths().all(|other| other == first) => Ok((Framing::Length(length), true)),
        _ => Err(Error::UpstreamBroke { cause: "its content-length is no length".into() }),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    /// A size line is next.
    Size,
    /// This many bytes of data are next.
    Data(u64),
    /// The line end after the data is next.
    DataEnd,
    /// Trailer lines are next, at most this many; an empty one ends the body.
    Trailer(usize),
    Done,
    /// What came next is not what has to come; all data in front of it was handed out.
    Broken,
}

/// The body of an answer, as it comes.
#[derive(Debug)]
pub struct Reading {
    connection: Option<Connection>,
    framing: Framing,
    /// What is left of a `Length` body.
    left: u64,
    chunk: Chunk,
    home: Option<Home>,
    patience: Patience,
}

impl Reading {
    pub fn new(connection: Connection, framing: Framing, home: Option<Home>, patience: Patience) -> Self {
        let left = if let Framing::Length(length) = framing { length } else { 0 };
        let connection = Some(connection);
        let mut body = Self { connection, framing, left, chunk: Chunk::Size, home, patience };
        if framing == Framing::Length(0) {
            body.finish();
        }
        body
    }

    pub fn is_done(&self) -> bool {
        self.connection.is_none()
    }

    pub fn expected(&self) -> Option<usize> {
        match self.framing {
            Framing::Length(length) => Some(length as usize),
            _ => None,
        }
    }

    pub fn patience(&mut self) -> &mut Patience {
        &mut self.patience
    }

    /// All that is ready, in one piece of at most `most` bytes that were not read before.
    pub async fn next(&mut self, most: usize) -> Option<Result<Bytes>> {
        loop {
            let connection = self.connection.as_mut()?;
            if !connection.buffer.is_empty() || self.chunk == Chunk::Broken {
                match self.decode() {
                    Ok(piece) if piece.is_empty() => (),
                    Ok(piece) => return Some(Ok(piece)),
                    Err(error) => return Some(Err(self.fail(error))),
                }
                self.connection.as_ref()?;
            }
            match self.fill(most).await {
                Ok(true) => (),
                Ok(false) => {
                    self.rest();
                    return Some(Ok(Bytes::new()));
                }
                Err(error) => return Some(Err(self.fail(error))),
            }
            self.connection.as_ref()?;
        }
    }

    /// In a silence: an empty buffer still holds the room of what was read last.
    fn rest(&mut self) {
        if let Some(connection) = self.connection.as_mut().filter(|connection| connection.buffer.is_empty()) {
            connection.buffer = BytesMut::new();
        }
    }

    /// Waits for more bytes; `false` where only a step of the wait has passed. The end of a `Close` body ends it; any
    /// other is a cut.
    async fn fill(&mut self, most: usize) -> Result<bool> {
        let Some(connection) = self.connection.as_mut() else { return Ok(true) };
        let Some(count) = self.patience.bound(connection.read(most)).await? else { return Ok(false) };
        match (count.map_err(|error| broke(&error))?, self.framing) {
            (0, Framing::Close) => self.connection = None,
            (0, _) => return Err(Error::UpstreamBroke { cause: "the connection closed before the end".into() }),
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
                let count = self.left.min(buffer.len() as u64);
                self.left -= count;
                let piece = buffer.split_to(count as usize).freeze();
                if self.left == 0 {
                    self.finish();
                }
                Ok(piece)
            }
            Framing::Chunked => {
                let piece = decode_chunks(buffer, &mut self.chunk)?;
                if self.chunk == Chunk::Done {
                    self.finish();
                }
                Ok(piece)
            }
        }
    }

    /// The connection goes home, unless it holds bytes that nobody asked for.
    fn finish(&mut self) {
        if let (Some(connection), Some(home)) = (self.connection.take(), self.home.take())
            && connection.buffer.is_empty()
        {
            home.put(connection);
        }
    }

    fn fail(&mut self, error: Error) -> Error {
        self.connection = None;
        error
    }
}

/// Takes every complete piece of data from the buffer; several are joined into one. What is wrong behind data is told
/// next time.
fn decode_chunks(buffer: &mut BytesMut, state: &mut Chunk) -> Result<Bytes> {
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    loop {
        match *state {
            Chunk::Data(0) => *state = Chunk::DataEnd,
            Chunk::Data(left) if !buffer.is_empty() => {
                let count = left.min(buffer.len() as u64);
                *state = Chunk::Data(left - count);
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
            Chunk::Broken if first.is_empty() => return Err(bad_framing()),
            Chunk::Done | Chunk::Broken | Chunk::Data(_) => break,
            Chunk::Size | Chunk::DataEnd | Chunk::Trailer(_) => match take_line(buffer) {
                Ok(None) => break,
                Ok(Some(line)) => *state = after_line(*state, &line).unwrap_or(Chunk::Broken),
                Err(Broken) => *state = Chunk::Broken,
            },
        }
    }
    Ok(if joined.is_empty() { first } else { joined.freeze() })
}

/// What is no framing.
struct Broken;

/// `None` where such a line may not stand there.
fn after_line(state: Chunk, line: &[u8]) -> Option<Chunk> {
    match state {
        Chunk::DataEnd => line.is_empty().then_some(Chunk::Size),
        Chunk::Trailer(_) if line.is_empty() => Some(Chunk::Done),
        Chunk::Trailer(left) => left.checked_sub(1).map(Chunk::Trailer),
        _ => chunk_size(line).map(|size| if size == 0 { Chunk::Trailer(MOST_FIELDS) } else { Chunk::Data(size) }),
    }
}

/// A line without its end; `None` where it is not complete.
fn take_line(buffer: &mut BytesMut) -> std::result::Result<Option<Bytes>, Broken> {
    match memchr::memchr(b'\n', buffer) {
        Some(end) if end > 0 && buffer[end - 1] == b'\r' => {
            let line = buffer.split_to(end + 1).freeze();
            Ok(Some(line.slice(..end - 1)))
        }
        Some(_) => Err(Broken),
        None if buffer.len() > LARGEST_SIZE_LINE => Err(Broken),
        None => Ok(None),
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii_end();
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn bad_framing() -> Error {
    Error::UpstreamBroke { cause: "its chunked framing is broken".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Last = Last { bodiless: false, switches: false };

    fn decode(pieces: &[&[u8]]) -> (Vec<u8>, Chunk) {
        let mut buffer = BytesMut::new();
        let (mut state, mut out) = (Chunk::Size, Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            out.extend_from_slice(&decode_chunks(&mut buffer, &mut state).unwrap());
        }
        (out, state)
    }

    #[test]
    fn joins_chunks_that_came_together() {
        let (out, state) = decode(&[b"3\r\nabc\r\n2;x=1\r\nde\r\n0\r\nt: 1\r\n\r\n"]);
        assert_eq!((out.as_slice(), state), (&b"abcde"[..], Chunk::Done));
    }

    #[test]
    fn any_split_gives_the_same_bytes() {
        let whole = b"3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n";
        for cut in 0..whole.len() {
            let (out, state) = decode(&[&whole[..cut], &whole[cut..]]);
            assert_eq!((out.as_slice(), state), (&b"abc0123456789abcdef"[..], Chunk::Done), "cut at {cut}");
        }
    }

    #[test]
    fn refuses_broken_framing() {
        for broken in [&b"x\r\n"[..], b"3\nabc\r\n", b"\r\n", b"fffffffffffffffff\r\n", b"-1\r\n"] {
            let mut buffer = BytesMut::from(broken);
            assert!(decode_chunks(&mut buffer, &mut Chunk::Size).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn what_came_in_front_of_broken_framing_is_not_lost() {
        for broken in [&b"3\r\nabc\r\n2\r\nde\r\nx\r\n"[..], b"5\r\nabcdef\r\n"] {
            let (mut buffer, mut state) = (BytesMut::from(broken), Chunk::Size);
            assert_eq!(&decode_chunks(&mut buffer, &mut state).unwrap()[..], b"abcde", "{broken:?}");
            assert!(decode_chunks(&mut buffer, &mut state).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn trailers_without_end_are_refused() {
        let trailers = |count: usize| [b"0\r\n".to_vec(), b"a: b\r\n".repeat(count), b"\r\n".to_vec()].concat();
        let (out, state) = decode(&[&trailers(MOST_FIELDS)]);
        assert_eq!((out.len(), state), (0, Chunk::Done));
        let mut buffer = BytesMut::from(&trailers(MOST_FIELDS + 1)[..]);
        assert!(decode_chunks(&mut buffer, &mut Chunk::Size).is_err());
    }

    #[test]
    fn a_status_that_would_end_the_server_is_refused() {
        for line in ["HTTP/1.1 99 Odd\r\n\r\n", "HTTP/1.1 1000 Odd\r\n\r\n", "HTTP/1.1 099 Odd\r\n\r\n"] {
            assert!(parse_head(line.as_bytes(), USUAL).is_err(), "{line}");
        }
        let (_, head) = parse_head(b"HTTP/1.1 600 Odd\r\ncontent-length: 0\r\n\r\n", USUAL).unwrap().unwrap();
        assert_eq!(head.unwrap().answer.status, 600);
    }

    #[test]
    fn a_body_ends_where_everybody_thinks_or_is_the_last_on_its_connection() {
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
            let parsed = parse_head(format!("HTTP/1.1 {status} X\r\n{fields}\r\n").as_bytes(), USUAL);
            let head = parsed.ok().map(|parsed| parsed.unwrap().1.unwrap());
            assert_eq!(head.map(|head| (head.framing, head.reusable)), ends, "{status} {fields}");
        }
    }

    #[test]
    fn two_lengths_that_differ_are_refused() {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n";
        assert!(parse_head(head, USUAL).is_err());
    }
}
