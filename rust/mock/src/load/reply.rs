//! Takes one answer apart as its bytes arrive: status, framing, end.

use crate::framing::Dechunker;

const MAX_HEADERS: usize = 128;

/// Why a request counts as an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection.
    Connect,
    /// An answer, but not with 2xx.
    Status(u16),
    /// The answer ended too early or was not HTTP.
    Short,
    /// No end of the answer in time.
    Timeout,
}

#[derive(Debug)]
enum Body {
    Length(u64),
    Chunked(Dechunker),
    UntilClose,
}

#[derive(Debug, Default)]
pub struct Reply {
    pub status: u16,
    /// The server will close after this answer.
    pub close: bool,
    body: Option<Body>,
}

impl Reply {
    pub fn is_done(&self) -> bool {
        match &self.body {
            Some(Body::Length(left)) => *left == 0,
            Some(Body::Chunked(dechunker)) => dechunker.is_done(),
            Some(Body::UntilClose) | None => false,
        }
    }

    /// Takes what has come and returns how much of it is used up; the rest is to be fed again with more.
    pub fn feed(&mut self, bytes: &[u8], mut body: impl FnMut(&[u8])) -> Result<usize, Failure> {
        let mut used = 0;
        while self.body.is_none() {
            match self.read_head(&bytes[used..])? {
                0 => return Ok(used),
                len => used += len,
            }
        }
        let rest = &bytes[used..];
        match &mut self.body {
            Some(Body::Length(left)) => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                body(&rest[..take]);
                *left -= take as u64;
                Ok(used + take)
            }
            Some(Body::Chunked(dechunker)) => {
                dechunker.feed(rest, body).map(|taken| used + taken).map_err(|_| Failure::Short)
            }
            Some(Body::UntilClose) | None => {
                body(rest);
                Ok(bytes.len())
            }
        }
    }

    /// The server closed: was that the end of the answer?
    pub fn closed(&mut self) -> Result<(), Failure> {
        self.close = true;
        if matches!(self.body, Some(Body::UntilClose)) { Ok(()) } else { Err(Failure::Short) }
    }

    /// The verdict on a finished answer.
    pub fn verdict(&self) -> Result<(), Failure> {
        if (200..300).contains(&self.status) { Ok(()) } else { Err(Failure::Status(self.status)) }
    }

    fn read_head(&mut self, bytes: &[u8]) -> Result<usize, Failure> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let len = match response.parse(bytes) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Ok(0),
            Err(_) => return Err(Failure::Short),
        };
        self.status = response.code.unwrap_or(0);
        if (100..200).contains(&self.status) {
            return Ok(len);
        }
        self.close = response.version == Some(0);
        let mut body = if matches!(self.status, 204 | 304) { Body::Length(0) } else { Body::UntilClose };
        for header in response.headers.iter() {
            match header.name.len() {
                10 if header.name.eq_ignore_ascii_case("connection") => {
                    self.close = header.value.eq_ignore_ascii_case(b"close");
                }
                14 if header.name.eq_ignore_ascii_case("content-length") && !matches!(body, Body::Chunked(_)) => {
                    let text = std::str::from_utf8(header.value).map_err(|_| Failure::Short)?;
                    body = Body::Length(text.trim().parse().map_err(|_| Failure::Short)?);
                }
                17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                    body = Body::Chunked(Dechunker::default());
                }
                _ => {}
            }
        }
        self.body = Some(body);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(wire: &[u8], step: usize) -> (Reply, Vec<u8>, Result<(), Failure>) {
        let (mut reply, mut body, mut buffer) = (Reply::default(), Vec::new(), Vec::new());
        for part in wire.chunks(step) {
            buffer.extend_from_slice(part);
            match reply.feed(&buffer, |data| body.extend_from_slice(data)) {
                Ok(used) => drop(buffer.drain(..used)),
                Err(failure) => return (reply, body, Err(failure)),
            }
        }
        let end = if reply.is_done() { reply.verdict() } else { reply.closed() };
        (reply, body, end)
    }

    #[test]
    fn all_three_framings_split_anywhere() {
        let wires = [
            &b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello",
        ];
        for wire in wires {
            for step in 1..=wire.len() {
                let (_, body, end) = read(wire, step);
                assert_eq!((body.as_slice(), end), (&b"hello"[..], Ok(())), "{step}");
            }
        }
    }

    #[test]
    fn what_is_cut_is_short() {
        for wire in
            [&b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello"[..], b"HTTP/1.1 200 OK\r\n", b"what?\r\n\r\n"]
        {
            assert_eq!(read(wire, 7).2, Err(Failure::Short));
        }
        assert_eq!(read(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", 9).2, Err(Failure::Status(503)));
    }
}
