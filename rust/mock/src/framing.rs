//! HTTP chunked transfer coding: encodes a chunk, and decodes chunks incrementally.

use std::io::Write;

/// Last chunk of a chunked message.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Appends `data` as one chunk.
pub fn frame_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let _ = write!(out, "{:x}\r\n", data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

#[derive(Debug, PartialEq, Eq)]
pub struct FramingError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    SizeStart,
    Size,
    Extension,
    SizeEnd,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerEnd,
    Done,
}

/// Incremental decoder of chunked bodies. The input may be split anywhere.
#[derive(Debug)]
pub struct ChunkedDecoder {
    state: State,
    remaining_bytes: u64,
}

impl Default for ChunkedDecoder {
    fn default() -> Self {
        Self { state: State::SizeStart, remaining_bytes: 0 }
    }
}

impl ChunkedDecoder {
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Passes the data to `body`. Returns the number of bytes of `input` that belong to this message.
    pub fn feed(&mut self, input: &[u8], mut body: impl FnMut(&[u8])) -> Result<usize, FramingError> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            if self.state == State::Data {
                let data_len = usize::try_from(self.remaining_bytes).unwrap_or(usize::MAX).min(input.len() - at);
                body(&input[at..at + data_len]);
                self.remaining_bytes -= data_len as u64;
                at += data_len;
                if self.remaining_bytes == 0 {
                    self.state = State::DataCr;
                }
            } else {
                self.state = self.next_state(input[at])?;
                at += 1;
            }
        }
        Ok(at)
    }

    fn next_state(&mut self, byte: u8) -> Result<State, FramingError> {
        Ok(match (self.state, byte) {
            (State::SizeStart | State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => self.add_size_digit(byte)?,
            (State::Size, b';' | b' ' | b'\t') => State::Extension,
            (State::Size | State::Extension, b'\r') => State::SizeEnd,
            (State::Extension, other) if other != b'\n' => State::Extension,
            (State::SizeEnd, b'\n') if self.remaining_bytes == 0 => State::TrailerStart,
            (State::SizeEnd, b'\n') => State::Data,
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::SizeStart,
            (State::TrailerStart, b'\r') => State::TrailerEnd,
            (State::TrailerEnd, b'\n') => State::Done,
            (State::Trailer, b'\n') => State::TrailerStart,
            (State::TrailerStart | State::Trailer, _) => State::Trailer,
            _ => return Err(FramingError),
        })
    }

    fn add_size_digit(&mut self, byte: u8) -> Result<State, FramingError> {
        let value = u64::from((byte as char).to_digit(16).ok_or(FramingError)?);
        self.remaining_bytes = self
            .remaining_bytes
            .checked_mul(16)
            .and_then(|remaining| remaining.checked_add(value))
            .ok_or(FramingError)?;
        Ok(State::Size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_in_steps(input: &[u8], step: usize) -> Result<(Vec<u8>, usize, bool), FramingError> {
        let (mut dechunker, mut out, mut used) = (ChunkedDecoder::default(), Vec::new(), 0);
        for part in input.chunks(step) {
            used += dechunker.feed(part, |data| out.extend_from_slice(data))?;
        }
        Ok((out, used, dechunker.is_done()))
    }

    #[test]
    fn every_split_gives_the_same_body() {
        let input = b"5\r\nhello\r\nA;x=\"y\"\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\nnext";
        for step in 1..=input.len() {
            let (body, used, done) = decode_in_steps(input, step).unwrap();
            assert_eq!((body.as_slice(), used, done), (&b"hello0123456789"[..], input.len() - 4, true), "step {step}");
        }
    }

    #[test]
    fn rejects_invalid_chunk_sizes() {
        for bad in [&b"zz\r\n"[..], b"\r\n", b"1\nx", b"1\r\nxy\r\n", b"fffffffffffffffff\r\n"] {
            assert_eq!(decode_in_steps(bad, 1), Err(FramingError), "{bad:?}");
        }
    }

    #[test]
    fn decodes_an_encoded_chunk() {
        let mut framed = Vec::new();
        frame_chunk(&mut framed, b"data: {}\n\n");
        framed.extend_from_slice(LAST_CHUNK);
        assert_eq!(decode_in_steps(&framed, 3).unwrap(), (b"data: {}\n\n".to_vec(), framed.len(), true));
    }
}
