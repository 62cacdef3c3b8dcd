//! HTTP chunked transfer coding: framing a piece, and taking chunks apart as their bytes arrive.

use std::io::Write;

/// The last chunk of a chunked message.
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
pub struct BadFraming;

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

/// Takes chunks apart; the input may be split anywhere.
#[derive(Debug)]
pub struct Dechunker {
    state: State,
    left: u64,
}

impl Default for Dechunker {
    fn default() -> Self {
        Self { state: State::SizeStart, left: 0 }
    }
}

impl Dechunker {
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Hands the data to `body` and returns how many bytes of `input` belong to this message.
    pub fn feed(&mut self, input: &[u8], mut body: impl FnMut(&[u8])) -> Result<usize, BadFraming> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            if self.state == State::Data {
                let take = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len() - at);
                body(&input[at..at + take]);
                self.left -= take as u64;
                at += take;
                if self.left == 0 {
                    self.state = State::DataCr;
                }
            } else {
                self.state = self.step(input[at])?;
                at += 1;
            }
        }
        Ok(at)
    }

    fn step(&mut self, byte: u8) -> Result<State, BadFraming> {
        Ok(match (self.state, byte) {
            (State::SizeStart | State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => self.digit(byte)?,
            (State::Size, b';' | b' ' | b'\t') => State::Extension,
            (State::Size | State::Extension, b'\r') => State::SizeEnd,
            (State::Extension, other) if other != b'\n' => State::Extension,
            (State::SizeEnd, b'\n') if self.left == 0 => State::TrailerStart,
            (State::SizeEnd, b'\n') => State::Data,
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::SizeStart,
            (State::TrailerStart, b'\r') => State::TrailerEnd,
            (State::TrailerEnd, b'\n') => State::Done,
            (State::Trailer, b'\n') => State::TrailerStart,
            (State::TrailerStart | State::Trailer, _) => State::Trailer,
            _ => return Err(BadFraming),
        })
    }

    fn digit(&mut self, byte: u8) -> Result<State, BadFraming> {
        let value = u64::from((byte as char).to_digit(16).ok_or(BadFraming)?);
        self.left = self.left.checked_mul(16).and_then(|left| left.checked_add(value)).ok_or(BadFraming)?;
        Ok(State::Size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(input: &[u8], step: usize) -> Result<(Vec<u8>, usize, bool), BadFraming> {
        let (mut dechunker, mut out, mut used) = (Dechunker::default(), Vec::new(), 0);
        for part in input.chunks(step) {
            used += dechunker.feed(part, |data| out.extend_from_slice(data))?;
        }
        Ok((out, used, dechunker.is_done()))
    }

    #[test]
    fn every_split_gives_the_same_body() {
        let input = b"5\r\nhello\r\nA;x=\"y\"\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\nnext";
        for step in 1..=input.len() {
            let (body, used, done) = decode(input, step).unwrap();
            assert_eq!((body.as_slice(), used, done), (&b"hello0123456789"[..], input.len() - 4, true), "step {step}");
        }
    }

    #[test]
    fn bad_sizes_are_refused() {
        for bad in [&b"zz\r\n"[..], b"\r\n", b"1\nx", b"1\r\nxy\r\n", b"fffffffffffffffff\r\n"] {
            assert_eq!(decode(bad, 1), Err(BadFraming), "{bad:?}");
        }
    }

    #[test]
    fn a_framed_chunk_comes_apart() {
        let mut wire = Vec::new();
        frame_chunk(&mut wire, b"data: {}\n\n");
        wire.extend_from_slice(LAST_CHUNK);
        assert_eq!(decode(&wire, 3).unwrap(), (b"data: {}\n\n".to_vec(), wire.len(), true));
    }
}
