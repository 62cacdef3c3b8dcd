//! Incremental HTTP response reader: status, framing and end.

use crate::framing::ChunkedDecoder;

const MAX_HEADERS: usize = 128;

/// Reason why a request counts as an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection could not be opened.
    Connect,
    /// The response has a status other than 2xx.
    Status(u16),
    /// The response ended too early or was not HTTP.
    Truncated,
    /// The response did not end in time.
    Timeout,
}

#[derive(Debug)]
enum BodyFraming {
    Length(u64),
    Chunked(ChunkedDecoder),
    UntilClose,
}

#[derive(Debug, Default)]
pub struct ResponseReader {
    pub status: u16,
    /// True if the server closes the connection after this response.
    pub should_close: bool,
    body: Option<BodyFraming>,
}

impl ResponseReader {
    pub fn is_done(&self) -> bool {
        match &self.body {
            Some(BodyFraming::Length(remaining)) => *remaining == 0,
            Some(BodyFraming::Chunked(dechunker)) => dechunker.is_done(),
            Some(BodyFraming::UntilClose) | None => false,
        }
    }

    /// Processes received bytes. Returns how many were consumed. The caller must pass the rest again, together with
    /// more.
    pub fn feed(&mut self, bytes: &[u8], mut body: impl FnMut(&[u8])) -> Result<usize, Failure> {
        let mut used = 0;
        while self.body.is_none() {
            match self.parse_head(&bytes[used..])? {
                0 => return Ok(used),
                len => used += len,
            }
        }
        let rest = &bytes[used..];
        match &mut self.body {
            Some(BodyFraming::Length(remaining)) => {
                let body_len = usize::try_from(*remaining).unwrap_or(usize::MAX).min(rest.len());
                body(&rest[..body_len]);
                *remaining -= body_len as u64;
                Ok(used + body_len)
            }
            Some(BodyFraming::Chunked(dechunker)) => {
                dechunker.feed(rest, body).map(|consumed| used + consumed).map_err(|_| Failure::Truncated)
            }
            Some(BodyFraming::UntilClose) | None => {
                body(rest);
                Ok(bytes.len())
            }
        }
    }

    /// Handles the end of the connection. Returns an error unless the response ends with the connection.
    pub fn handle_close(&mut self) -> Result<(), Failure> {
        self.should_close = true;
        if matches!(self.body, Some(BodyFraming::UntilClose)) { Ok(()) } else { Err(Failure::Truncated) }
    }

    /// Returns an error if the status is not 2xx.
    pub fn check_status(&self) -> Result<(), Failure> {
        if (200..300).contains(&self.status) { Ok(()) } else { Err(Failure::Status(self.status)) }
    }

    fn parse_head(&mut self, bytes: &[u8]) -> Result<usize, Failure> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let len = match response.parse(bytes) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Ok(0),
            Err(_) => return Err(Failure::Truncated),
        };
        self.status = response.code.unwrap_or(0);
        if (100..200).contains(&self.status) {
            return Ok(len);
        }
        self.should_close = response.version == Some(0);
        let mut body = if matches!(self.status, 204 | 304) { BodyFraming::Length(0) } else { BodyFraming::UntilClose };
        for header in response.headers.iter() {
            match header.name.len() {
                10 if header.name.eq_ignore_ascii_case("connection") => {
                    self.should_close = header.value.eq_ignore_ascii_case(b"close");
                }
                14 if header.name.eq_ignore_ascii_case("content-length")
                    && !matches!(body, BodyFraming::Chunked(_)) =>
                {
                    let text = std::str::from_utf8(header.value).map_err(|_| Failure::Truncated)?;
                    body = BodyFraming::Length(text.trim().parse().map_err(|_| Failure::Truncated)?);
                }
                17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                    body = BodyFraming::Chunked(ChunkedDecoder::default());
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

    fn read_in_steps(bytes: &[u8], step: usize) -> (ResponseReader, Vec<u8>, Result<(), Failure>) {
        let (mut reply, mut body, mut buffer) = (ResponseReader::default(), Vec::new(), Vec::new());
        for part in bytes.chunks(step) {
            buffer.extend_from_slice(part);
            match reply.feed(&buffer, |data| body.extend_from_slice(data)) {
                Ok(used) => drop(buffer.drain(..used)),
                Err(failure) => return (reply, body, Err(failure)),
            }
        }
        let end = if reply.is_done() { reply.check_status() } else { reply.handle_close() };
        (reply, body, end)
    }

    #[test]
    fn reads_all_framings_at_any_split() {
        let responses = [
            &b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello",
        ];
        for bytes in responses {
            for step in 1..=bytes.len() {
                let (_, body, end) = read_in_steps(bytes, step);
                assert_eq!((body.as_slice(), end), (&b"hello"[..], Ok(())), "{step}");
            }
        }
    }

    #[test]
    fn reports_truncated_responses() {
        for bytes in
            [&b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello"[..], b"HTTP/1.1 200 OK\r\n", b"what?\r\n\r\n"]
        {
            assert_eq!(read_in_steps(bytes, 7).2, Err(Failure::Truncated));
        }
        assert_eq!(read_in_steps(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", 9).2, Err(Failure::Status(503)));
    }
}
