//! Records, each a line of JSON.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;

use super::{
    LONGEST, MOST_AT_ONCE,
    schema::{Kind, Schema},
};
use crate::avro::primitives::{Bytes, Fault};

/// A schema may refer to itself.
const DEEPEST: usize = 64;

/// Tells all records that are whole, and keeps what comes after them. One that had no end is tried again with twice as many
/// bytes: else a long one would be read anew with each piece.
pub fn tell(
    schema: Option<&Schema>,
    plain: &mut Vec<u8>,
    (left, short): (&mut u64, &mut usize),
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    let schema = schema.ok_or_else(|| Fault::wrong("it has no schema"))?;
    let mut rest = Bytes::new(plain);
    while *left > 0 && rest.rest().len() >= *short * 2 {
        let (begin, mut ahead) = (out.len(), rest.clone());
        let mut writer = Writer { schema, bytes: &mut ahead, most: begin + LONGEST, out };
        match writer.value(0, 0) {
            Ok(()) => (rest, *short, *left) = (ahead, 0, *left - 1),
            Err(Fault::Short) if rest.rest().len() <= LONGEST => {
                out.truncate(begin);
                *short = rest.rest().len();
                break;
            }
            Err(Fault::Short) => return Err(Fault::wrong("a record is too long")),
            Err(wrong) => return Err(wrong),
        }
        out.push(b'\n');
        if out.len() > MOST_AT_ONCE {
            return Err(Fault::wrong("it grows too much"));
        }
    }
    if *left == 0 && !rest.rest().is_empty() {
        return Err(Fault::wrong("a block has other records than it says"));
    }
    let read = plain.len() - rest.rest().len();
    plain.drain(..read);
    Ok(())
}

struct Writer<'w, 'b> {
    schema: &'w Schema,
    bytes: &'w mut Bytes<'b>,
    most: usize,
    out: &'w mut Vec<u8>,
}

impl Writer<'_, '_> {
    fn value(&mut self, place: usize, depth: usize) -> Result<(), Fault> {
        if depth > DEEPEST {
            return Err(Fault::wrong("a record is too deep"));
        }
        if self.out.len() > self.most {
            return Err(Fault::wrong("a record is too long"));
        }
        match self.schema.at(place) {
            Kind::Union(branches) => {
                let at = self.bytes.long()?;
                let branch = usize::try_from(at).ok().and_then(|at| branches.get(at));
                self.value(*branch.ok_or_else(|| Fault::wrong("a value is none of its union"))?, depth + 1)
            }
            Kind::Array(item) => self.items([b'[', b']'], |writer| writer.value(*item, depth + 1)),
            Kind::Map(item) => self.items([b'{', b'}'], |writer| {
                writer.text()?;
                writer.out.push(b':');
                writer.value(*item, depth + 1)
            }),
            Kind::Record(fields) => {
                self.out.push(b'{');
                for (at, (name, field)) in fields.iter().enumerate() {
                    if at > 0 {
                        self.out.push(b',');
                    }
                    self.json(name);
                    self.out.push(b':');
                    self.value(*field, depth + 1)?;
                }
                self.out.push(b'}');
                Ok(())
            }
            plain => self.plain(plain),
        }
    }

    /// A value that is not made of others.
    fn plain(&mut self, kind: &Kind) -> Result<(), Fault> {
        match kind {
            Kind::Boolean => {
                let [byte] = self.bytes.array()?;
                self.json(&(byte != 0));
            }
            Kind::Whole => {
                let number = self.bytes.long()?;
                self.json(&number);
            }
            Kind::Float => {
                let number = f32::from_le_bytes(self.bytes.array()?);
                self.json(&number);
            }
            Kind::Double => {
                let number = f64::from_le_bytes(self.bytes.array()?);
                self.json(&number);
            }
            Kind::Bytes => {
                let bytes = self.bytes.bytes()?;
                self.json(&STANDARD.encode(bytes));
            }
            Kind::Fixed(length) => {
                let bytes = self.bytes.take(*length)?;
                self.json(&STANDARD.encode(bytes));
            }
            Kind::Text => self.text()?,
            Kind::Enum(symbols) => {
                let at = self.bytes.long()?;
                let symbol = usize::try_from(at).ok().and_then(|at| symbols.get(at));
                self.json(symbol.ok_or_else(|| Fault::wrong("a symbol is none of its enum"))?);
            }
            _ => self.out.extend_from_slice(b"null"),
        }
        Ok(())
    }

    fn items(
        &mut self,
        [open, close]: [u8; 2],
        mut item: impl FnMut(&mut Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.out.push(open);
        let mut is_first = true;
        while let Some(count) = self.bytes.count()? {
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

    fn text(&mut self) -> Result<(), Fault> {
        let bytes = self.bytes.bytes()?;
        let text = std::str::from_utf8(bytes).map_err(|_| Fault::wrong("a text is no UTF-8"))?;
        self.json(text);
        Ok(())
    }

    /// What JSON has no number for is null.
    fn json(&mut self, value: &(impl Serialize + ?Sized)) {
        // Neither such values nor a vector fail.
        let _ = serde_json::to_writer(&mut *self.out, value);
    }
}
