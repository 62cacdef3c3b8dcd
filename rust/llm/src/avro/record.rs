//! Conversion of Avro records to lines of JSON.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;

use super::{
    MAX_OUTPUT_BYTES, MAX_RECORD_BYTES,
    schema::{AvroType, Schema},
};
use crate::avro::primitives::{ByteReader, DecodeError};

/// Maximum nesting depth of a value; needed because a schema may refer to itself.
const MAX_NESTING_DEPTH: usize = 64;

/// Writes all complete records to `out` and leaves the bytes after them in `plain`. Parses an incomplete record again
/// only when twice as many bytes are buffered. Otherwise a long record would be parsed for every chunk.
pub fn write_records(
    schema: Option<&Schema>,
    plain: &mut Vec<u8>,
    records_left: &mut u64,
    incomplete_bytes: &mut usize,
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let schema = schema.ok_or_else(|| DecodeError::invalid("it has no schema"))?;
    let mut rest = ByteReader::new(plain);
    while *records_left > 0 && rest.remaining().len() >= *incomplete_bytes * 2 {
        let (begin, mut record_reader) = (out.len(), rest.clone());
        let mut writer =
            RecordWriter { schema, reader: &mut record_reader, max_output_len: begin + MAX_RECORD_BYTES, out };
        match writer.write_value(0, 0) {
            Ok(()) => (rest, *incomplete_bytes, *records_left) = (record_reader, 0, *records_left - 1),
            Err(DecodeError::Incomplete) if rest.remaining().len() <= MAX_RECORD_BYTES => {
                out.truncate(begin);
                *incomplete_bytes = rest.remaining().len();
                break;
            }
            Err(DecodeError::Incomplete) => return Err(DecodeError::invalid("a record is too long")),
            Err(wrong) => return Err(wrong),
        }
        out.push(b'\n');
        if out.len() > MAX_OUTPUT_BYTES {
            return Err(DecodeError::invalid("its decoded size is too large"));
        }
    }
    if *records_left == 0 && !rest.remaining().is_empty() {
        return Err(DecodeError::invalid("a block does not have the records that its header announces"));
    }
    let read = plain.len() - rest.remaining().len();
    plain.drain(..read);
    Ok(())
}

struct RecordWriter<'w, 'b> {
    schema: &'w Schema,
    reader: &'w mut ByteReader<'b>,
    max_output_len: usize,
    out: &'w mut Vec<u8>,
}

impl RecordWriter<'_, '_> {
    fn write_value(&mut self, type_index: usize, depth: usize) -> Result<(), DecodeError> {
        if depth > MAX_NESTING_DEPTH {
            return Err(DecodeError::invalid("a record is nested too deep"));
        }
        if self.out.len() > self.max_output_len {
            return Err(DecodeError::invalid("a record is too long"));
        }
        match self.schema.type_at(type_index) {
            AvroType::Union(branches) => {
                let at = self.reader.read_long()?;
                let branch = usize::try_from(at).ok().and_then(|at| branches.get(at));
                self.write_value(
                    *branch.ok_or_else(|| DecodeError::invalid("a value has a branch index outside its union"))?,
                    depth + 1,
                )
            }
            AvroType::Array(item) => self.write_items([b'[', b']'], |writer| writer.write_value(*item, depth + 1)),
            AvroType::Map(item) => self.write_items([b'{', b'}'], |writer| {
                writer.write_string()?;
                writer.out.push(b':');
                writer.write_value(*item, depth + 1)
            }),
            AvroType::Record(fields) => {
                self.out.push(b'{');
                for (at, (name, field)) in fields.iter().enumerate() {
                    if at > 0 {
                        self.out.push(b',');
                    }
                    self.write_json(name);
                    self.out.push(b':');
                    self.write_value(*field, depth + 1)?;
                }
                self.out.push(b'}');
                Ok(())
            }
            plain => self.write_scalar(plain),
        }
    }

    /// Writes a value that contains no other values.
    fn write_scalar(&mut self, kind: &AvroType) -> Result<(), DecodeError> {
        match kind {
            AvroType::Boolean => {
                let [byte] = self.reader.read_array()?;
                self.write_json(&(byte != 0));
            }
            AvroType::Long => {
                let number = self.reader.read_long()?;
                self.write_json(&number);
            }
            AvroType::Float => {
                let number = f32::from_le_bytes(self.reader.read_array()?);
                self.write_json(&number);
            }
            AvroType::Double => {
                let number = f64::from_le_bytes(self.reader.read_array()?);
                self.write_json(&number);
            }
            AvroType::Bytes => {
                let bytes = self.reader.read_bytes()?;
                self.write_json(&STANDARD.encode(bytes));
            }
            AvroType::Fixed(length) => {
                let bytes = self.reader.read_slice(*length)?;
                self.write_json(&STANDARD.encode(bytes));
            }
            AvroType::String => self.write_string()?,
            AvroType::Enum(symbols) => {
                let at = self.reader.read_long()?;
                let symbol = usize::try_from(at).ok().and_then(|at| symbols.get(at));
                self.write_json(symbol.ok_or_else(|| DecodeError::invalid("a symbol index is outside its enum"))?);
            }
            _ => self.out.extend_from_slice(b"null"),
        }
        Ok(())
    }

    fn write_items(
        &mut self,
        [open, close]: [u8; 2],
        mut item: impl FnMut(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        self.out.push(open);
        let mut is_first = true;
        while let Some(count) = self.reader.read_block_count()? {
            for _ in 0..count {
                if !std::mem::take(&mut is_first) {
                    self.out.push(b',');
                }
                item(self)?;
            }
        }
        self.out.push(close);
        Ok(())
    }

    fn write_string(&mut self) -> Result<(), DecodeError> {
        let bytes = self.reader.read_bytes()?;
        let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::invalid("a string is not valid UTF-8"))?;
        self.write_json(text);
        Ok(())
    }

    /// Writes a value as JSON. Numbers that JSON cannot represent become null.
    fn write_json(&mut self, value: &(impl Serialize + ?Sized)) {
        // Serializing these values and writing to a vector cannot fail.
        let _ = serde_json::to_writer(&mut *self.out, value);
    }
}
