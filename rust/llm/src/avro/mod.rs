//! Files of Avro as they come, told as lines of JSON: <https://avro.apache.org/docs/1.12.0/specification/>. Whatever a file says
//! of itself, no more is held than its longest record, and no more is told at once than `MOST_AT_ONCE`.

pub(crate) mod primitives;
mod record;
mod schema;

use flate2::{Decompress, FlushDecompress, Status};

use self::schema::Schema;
use crate::avro::primitives::{Bytes, Fault};
use crate::chat::providers::Broken;

const MAGIC: &[u8] = b"Obj\x01";
const SYNC: usize = 16;
/// As long as what stands before the records may be, with the schema.
const LONGEST_HEAD: usize = 1024 * 1024;
/// As long as a record may be, here and there.
const LONGEST: usize = 4 * 1024 * 1024;
/// A small piece may say that it holds much.
const MOST_AT_ONCE: usize = 16 * 1024 * 1024;
/// What was packed is read in pieces.
const STEP: usize = 64 * 1024;

/// What a block's bytes are packed with.
enum Codec {
    Null,
    Deflate(Box<Decompress>),
}

/// Where in a file its next byte is.
enum Place {
    Head,
    /// Before a block, which says how many records it has.
    Block,
    /// So many bytes of a block are still to come.
    Within(u64),
    /// After a block.
    Sync,
}

/// A file on its way.
pub struct Records {
    place: Place,
    /// What has come and is not read yet.
    raw: Vec<u8>,
    schema: Option<Schema>,
    codec: Codec,
    sync: [u8; SYNC],
    /// Of a block, unpacked.
    plain: Vec<u8>,
    /// Records of a block that are still to be told.
    left: u64,
    /// With so many bytes the next one had no end.
    short: usize,
}

impl Default for Records {
    fn default() -> Self {
        let (raw, plain) = (Vec::new(), Vec::new());
        Self { place: Place::Head, raw, schema: None, codec: Codec::Null, sync: [0; SYNC], plain, left: 0, short: 0 }
    }
}

impl Records {
    /// What is told of the next bytes: whole lines.
    pub fn told(&mut self, piece: &[u8]) -> Result<Vec<u8>, Broken> {
        let mut out = Vec::new();
        self.raw.extend_from_slice(piece);
        let raw = std::mem::take(&mut self.raw);
        let mut rest = Bytes::new(&raw);
        let read = self.read(&mut rest, &mut out);
        self.raw = rest.rest().to_vec();
        match read {
            Ok(()) | Err(Fault::Short) => Ok(out),
            Err(Fault::Wrong(why)) => Err(broken(&why)),
        }
    }

    /// A file ends behind a block.
    pub fn end(&self) -> Result<(), Broken> {
        if matches!(self.place, Place::Block) && self.raw.is_empty() { Ok(()) } else { Err(broken("it has no end")) }
    }

    /// Reads until there is too little of it; what was not read comes again with more.
    fn read(&mut self, bytes: &mut Bytes<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        loop {
            let mut ahead = bytes.clone();
            match self.place {
                Place::Head => {
                    if let Err(fault) = self.head(&mut ahead) {
                        let is_long = bytes.rest().len() > LONGEST_HEAD;
                        return Err(if is_long { Fault::wrong("its head has no end") } else { fault });
                    }
                }
                Place::Block => {
                    let (records, length) = (ahead.long()?, ahead.long()?);
                    let count = |number: i64| u64::try_from(number).map_err(|_| Fault::wrong("a block counts wrong"));
                    (self.left, self.place) = (count(records)?, Place::Within(count(length)?));
                    if let Codec::Deflate(packed) = &mut self.codec {
                        packed.reset(false);
                    }
                }
                Place::Within(left) => {
                    if left > 0 && ahead.rest().is_empty() {
                        return Err(Fault::Short);
                    }
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(ahead.rest().len());
                    let left = left - here as u64;
                    self.unpack(ahead.take(here)?, left == 0, out)?;
                    self.place = if left == 0 { Place::Sync } else { Place::Within(left) };
                }
                Place::Sync => {
                    if ahead.take(SYNC)? != self.sync {
                        return Err(Fault::wrong("a block ends elsewhere than it says"));
                    }
                    self.place = Place::Block;
                }
            }
            *bytes = ahead;
        }
    }

    fn head(&mut self, bytes: &mut Bytes<'_>) -> Result<(), Fault> {
        let magic = bytes.rest();
        if !magic.starts_with(&MAGIC[..MAGIC.len().min(magic.len())]) {
            return Err(Fault::wrong("it does not begin as Avro does"));
        }
        bytes.take(MAGIC.len())?;
        let (mut schema, mut codec) = (None, &b"null"[..]);
        while let Some(count) = bytes.count()? {
            for _ in 0..count {
                match (bytes.bytes()?, bytes.bytes()?) {
                    (b"avro.schema", value) => schema = Some(value),
                    (b"avro.codec", value) => codec = value,
                    _ => (),
                }
            }
        }
        let sync = bytes.take(SYNC)?;
        self.codec = match codec {
            b"null" => Codec::Null,
            b"deflate" => Codec::Deflate(Box::new(Decompress::new(false))),
            other => {
                let name = String::from_utf8_lossy(&other[..other.len().min(40)]);
                return Err(Fault::Wrong(format!("it is packed with {name}: null and deflate are read here")));
            }
        };
        self.schema = Some(Schema::parse(schema.ok_or_else(|| Fault::wrong("it has no schema"))?)?);
        self.sync.copy_from_slice(sync);
        self.place = Place::Block;
        Ok(())
    }

    /// Takes bytes of a block, and tells the records that are whole by then.
    fn unpack(&mut self, mut packed: &[u8], is_last: bool, out: &mut Vec<u8>) -> Result<(), Fault> {
        let Codec::Deflate(inflate) = &mut self.codec else {
            self.plain.extend_from_slice(packed);
            return self.tell(is_last, out);
        };
        let mut is_packed = !packed.is_empty();
        while is_packed {
            let mut step = Vec::with_capacity(STEP);
            let before = inflate.total_in();
            let unpacked = inflate.decompress_vec(packed, &mut step, FlushDecompress::None);
            let status = unpacked.map_err(|error| Fault::Wrong(error.to_string()))?;
            let taken = (inflate.total_in() - before) as usize;
            packed = &packed[taken..];
            is_packed = status != Status::StreamEnd && (step.len() == STEP || taken > 0 && !packed.is_empty());
            self.plain.extend_from_slice(&step);
            record::tell(self.schema.as_ref(), &mut self.plain, (&mut self.left, &mut self.short), out)?;
        }
        self.tell(is_last, out)
    }

    fn tell(&mut self, is_last: bool, out: &mut Vec<u8>) -> Result<(), Fault> {
        if is_last {
            // There is no more to wait for.
            self.short = 0;
        }
        record::tell(self.schema.as_ref(), &mut self.plain, (&mut self.left, &mut self.short), out)?;
        if is_last && self.left > 0 {
            return Err(Fault::wrong("a block has other records than it says"));
        }
        Ok(())
    }
}

fn broken(why: &str) -> Broken {
    Broken(format!("a file of Avro cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::DeflateEncoder};
    use serde_json::{Value, json};

    use super::*;

    fn long(number: i64) -> Vec<u8> {
        let mut number = ((number << 1) ^ (number >> 63)).cast_unsigned();
        let mut out = Vec::new();
        while number >= 0x80 {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
        out
    }

    fn length(bytes: &[u8]) -> Vec<u8> {
        long(bytes.len().try_into().unwrap())
    }

    fn text(text: &str) -> Vec<u8> {
        [length(text.as_bytes()), text.as_bytes().to_vec()].concat()
    }

    fn head(schema: &Value, codec: &str) -> Vec<u8> {
        let values = [("avro.schema", schema.to_string()), ("avro.codec", codec.to_owned())];
        let values = values.map(|(name, value)| [text(name), text(&value)].concat()).concat();
        [MAGIC.to_vec(), long(2), values, long(0), vec![7; SYNC]].concat()
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn block(records: i64, bytes: &[u8]) -> Vec<u8> {
        [long(records), length(bytes), bytes.to_vec(), vec![7; SYNC]].concat()
    }

    fn told(file: &[u8], step: usize) -> Result<Vec<Value>, String> {
        let (mut records, mut out) = (Records::default(), Vec::new());
        for piece in file.chunks(step) {
            out.extend(records.told(piece).map_err(|broken| broken.0)?);
        }
        records.end().map_err(|broken| broken.0)?;
        Ok(out.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect())
    }

    fn why(file: &[u8]) -> String {
        told(file, STEP).unwrap_err()
    }

    /// All that a record may be made of.
    fn schema() -> Value {
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

    fn record(number: i64, next: &[u8]) -> Vec<u8> {
        let floats = [0.1_f32, -2.5, f32::NAN].map(f32::to_le_bytes).concat();
        // In two parts, of which one says how long it is.
        let vector = [long(2), floats[..8].to_vec(), long(-1), long(4), floats[8..].to_vec(), long(0)].concat();
        let more = [long(1), text("ä\"\n"), 1.5_f64.to_le_bytes().to_vec(), long(0)].concat();
        let parts = [long(1), text("x"), vector, more, vec![1], long(1), vec![0, 255], text("ab"), long(number)];
        [parts.concat(), next.to_vec()].concat()
    }

    fn shown(number: i64, next: &Value) -> Value {
        json!({"id": "x", "vector": [0.1, -2.5, null], "more": {"ä\"\n": 1.5}, "is": true, "kind": "b", "raw": "AP8=",
            "bytes": "YWI=", "again": number, "next": next})
    }

    #[test]
    fn records_are_lines_however_they_come_and_are_packed() {
        let first = record(-70_000, &[long(1), record(3, &long(0))].concat());
        let second = record(i64::MIN, &[long(2), long(0)].concat());
        let both = [first.clone(), second.clone()].concat();
        let expected = [
            shown(-70_000, &shown(3, &Value::Null)),
            shown(i64::MIN, &json!("a")),
            shown(-70_000, &shown(3, &Value::Null)),
        ];
        for (codec, pack) in [("null", <[u8]>::to_vec as fn(&[u8]) -> Vec<u8>), ("deflate", packed)] {
            let blocks = [block(2, &pack(&both)), block(0, &pack(b"")), block(1, &pack(&first))].concat();
            let file = [head(&schema(), codec), blocks].concat();
            for step in [1, 3, 64, file.len()] {
                assert_eq!(told(&file, step).unwrap(), expected, "{codec} {step}");
            }
            for cut in [0, 3, 30, file.len() - 1] {
                assert!(told(&file[..cut], 64).is_err_and(|why| why.contains("no end")), "{codec} {cut}");
            }
        }
    }

    #[test]
    fn what_is_no_avro_says_why() {
        let texts = json!({"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]});
        let plain = head(&texts, "null");
        let with = |rest: &[u8]| [&plain[..], rest].concat();
        for (file, expected) in [
            (b"{\"a\": 1}".to_vec(), "does not begin as Avro"),
            (head(&texts, "zstandard"), "packed with zstandard"),
            (head(&json!("nothing"), "null"), "names nothing"),
            (head(&json!({"type": "array"}), "null"), "lacks items"),
            (with(&block(1, &[text("a"), text("b")].concat())), "other records"),
            (with(&block(3, &[text("a"), text("b")].concat())), "other records"),
            (with(&block(1, &[long(2), vec![0xff, 0xff]].concat())), "UTF-8"),
            (with(&[block(1, &text("a")), vec![1; 40]].concat()), "counts wrong"),
            (with(&[&block(1, &text("a"))[..4], &[8; 30]].concat()), "ends elsewhere"),
            (with(&[0xff; 30]), "a number has no end"),
            ([head(&texts, "deflate"), block(1, &[0xff; 30])].concat(), "cannot be read"),
        ] {
            assert!(why(&file).contains(expected), "{expected}: {}", why(&file));
        }
    }

    #[test]
    fn a_small_file_that_says_that_it_holds_much_takes_no_more_than_it_may() {
        let nulls = json!({"type": "array", "items": "null"});
        let many = [long(i64::MAX), long(0)].concat();
        assert!(why(&[head(&nulls, "null"), block(1, &many)].concat()).contains("too long"));
        assert!(why(&[head(&json!("null"), "null"), block(i64::MAX, b"")].concat()).contains("grows too much"));
        let itself = json!({"type": "record", "name": "r", "fields": [{"name": "a", "type": "r"}]});
        assert!(why(&[head(&itself, "null"), block(1, b"")].concat()).contains("too deep"));
        let long_text = [long(1 << 40), vec![b'x'; LONGEST * 3]].concat();
        assert!(why(&[head(&json!("string"), "null"), block(1, &long_text)].concat()).contains("too long"));
        let bomb = packed(&[long(0), vec![0; 64 * 1024 * 1024]].concat());
        assert!(why(&[head(&json!("string"), "deflate"), block(1, &bomb)].concat()).contains("other records"));
        assert!(why(&[head(&json!("string"), "deflate"), block(i64::MAX, &bomb)].concat()).contains("grows too much"));
        let wide: Vec<_> = (0..20_000).map(|at| json!({"name": at.to_string(), "type": "long"})).collect();
        let wide = json!({"type": "record", "name": "r", "fields": wide});
        assert!(why(&head(&wide, "null")).contains("too large"));
    }
    /// The seed is fixed, so that a failure comes again.
    #[test]
    fn whatever_is_broken_of_a_file_nothing_panics_and_what_is_told_are_whole_lines() {
        let mut rng = fastrand::Rng::with_seed(7);
        let records: Vec<_> = (0..20).map(|number| record(number, &long(0))).collect();
        for (codec, pack) in [("null", <[u8]>::to_vec as fn(&[u8]) -> Vec<u8>), ("deflate", packed)] {
            let blocks: Vec<_> = records.chunks(4).flat_map(|some| block(4, &pack(&some.concat()))).collect();
            let file = [head(&schema(), codec), blocks].concat();
            for _ in 0..2000 {
                let mut broken = file.clone();
                let at = rng.usize(..file.len());
                match rng.u8(..3) {
                    0 => broken[at] = rng.u8(..),
                    1 => drop(broken.splice(at..at, (0..rng.usize(1..20)).map(|_| rng.u8(..)).collect::<Vec<_>>())),
                    _ => drop(broken.drain(at..rng.usize(at..file.len()))),
                }
                let (mut reading, step) = (Records::default(), rng.usize(1..4096));
                for piece in broken.chunks(step) {
                    let Ok(lines) = reading.told(piece) else { break };
                    let lines = String::from_utf8(lines).unwrap();
                    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines}");
                }
            }
        }
    }
}
