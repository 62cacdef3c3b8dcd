//! Streaming decoder that converts Avro object container files to JSON lines:
//! <https://avro.apache.org/docs/1.12.0/specification/>. Its memory is bounded whatever the file declares: it buffers
//! at most one longest record and writes at most `MAX_OUTPUT_BYTES` per chunk.

pub(crate) mod primitives;
mod record;
mod schema;

use flate2::{Decompress, FlushDecompress, Status};

use self::schema::Schema;
use crate::{
    avro::primitives::{ByteReader, DecodeError},
    errors::MalformedResponse,
};

const MAGIC: &[u8] = b"Obj\x01";
const SYNC_MARKER_BYTES: usize = 16;
/// Maximum length of the file header, which includes the schema.
const MAX_HEADER_BYTES: usize = 1024 * 1024;
/// Maximum length of a record, both encoded and as JSON.
const MAX_RECORD_BYTES: usize = 4 * 1024 * 1024;
/// Maximum JSON output for one input chunk, because a small chunk may decompress to a lot of data.
const MAX_OUTPUT_BYTES: usize = 16 * 1024 * 1024;
/// Number of bytes to decompress in one step.
const INFLATE_CHUNK_BYTES: usize = 64 * 1024;

/// Compression codec of the blocks.
enum Codec {
    Null,
    Deflate(Box<Decompress>),
}

/// Part of the file that the next byte belongs to.
enum AvroParserState {
    Header,
    /// Before a block, which begins with its record count and its length.
    BlockHeader,
    /// Inside a block, with this number of bytes still to come.
    BlockData(u64),
    /// Before the sync marker that follows a block.
    SyncMarker,
}

/// Decoder for one Avro file that arrives in chunks.
pub struct AvroDecoder {
    state: AvroParserState,
    /// Input bytes that are received but not parsed yet.
    pending_input: Vec<u8>,
    schema: Option<Schema>,
    codec: Codec,
    sync_marker: [u8; SYNC_MARKER_BYTES],
    /// Decompressed data of the current block.
    block_data: Vec<u8>,
    /// Number of records in the current block that are not written yet.
    records_left: u64,
    /// Number of bytes that were buffered when the next record was last parsed and found to be incomplete. It is parsed
    /// again when twice as many bytes are buffered.
    incomplete_bytes: usize,
}

impl Default for AvroDecoder {
    fn default() -> Self {
        let (raw, plain) = (Vec::new(), Vec::new());
        Self {
            state: AvroParserState::Header,
            pending_input: raw,
            schema: None,
            codec: Codec::Null,
            sync_marker: [0; SYNC_MARKER_BYTES],
            block_data: plain,
            records_left: 0,
            incomplete_bytes: 0,
        }
    }
}

impl AvroDecoder {
    /// Decodes the next chunk of the file and returns the records that are now complete, as JSON lines.
    pub fn decode_chunk(&mut self, chunk: &[u8]) -> Result<Vec<u8>, MalformedResponse> {
        let mut out = Vec::new();
        self.pending_input.extend_from_slice(chunk);
        let raw = std::mem::take(&mut self.pending_input);
        let mut rest = ByteReader::new(&raw);
        let read = self.parse_available(&mut rest, &mut out);
        self.pending_input = rest.remaining().to_vec();
        match read {
            Ok(()) | Err(DecodeError::Incomplete) => Ok(out),
            Err(DecodeError::Invalid(reason)) => Err(invalid_file_error(&reason)),
        }
    }

    /// Checks that the file ended after a complete block.
    pub fn check_complete(&self) -> Result<(), MalformedResponse> {
        if matches!(self.state, AvroParserState::BlockHeader) && self.pending_input.is_empty() {
            Ok(())
        } else {
            Err(invalid_file_error("the file is truncated"))
        }
    }

    /// Parses until the input is too short. The unparsed rest is passed again together with the next chunk.
    fn parse_available(&mut self, bytes: &mut ByteReader<'_>, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        loop {
            let mut block_reader = bytes.clone();
            match self.state {
                AvroParserState::Header => {
                    if let Err(fault) = self.parse_header(&mut block_reader) {
                        let is_long = bytes.remaining().len() > MAX_HEADER_BYTES;
                        return Err(if is_long { DecodeError::invalid("its header is too long") } else { fault });
                    }
                }
                AvroParserState::BlockHeader => {
                    let (records, length) = (block_reader.read_long()?, block_reader.read_long()?);
                    let count = |number: i64| {
                        u64::try_from(number)
                            .map_err(|_| DecodeError::invalid("a block has a negative record count or length"))
                    };
                    (self.records_left, self.state) = (count(records)?, AvroParserState::BlockData(count(length)?));
                    if let Codec::Deflate(packed) = &mut self.codec {
                        packed.reset(false);
                    }
                }
                AvroParserState::BlockData(block_bytes) => {
                    if block_bytes > 0 && block_reader.remaining().is_empty() {
                        return Err(DecodeError::Incomplete);
                    }
                    let available =
                        usize::try_from(block_bytes).unwrap_or(usize::MAX).min(block_reader.remaining().len());
                    let remaining = block_bytes - available as u64;
                    self.decode_block_data(block_reader.read_slice(available)?, remaining == 0, out)?;
                    self.state = if remaining == 0 {
                        AvroParserState::SyncMarker
                    } else {
                        AvroParserState::BlockData(remaining)
                    };
                }
                AvroParserState::SyncMarker => {
                    if block_reader.read_slice(SYNC_MARKER_BYTES)? != self.sync_marker {
                        return Err(DecodeError::invalid(
                            "the sync marker after a block does not match the file header",
                        ));
                    }
                    self.state = AvroParserState::BlockHeader;
                }
            }
            *bytes = block_reader;
        }
    }

    fn parse_header(&mut self, bytes: &mut ByteReader<'_>) -> Result<(), DecodeError> {
        let magic = bytes.remaining();
        if !magic.starts_with(&MAGIC[..MAGIC.len().min(magic.len())]) {
            return Err(DecodeError::invalid("it does not begin with the magic bytes of Avro"));
        }
        bytes.read_slice(MAGIC.len())?;
        let (mut schema, mut codec) = (None, &b"null"[..]);
        while let Some(count) = bytes.read_block_count()? {
            for _ in 0..count {
                match (bytes.read_bytes()?, bytes.read_bytes()?) {
                    (b"avro.schema", value) => schema = Some(value),
                    (b"avro.codec", value) => codec = value,
                    _ => (),
                }
            }
        }
        let sync = bytes.read_slice(SYNC_MARKER_BYTES)?;
        self.codec = match codec {
            b"null" => Codec::Null,
            b"deflate" => Codec::Deflate(Box::new(Decompress::new(false))),
            other => {
                let name = String::from_utf8_lossy(&other[..other.len().min(40)]);
                return Err(DecodeError::Invalid(format!(
                    "it is compressed with {name}; only the codecs null and deflate are supported"
                )));
            }
        };
        self.schema = Some(Schema::parse(schema.ok_or_else(|| DecodeError::invalid("it has no schema"))?)?);
        self.sync_marker.copy_from_slice(sync);
        self.state = AvroParserState::BlockHeader;
        Ok(())
    }

    /// Decompresses the next bytes of a block and writes the records that are now complete.
    fn decode_block_data(&mut self, mut packed: &[u8], is_last: bool, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        let Codec::Deflate(inflate) = &mut self.codec else {
            self.block_data.extend_from_slice(packed);
            return self.flush_records(is_last, out);
        };
        let mut is_packed = !packed.is_empty();
        while is_packed {
            let mut step = Vec::with_capacity(INFLATE_CHUNK_BYTES);
            let before = inflate.total_in();
            let unpacked = inflate.decompress_vec(packed, &mut step, FlushDecompress::None);
            let status = unpacked.map_err(|error| DecodeError::Invalid(error.to_string()))?;
            let consumed = (inflate.total_in() - before) as usize;
            packed = &packed[consumed..];
            is_packed = status != Status::StreamEnd
                && (step.len() == INFLATE_CHUNK_BYTES || consumed > 0 && !packed.is_empty());
            self.block_data.extend_from_slice(&step);
            record::write_records(
                self.schema.as_ref(),
                &mut self.block_data,
                &mut self.records_left,
                &mut self.incomplete_bytes,
                out,
            )?;
        }
        self.flush_records(is_last, out)
    }

    fn flush_records(&mut self, is_last: bool, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        if is_last {
            // No more bytes of this block will come, so an incomplete record must be tried again now.
            self.incomplete_bytes = 0;
        }
        record::write_records(
            self.schema.as_ref(),
            &mut self.block_data,
            &mut self.records_left,
            &mut self.incomplete_bytes,
            out,
        )?;
        if is_last && self.records_left > 0 {
            return Err(DecodeError::invalid("a block does not have the records that its header announces"));
        }
        Ok(())
    }
}

fn invalid_file_error(reason: &str) -> MalformedResponse {
    MalformedResponse(format!("an Avro file cannot be read: {reason}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::DeflateEncoder};
    use serde_json::{Value, json};

    use super::*;

    fn encode_long(number: i64) -> Vec<u8> {
        let mut number = ((number << 1) ^ (number >> 63)).cast_unsigned();
        let mut out = Vec::new();
        while number >= 0x80 {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
        out
    }

    fn encode_length(bytes: &[u8]) -> Vec<u8> {
        encode_long(bytes.len().try_into().unwrap())
    }

    fn encode_string(text: &str) -> Vec<u8> {
        [encode_length(text.as_bytes()), text.as_bytes().to_vec()].concat()
    }

    fn encode_header(schema: &Value, codec: &str) -> Vec<u8> {
        let values = [("avro.schema", schema.to_string()), ("avro.codec", codec.to_owned())];
        let values = values.map(|(name, value)| [encode_string(name), encode_string(&value)].concat()).concat();
        [MAGIC.to_vec(), encode_long(2), values, encode_long(0), vec![7; SYNC_MARKER_BYTES]].concat()
    }

    fn deflate(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn encode_block(records: i64, bytes: &[u8]) -> Vec<u8> {
        [encode_long(records), encode_length(bytes), bytes.to_vec(), vec![7; SYNC_MARKER_BYTES]].concat()
    }

    fn decode_file(file: &[u8], step: usize) -> Result<Vec<Value>, String> {
        let (mut records, mut out) = (AvroDecoder::default(), Vec::new());
        for chunk in file.chunks(step) {
            out.extend(records.decode_chunk(chunk).map_err(|broken| broken.0)?);
        }
        records.check_complete().map_err(|broken| broken.0)?;
        Ok(out.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect())
    }

    fn decode_file_error(file: &[u8]) -> String {
        decode_file(file, INFLATE_CHUNK_BYTES).unwrap_err()
    }

    /// Schema that uses every Avro type.
    fn sample_schema() -> Value {
        json!({"type": "record", "name": "made", "namespace": "of", "fields": [
            {"name": "id", "type": ["null", "string"]},
            {"name": "vector", "type": {"type": "array", "items": "float"}},
            {"name": "more", "type": {"type": "map", "values": "double"}},
            {"name": "is", "type": "boolean"},
            {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["a", "b"]}},
            {"name": "raw", "type": {"type": "fixed", "name": "raw", "size": 2}},
            {"name": "bytes", "type": "bytes"},
            {"name": "again", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "next", "type": ["null", "made", "of.kind"]},
        ]})
    }

    fn encode_record(number: i64, next: &[u8]) -> Vec<u8> {
        let floats = [0.1_f32, -2.5, f32::NAN].map(f32::to_le_bytes).concat();
        // Encoded as two blocks, one of which has a negative count and its size in bytes.
        let vector = [
            encode_long(2),
            floats[..8].to_vec(),
            encode_long(-1),
            encode_long(4),
            floats[8..].to_vec(),
            encode_long(0),
        ]
        .concat();
        let more = [encode_long(1), encode_string("ä\"\n"), 1.5_f64.to_le_bytes().to_vec(), encode_long(0)].concat();
        let parts = [
            encode_long(1),
            encode_string("x"),
            vector,
            more,
            vec![1],
            encode_long(1),
            vec![0, 255],
            encode_string("ab"),
            encode_long(number),
        ];
        [parts.concat(), next.to_vec()].concat()
    }

    fn expected_json(number: i64, next: &Value) -> Value {
        json!({"id": "x", "vector": [0.1, -2.5, null], "more": {"ä\"\n": 1.5}, "is": true, "kind": "b", "raw": "AP8=",
            "bytes": "YWI=", "again": number, "next": next})
    }

    #[test]
    fn decodes_records_to_lines_for_any_chunk_size_and_codec() {
        let first = encode_record(-70_000, &[encode_long(1), encode_record(3, &encode_long(0))].concat());
        let second = encode_record(i64::MIN, &[encode_long(2), encode_long(0)].concat());
        let both = [first.clone(), second.clone()].concat();
        let expected = [
            expected_json(-70_000, &expected_json(3, &Value::Null)),
            expected_json(i64::MIN, &json!("a")),
            expected_json(-70_000, &expected_json(3, &Value::Null)),
        ];
        for (codec, pack) in [("null", <[u8]>::to_vec as fn(&[u8]) -> Vec<u8>), ("deflate", deflate)] {
            let blocks =
                [encode_block(2, &pack(&both)), encode_block(0, &pack(b"")), encode_block(1, &pack(&first))].concat();
            let file = [encode_header(&sample_schema(), codec), blocks].concat();
            for step in [1, 3, 64, file.len()] {
                assert_eq!(decode_file(&file, step).unwrap(), expected, "{codec} {step}");
            }
            for cut in [0, 3, 30, file.len() - 1] {
                assert!(decode_file(&file[..cut], 64).is_err_and(|why| why.contains("truncated")), "{codec} {cut}");
            }
        }
    }

    #[test]
    fn reports_why_a_file_is_not_valid_avro() {
        let texts = json!({"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]});
        let plain = encode_header(&texts, "null");
        let with = |rest: &[u8]| [&plain[..], rest].concat();
        for (file, expected) in [
            (b"{\"a\": 1}".to_vec(), "does not begin with the magic bytes"),
            (encode_header(&texts, "zstandard"), "compressed with zstandard"),
            (encode_header(&json!("nothing"), "null"), "refers to nothing"),
            (encode_header(&json!({"type": "array"}), "null"), "lacks items"),
            (with(&encode_block(1, &[encode_string("a"), encode_string("b")].concat())), "does not have the records"),
            (with(&encode_block(3, &[encode_string("a"), encode_string("b")].concat())), "does not have the records"),
            (with(&encode_block(1, &[encode_long(2), vec![0xff, 0xff]].concat())), "UTF-8"),
            (with(&[encode_block(1, &encode_string("a")), vec![1; 40]].concat()), "negative record count"),
            (with(&[&encode_block(1, &encode_string("a"))[..4], &[8; 30]].concat()), "sync marker"),
            (with(&[0xff; 30]), "a number is too long"),
            ([encode_header(&texts, "deflate"), encode_block(1, &[0xff; 30])].concat(), "cannot be read"),
        ] {
            assert!(decode_file_error(&file).contains(expected), "{expected}: {}", decode_file_error(&file));
        }
    }

    #[test]
    fn bounds_memory_when_a_small_file_declares_huge_content() {
        let nulls = json!({"type": "array", "items": "null"});
        let many = [encode_long(i64::MAX), encode_long(0)].concat();
        assert!(
            decode_file_error(&[encode_header(&nulls, "null"), encode_block(1, &many)].concat()).contains("too long")
        );
        assert!(
            decode_file_error(&[encode_header(&json!("null"), "null"), encode_block(i64::MAX, b"")].concat())
                .contains("decoded size is too large")
        );
        let itself = json!({"type": "record", "name": "r", "fields": [{"name": "a", "type": "r"}]});
        assert!(
            decode_file_error(&[encode_header(&itself, "null"), encode_block(1, b"")].concat()).contains("too deep")
        );
        let long_text = [encode_long(1 << 40), vec![b'x'; MAX_RECORD_BYTES * 3]].concat();
        assert!(
            decode_file_error(&[encode_header(&json!("string"), "null"), encode_block(1, &long_text)].concat())
                .contains("too long")
        );
        let bomb = deflate(&[encode_long(0), vec![0; 64 * 1024 * 1024]].concat());
        assert!(
            decode_file_error(&[encode_header(&json!("string"), "deflate"), encode_block(1, &bomb)].concat())
                .contains("does not have the records")
        );
        assert!(
            decode_file_error(&[encode_header(&json!("string"), "deflate"), encode_block(i64::MAX, &bomb)].concat())
                .contains("decoded size is too large")
        );
        let wide: Vec<_> = (0..20_000).map(|at| json!({"name": at.to_string(), "type": "long"})).collect();
        let wide = json!({"type": "record", "name": "r", "fields": wide});
        assert!(decode_file_error(&encode_header(&wide, "null")).contains("too large"));
    }
    /// The seed is fixed so that failures are reproducible.
    #[test]
    fn corrupted_files_never_panic_and_yield_only_complete_lines() {
        let mut rng = fastrand::Rng::with_seed(7);
        let records: Vec<_> = (0..20).map(|number| encode_record(number, &encode_long(0))).collect();
        for (codec, pack) in [("null", <[u8]>::to_vec as fn(&[u8]) -> Vec<u8>), ("deflate", deflate)] {
            let blocks: Vec<_> = records.chunks(4).flat_map(|some| encode_block(4, &pack(&some.concat()))).collect();
            let file = [encode_header(&sample_schema(), codec), blocks].concat();
            for _ in 0..2000 {
                let mut broken = file.clone();
                let at = rng.usize(..file.len());
                match rng.u8(..3) {
                    0 => broken[at] = rng.u8(..),
                    1 => drop(broken.splice(at..at, (0..rng.usize(1..20)).map(|_| rng.u8(..)).collect::<Vec<_>>())),
                    _ => drop(broken.drain(at..rng.usize(at..file.len()))),
                }
                let (mut reading, step) = (AvroDecoder::default(), rng.usize(1..4096));
                for chunk in broken.chunks(step) {
                    let Ok(lines) = reading.decode_chunk(chunk) else { break };
                    let lines = String::from_utf8(lines).unwrap();
                    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines}");
                }
            }
        }
    }
}
