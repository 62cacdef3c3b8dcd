//! Decoder for Amazon's event stream encoding: length-prefixed frames with checksums, from chunks of any size.
//! `docs/adr/0006-aws-event-stream.md` compares it with Amazon's library.

use bytes::{Buf, Bytes, BytesMut};

/// Length of the prelude: frame length, header length and their checksum, four bytes each.
const PRELUDE_BYTES: usize = 12;
/// Checksum of the frame.
const CHECKSUM_BYTES: usize = 4;
/// Type code of a header value that is a string.
const STRING_TYPE: u8 = 7;

/// Frame with verified checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Value of `:event-type`, `:exception-type` or `:error-code`.
    pub event_name: String,
    pub is_exception: bool,
    pub payload: Bytes,
}

/// Reason why a stream cannot be decoded any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    InvalidLength,
    ChecksumMismatch,
    InvalidHeader,
}

impl FrameError {
    pub fn message(self) -> &'static str {
        match self {
            Self::InvalidLength => "a frame of the stream is too long or too short",
            Self::ChecksumMismatch => "a frame of the stream has a wrong checksum",
            Self::InvalidHeader => "a frame of the stream has a header that cannot be read",
        }
    }
}

/// Splits a stream into frames.
#[derive(Debug)]
pub struct FrameDecoder {
    max_frame_bytes: usize,
    buffer: BytesMut,
    has_failed: bool,
}

impl FrameDecoder {
    pub fn new(max_frame_bytes: usize) -> Self {
        Self { max_frame_bytes, buffer: BytesMut::new(), has_failed: false }
    }

    pub fn push_chunk(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// Returns the next complete frame. Returns `None` forever after an error.
    pub fn next_frame(&mut self) -> Option<Result<Frame, FrameError>> {
        if self.has_failed {
            return None;
        }
        let frame = self.decode_frame().transpose();
        self.has_failed = matches!(frame, Some(Err(_)));
        frame
    }

    /// Returns true if the buffer holds the beginning of a frame.
    pub fn has_partial_frame(&self) -> bool {
        !self.buffer.is_empty()
    }

    fn decode_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(prelude) = self.buffer.first_chunk::<PRELUDE_BYTES>() else { return Ok(None) };
        if crc32fast::hash(&prelude[..8]) != read_u32(&prelude[8..]) {
            return Err(FrameError::ChecksumMismatch);
        }
        let (total, headers) = (read_u32(&prelude[..4]) as usize, read_u32(&prelude[4..8]) as usize);
        if total > self.max_frame_bytes
            || total < PRELUDE_BYTES + CHECKSUM_BYTES
            || headers > total - PRELUDE_BYTES - CHECKSUM_BYTES
        {
            return Err(FrameError::InvalidLength);
        }
        if self.buffer.len() < total {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(total).freeze();
        let sum = frame.split_off(total - CHECKSUM_BYTES);
        if crc32fast::hash(&frame) != read_u32(&sum) {
            return Err(FrameError::ChecksumMismatch);
        }
        frame.advance(PRELUDE_BYTES);
        let payload = frame.split_off(headers);
        let (name, is_exception) = read_event_name(&frame).ok_or(FrameError::InvalidHeader)?;
        Ok(Some(Frame { event_name: name, is_exception, payload }))
    }
}

/// Reads the event name from the headers. Also returns true if the frame is an exception or an error.
fn read_event_name(mut headers: &[u8]) -> Option<(String, bool)> {
    let mut message_type = (String::new(), false);
    while !headers.is_empty() {
        let (length, rest) = headers.split_first()?;
        let (key, rest) = rest.split_at_checked((*length).into())?;
        let (kind, rest) = rest.split_first()?;
        let (value, rest) = split_header_value(*kind, rest)?;
        headers = rest;
        if *kind == STRING_TYPE && matches!(key, b":event-type" | b":exception-type" | b":error-code") {
            message_type = (String::from_utf8_lossy(value).into_owned(), key != b":event-type");
        }
    }
    Some(message_type)
}

fn split_header_value(kind: u8, rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = match kind {
        0 | 1 => 0,
        2 => 1,
        3 => 2,
        4 => 4,
        5 | 8 => 8,
        9 => 16,
        6 | STRING_TYPE => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            return rest.split_at_checked(u16::from_be_bytes(*length).into());
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

fn read_u32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Encodes a frame as Amazon's services do. `kind` is the message type: `event` or `exception`.
pub fn encode_frame(kind: &str, name: &str, payload: &[u8]) -> Vec<u8> {
    let mut headers = Vec::new();
    let type_header = if kind == "exception" { ":exception-type" } else { ":event-type" };
    for (key, value) in [(type_header, name), (":content-type", "application/json"), (":message-type", kind)] {
        headers.push(key.len() as u8);
        headers.extend_from_slice(key.as_bytes());
        headers.push(STRING_TYPE);
        headers.extend_from_slice(&(value.len() as u16).to_be_bytes());
        headers.extend_from_slice(value.as_bytes());
    }
    let total = PRELUDE_BYTES + headers.len() + payload.len() + CHECKSUM_BYTES;
    let mut frame = Vec::with_capacity(total);
    frame.extend_from_slice(&(total as u32).to_be_bytes());
    frame.extend_from_slice(&(headers.len() as u32).to_be_bytes());
    frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
    frame.extend_from_slice(&headers);
    frame.extend_from_slice(payload);
    frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
    frame
}

/// Edits the payload and, in place, the header bytes of a complete frame, and recomputes its checksums. Returns `None`
/// if the bytes are not one frame.
pub fn edit_frame(
    frame: &[u8],
    edit_headers: impl FnOnce(&mut [u8]),
    edit_payload: impl FnOnce(&[u8]) -> Vec<u8>,
) -> Option<Vec<u8>> {
    let content = frame.get(PRELUDE_BYTES..frame.len().checked_sub(CHECKSUM_BYTES)?)?;
    let (headers, payload) = content.split_at_checked(read_u32(frame.get(4..)?) as usize)?;
    let payload = edit_payload(payload);
    let total = PRELUDE_BYTES + headers.len() + payload.len() + CHECKSUM_BYTES;
    let mut edited = Vec::with_capacity(total);
    edited.extend_from_slice(&(total as u32).to_be_bytes());
    edited.extend_from_slice(&(headers.len() as u32).to_be_bytes());
    edited.extend_from_slice(&crc32fast::hash(&edited).to_be_bytes());
    edited.extend_from_slice(headers);
    edit_headers(&mut edited[PRELUDE_BYTES..]);
    edited.extend_from_slice(&payload);
    edited.extend_from_slice(&crc32fast::hash(&edited).to_be_bytes());
    Some(edited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_frames_with_valid_checksums() {
        let frame = encode_frame("event", "chunk-secret", br#"{"text":"a secret"}"#);
        let mask = |payload: &[u8]| String::from_utf8_lossy(payload).replace("secret", "***").into_bytes();
        let hide = |headers: &mut [u8]| {
            let at = headers.windows(6).position(|part| part == b"secret").unwrap();
            headers[at..at + 6].fill(b'*');
        };
        let edited = edit_frame(&frame, hide, mask).unwrap();
        let mut decoder = FrameDecoder::new(1024);
        decoder.push_chunk(&edited);
        let read = decoder.next_frame().unwrap().unwrap();
        assert_eq!((&*read.event_name, &*read.payload), ("chunk-******", &br#"{"text":"a ***"}"#[..]));
        assert!(decoder.next_frame().is_none() && !decoder.has_partial_frame());
        for cut in 0..16 {
            assert!(edit_frame(&frame[..cut], |_| (), <[u8]>::to_vec).is_none(), "{cut}");
        }
    }

    /// Valid test vectors of the AWS SDKs: without headers, with one header of each type, and an error.
    const VALID_VECTORS: [&[u8]; 9] = [
        b"\x00\x00\x00\x10\x00\x00\x00\x00\x05\xc2H\xeb}\x98\xc8\xff",
        b"\x00\x00\x00\x17\x00\x00\x00\x07)\x86\x01X\x04byte\x02\xff\xc2\xf8i\xdc",
        b"\x00\x00\x00\x19\x00\x00\x00\tq\x0e\x92>\x05short\x03\xff\xff\xb2|\xb6\xcc",
        b"\x00\x00\x00\x1d\x00\x00\x00\r\x83\xe3\xf0\xe7\x07integer\x04\xff\xff\xff\xff\x8b\x8e\x12\xeb",
        b"\x00\x00\x00\x1e\x00\x00\x00\x0e]J\xdb\x8d\x04long\x05\xff\xff\xff\xff\xff\xff\xff\xffK\xc22\xda",
        b"\x00\x00\x00\x1d\x00\x00\x00\x00\xfdR\x8cZ{'foo':'bar'}\xc3e96",
        b"\x00\x00\x00=\x00\x00\x00 \x07\xfd\x83\x96\x0ccontent-type\x07\x00\x10application/json{'foo':'bar'}\x8d\x9c\x08\xb1",
        b"\x00\x00\x00\x62\x00\x00\x00\x52\x03\xb5\xcb\x9c\x010\x00\x011\x01\x012\x02\x02\x013\x03\x00\x03\
          \x014\x04\x00\x00\x00\x04\x015\x05\x00\x00\x00\x00\x00\x00\x00\x05\x016\x06\x00\x05bytes\x017\x07\x00\x04utf8\
          \x018\x08\x00\x00\x00\x00\x00\x00\x00\x08\x019\x090123456789abcdef\x63\x35\x36\x71",
        b"\x00\x00\x00\x52\x00\x00\x00\x42\xbf\x23\x63\x7e\x0d:message-type\x07\x00\x05error\
          \x0b:error-code\x07\x00\x04code\x0e:error-message\x07\x00\x07message\x6b\x6c\xea\x3d",
    ];
    /// Test vectors with a corrupt payload, a corrupt header, and a corrupt header length.
    const CORRUPT_VECTORS: [&[u8]; 3] = [
        b"\x00\x00\x00\x1d\x00\x00\x00\x00\xfdR\x8cZ{'foo':'bar'\x8d\xc3e96",
        b"\x00\x00\x00=\x00\x00\x00 \x07\xfd\x83\x96\x0ccontent+type\x07\x00\x10application/json{'foo':'bar'}\x8d\x9c\x08\xb1",
        b"\x00\x00\x00=\xFF\x00\x01\x02\x07\xfd\x83\x96\x0ccontent-type\x07\x00\x10application/json{'foo':'bar'}\x8d\x9c\x08\xb1",
    ];

    #[test]
    fn decodes_valid_test_vectors_and_rejects_corrupt_ones() {
        let mut frames = FrameDecoder::new(1024);
        frames.push_chunk(&VALID_VECTORS.concat());
        for at in 0..VALID_VECTORS.len() {
            let frame = frames.next_frame().unwrap().unwrap();
            let payload = if matches!(at, 5 | 6) { "{'foo':'bar'}" } else { "" };
            let name = if at == 8 { "code" } else { "" };
            assert_eq!((&*frame.payload, &*frame.event_name, frame.is_exception), (payload.as_bytes(), name, at == 8));
        }
        assert!(frames.next_frame().is_none() && !frames.has_partial_frame());
        for vector in CORRUPT_VECTORS {
            let mut frames = FrameDecoder::new(usize::MAX);
            frames.push_chunk(vector);
            assert!(matches!(frames.next_frame(), Some(Err(_))), "{vector:?}");
        }
    }

    #[test]
    fn decodes_frames_from_chunks_of_any_size() {
        let bytes = [
            encode_frame("event", "messageStart", b"{}"),
            encode_frame("exception", "throttlingException", b"{\"a\":1}"),
        ]
        .concat();
        for size in 1..bytes.len() {
            let mut frames = FrameDecoder::new(1024);
            let mut events = Vec::new();
            for chunk in bytes.chunks(size) {
                frames.push_chunk(chunk);
                events.extend(std::iter::from_fn(|| frames.next_frame()).map(|frame| frame.unwrap().event_name));
            }
            assert_eq!(events, ["messageStart", "throttlingException"], "{size}");
        }
    }

    #[test]
    fn detects_any_flipped_bit() {
        let good = encode_frame("event", "metadata", b"{\"usage\":1}");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 4;
            let mut frames = FrameDecoder::new(1 << 20);
            frames.push_chunk(&bad);
            assert!(!matches!(frames.next_frame(), Some(Ok(_))), "{at}");
        }
    }

    #[test]
    fn rejects_a_frame_above_the_limit() {
        let mut frames = FrameDecoder::new(64);
        frames.push_chunk(&encode_frame("event", "metadata", &[b' '; 100]));
        assert_eq!(frames.next_frame(), Some(Err(FrameError::InvalidLength)));
        assert_eq!(frames.next_frame(), None);
    }
}
