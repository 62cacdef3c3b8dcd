//! Frames of the spool: their encoding, and a reader that stops at a torn or damaged frame.
//!
//! A segment begins with `PSPOOL01`, a `u32` length and a JSON header of that length. Each frame is a `u32` payload
//! length, a `u32` CRC-32 over everything after it, and the content. The content is `u8` kind, `u8` flags, two zero
//! bytes, a 16-byte record id and the payload. Integers are little-endian.

use uuid::Uuid;

/// First bytes of every segment.
pub const SEGMENT_MAGIC: [u8; 8] = *b"PSPOOL01";
/// Length of a frame without its payload.
pub const FRAME_HEADER_BYTES: usize = 28;
/// Maximum payload of a frame. A reader treats a longer one as damaged before it allocates anything.
pub const MAX_PAYLOAD_BYTES: usize = 64 * 1024 * 1024;
/// Maximum length of the JSON header of a segment.
pub const MAX_SEGMENT_HEADER_BYTES: usize = 64 * 1024;

/// Payloads up to this size are copied behind their header. Longer ones are written from their own memory, without a
/// copy.
const MAX_COPIED_BYTES: usize = 4 * 1024;
/// Maximum number of payloads that one write takes without a copy. Further ones are copied.
const MAX_BORROWED: usize = 4;

/// Flag of a body that was cut at the limit for bodies.
pub const FLAG_CUT: u8 = 1;
/// Flag of a record whose bodies were left out, because the spool was nearly full or could not be written.
pub const FLAG_DROPPED: u8 = 2;
/// Flag of the record of a request without a valid key.
pub const FLAG_REFUSED: u8 = 4;
/// Flag of a record that was written before its usage was known. An amendment follows, unless no usage is found.
pub const FLAG_AMENDMENT_FOLLOWS: u8 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    Begin = 1,
    ClientRequest = 2,
    UpstreamRequest = 3,
    UpstreamResponse = 4,
    ClientResponse = 5,
    End = 6,
    Amend = 7,
    UpstreamHead = 10,
}

/// Kinds of frames that contain parts of bodies, or the head of the request to the provider.
pub const BODY_KINDS: [u8; 5] = [
    FrameKind::ClientRequest as u8,
    FrameKind::UpstreamRequest as u8,
    FrameKind::UpstreamResponse as u8,
    FrameKind::ClientResponse as u8,
    FrameKind::UpstreamHead as u8,
];
/// Kind of a frame with the record of a request that did not pass through this gateway. The control process writes it.
pub const EXTERNAL_LOG_KIND: u8 = 9;

/// Frames that are encoded for a single write.
pub struct FrameBatch<'e, 'b> {
    id: Uuid,
    encoded: &'e mut Vec<u8>,
    /// Payloads that are written without a copy, each with its position in `encoded`.
    borrowed: [(usize, &'b [u8]); MAX_BORROWED],
    borrowed_count: usize,
    keeps_bodies: bool,
}

impl<'e, 'b> FrameBatch<'e, 'b> {
    /// Creates an empty batch that encodes into `encoded`. Without `keeps_bodies` it ignores body frames.
    pub fn new(id: Uuid, encoded: &'e mut Vec<u8>, keeps_bodies: bool) -> Self {
        Self { id, encoded, borrowed: [(0, &[]); MAX_BORROWED], borrowed_count: 0, keeps_bodies }
    }

    /// Returns false if body frames are ignored.
    pub fn keeps_bodies(&self) -> bool {
        self.keeps_bodies
    }

    /// Adds a frame whose payload `write` appends.
    pub fn add_json(&mut self, kind: FrameKind, flags: u8, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.encoded.len();
        self.encoded.resize(start + FRAME_HEADER_BYTES, 0);
        write(self.encoded);
        let (header, payload) = self.encoded[start..].split_at_mut(FRAME_HEADER_BYTES);
        header.copy_from_slice(&encode_header(kind, flags, self.id, payload));
    }

    /// Adds a frame with a part of a body.
    pub fn add_body(&mut self, kind: FrameKind, flags: u8, payload: &'b [u8]) {
        if !self.keeps_bodies {
            return;
        }
        self.encoded.extend_from_slice(&encode_header(kind, flags, self.id, payload));
        if payload.len() > MAX_COPIED_BYTES && self.borrowed_count < MAX_BORROWED {
            self.borrowed[self.borrowed_count] = (self.encoded.len(), payload);
            self.borrowed_count += 1;
        } else {
            self.encoded.extend_from_slice(payload);
        }
    }

    /// Returns the parts of the batch in their order. Parts at the end may be empty.
    pub fn parts(&self) -> [&[u8]; 2 * MAX_BORROWED + 1] {
        let mut parts: [&[u8]; 2 * MAX_BORROWED + 1] = [&[]; 2 * MAX_BORROWED + 1];
        let mut from = 0;
        for (index, (position, payload)) in self.borrowed[..self.borrowed_count].iter().enumerate() {
            (parts[2 * index], parts[2 * index + 1]) = (&self.encoded[from..*position], payload);
            from = *position;
        }
        parts[2 * self.borrowed_count] = &self.encoded[from..];
        parts
    }
}

fn encode_header(kind: FrameKind, flags: u8, id: Uuid, payload: &[u8]) -> [u8; FRAME_HEADER_BYTES] {
    let mut header = [0; FRAME_HEADER_BYTES];
    (header[8], header[9]) = (kind as u8, flags);
    header[12..].copy_from_slice(id.as_bytes());
    header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    let crc = checksum(&header, payload);
    header[4..8].copy_from_slice(&crc.to_le_bytes());
    header
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[8..FRAME_HEADER_BYTES]);
    hasher.update(payload);
    hasher.finalize()
}

/// A frame as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'d> {
    pub kind: u8,
    pub flags: u8,
    pub id: Uuid,
    pub payload: &'d [u8],
}

/// Reader of the frames of a segment. Iteration ends before the first frame that is incomplete or damaged.
pub struct FrameReader<'d> {
    data: &'d [u8],
    offset: usize,
}

impl<'d> FrameReader<'d> {
    /// Reads from an offset at which a frame begins.
    pub fn new(data: &'d [u8], offset: usize) -> Self {
        Self { data, offset }
    }

    /// Returns the offset behind the last complete frame.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

/// Why the length of the payload cannot be read from the header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderFault {
    Incomplete,
    Damaged,
}

/// Returns the length of the payload of the frame at the start of `data`.
pub fn read_payload_length(data: &[u8]) -> Result<usize, HeaderFault> {
    let header = data.get(..FRAME_HEADER_BYTES).ok_or(HeaderFault::Incomplete)?;
    let length = read_u32(header, 0).ok_or(HeaderFault::Incomplete)? as usize;
    if length > MAX_PAYLOAD_BYTES || header[10..12] != [0, 0] { Err(HeaderFault::Damaged) } else { Ok(length) }
}

impl<'d> Iterator for FrameReader<'d> {
    type Item = Frame<'d>;

    fn next(&mut self) -> Option<Frame<'d>> {
        let data = self.data.get(self.offset..)?;
        let length = read_payload_length(data).ok()?;
        let (header, rest) = data.split_at_checked(FRAME_HEADER_BYTES)?;
        let payload = rest.get(..length)?;
        if read_u32(header, 4)? != checksum(header, payload) {
            return None;
        }
        self.offset += FRAME_HEADER_BYTES + length;
        let id = Uuid::from_slice(&header[12..]).ok()?;
        Some(Frame { kind: header[8], flags: header[9], id, payload })
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

/// Encodes the header of a segment.
pub fn encode_segment_header(json: &[u8]) -> Vec<u8> {
    [&SEGMENT_MAGIC[..], &(json.len() as u32).to_le_bytes(), json].concat()
}

/// Returns the JSON header of a segment and the offset of its first frame. `None` if the header is incomplete, or is
/// not that of a segment.
pub fn read_segment_header(data: &[u8]) -> Option<(&[u8], usize)> {
    let start = SEGMENT_MAGIC.len() + 4;
    if !data.starts_with(&SEGMENT_MAGIC) {
        return None;
    }
    let length = read_u32(data, SEGMENT_MAGIC.len())? as usize;
    if length > MAX_SEGMENT_HEADER_BYTES {
        return None;
    }
    Some((data.get(start..start + length)?, start + length))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [FrameKind; 8] = [
        FrameKind::Begin,
        FrameKind::ClientRequest,
        FrameKind::UpstreamRequest,
        FrameKind::UpstreamResponse,
        FrameKind::ClientResponse,
        FrameKind::End,
        FrameKind::Amend,
        FrameKind::UpstreamHead,
    ];

    fn encode(frames: &[(FrameKind, u8, Uuid, Vec<u8>)]) -> Vec<u8> {
        let mut all = Vec::new();
        for (kind, flags, id, payload) in frames {
            let mut encoded = Vec::new();
            let mut batch = FrameBatch::new(*id, &mut encoded, true);
            if matches!(kind, FrameKind::Begin | FrameKind::End | FrameKind::Amend) {
                batch.add_json(*kind, *flags, |out| out.extend_from_slice(payload));
            } else {
                batch.add_body(*kind, *flags, payload);
            }
            batch.parts().iter().for_each(|part| all.extend_from_slice(part));
        }
        all
    }

    fn arbitrary_frame() -> impl Strategy<Value = (FrameKind, u8, Uuid, Vec<u8>)> {
        let payload = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..64),
            proptest::collection::vec(any::<u8>(), MAX_COPIED_BYTES - 1..MAX_COPIED_BYTES + 3),
        ];
        (0..KINDS.len(), 0_u8..16, any::<u128>(), payload)
            .prop_map(|(kind, flags, id, payload)| (KINDS[kind], flags, Uuid::from_u128(id), payload))
    }

    proptest! {
        #[test]
        fn reads_what_was_written(frames in proptest::collection::vec(arbitrary_frame(), 0..6)) {
            let data = encode(&frames);
            let mut reader = FrameReader::new(&data, 0);
            for (kind, flags, id, payload) in &frames {
                let expected = Frame { kind: *kind as u8, flags: *flags, id: *id, payload };
                prop_assert_eq!(reader.next(), Some(expected));
            }
            prop_assert_eq!((reader.next(), reader.offset()), (None, data.len()));
        }

        #[test]
        fn a_changed_byte_ends_the_reading(frame in arbitrary_frame(), at in any::<prop::sample::Index>(), bit in 0..8) {
            let mut data = encode(std::slice::from_ref(&frame));
            let at = at.index(data.len());
            data[at] ^= 1_u8 << bit;
            prop_assert_eq!(FrameReader::new(&data, 0).next(), None);
        }

        #[test]
        fn arbitrary_bytes_never_panic(data in proptest::collection::vec(any::<u8>(), 0..256), offset in 0_usize..300) {
            let mut reader = FrameReader::new(&data, offset);
            reader.by_ref().for_each(drop);
            prop_assert!(reader.offset() == offset || reader.offset() <= data.len());
            prop_assert!(read_segment_header(&data).is_none_or(|(_, start)| start <= data.len()));
        }
    }

    #[test]
    fn truncation_at_every_byte_keeps_the_frames_before_it() {
        let id = Uuid::from_u128(7);
        let frames = [
            (FrameKind::Begin, 0, id, b"{\"a\":1}".to_vec()),
            (FrameKind::ClientRequest, FLAG_CUT, id, vec![b'x'; 100]),
            (FrameKind::UpstreamResponse, 0, id, Vec::new()),
            (FrameKind::End, FLAG_DROPPED, id, b"{\"b\":2}".to_vec()),
        ];
        let data = encode(&frames);
        let ends: Vec<usize> = (1..=frames.len()).map(|count| encode(&frames[..count]).len()).collect();
        for length in 0..=data.len() {
            let mut reader = FrameReader::new(&data[..length], 0);
            let count = reader.by_ref().count();
            let complete = ends.iter().filter(|end| **end <= length).count();
            assert_eq!((count, reader.offset()), (complete, if complete == 0 { 0 } else { ends[complete - 1] }));
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_damage() {
        let mut data = encode(&[(FrameKind::End, 0, Uuid::nil(), Vec::new())]);
        data[..4].copy_from_slice(&(MAX_PAYLOAD_BYTES as u32 + 1).to_le_bytes());
        assert_eq!(FrameReader::new(&data, 0).next(), None);
    }

    #[test]
    fn the_checksum_is_that_of_zlib() {
        let data = encode(&[(FrameKind::End, FLAG_REFUSED, Uuid::from_u128(1), b"{}".to_vec())]);
        // zlib.crc32(bytes([6, 4, 0, 0]) + (1).to_bytes(16, "big") + b"{}")
        assert_eq!(data[4..8], 0x2B9C_2850_u32.to_le_bytes());
    }

    #[test]
    fn segment_header_is_read_only_when_complete() {
        let data = encode_segment_header(b"{\"pid\":1}");
        assert_eq!(read_segment_header(&data), Some((&b"{\"pid\":1}"[..], data.len())));
        for length in 0..data.len() {
            assert_eq!(read_segment_header(&data[..length]), None);
        }
        assert_eq!(read_segment_header(b"PSPOOL02\0\0\0\0"), None);
        assert_eq!(read_segment_header(b"PSPOOL01\xff\xff\xff\xff{}"), None);
    }
}
