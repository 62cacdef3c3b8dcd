//! The numbers and lengths of which all of Avro is made.

/// Why there is nothing to be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// More bytes may help.
    Short,
    Wrong(String),
}

impl Fault {
    pub fn wrong(why: &str) -> Self {
        Self::Wrong(why.to_owned())
    }
}

/// What is still to be read.
#[derive(Clone)]
pub struct Bytes<'b>(&'b [u8]);

/// A number takes no more bytes.
const LONGEST_NUMBER: u32 = 10;

impl<'b> Bytes<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    pub fn rest(&self) -> &'b [u8] {
        self.0
    }

    pub fn take(&mut self, length: usize) -> Result<&'b [u8], Fault> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Fault::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Fault::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// A whole number: seven bits in each byte, the lowest first, and its sign in the lowest of all.
    pub fn long(&mut self) -> Result<i64, Fault> {
        let mut number = 0_u64;
        for at in 0..LONGEST_NUMBER {
            let [byte] = self.array()?;
            number |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                return Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed());
            }
        }
        Err(Fault::wrong("a number has no end"))
    }

    pub fn bytes(&mut self) -> Result<&'b [u8], Fault> {
        let length = usize::try_from(self.long()?).map_err(|_| Fault::wrong("a length is below zero"))?;
        self.take(length)
    }

    /// How many items come next of an array or a map; `None` at its end.
    pub fn count(&mut self) -> Result<Option<u64>, Fault> {
        let count = self.long()?;
        if count < 0 {
            // By which one could skip them.
            self.long()?;
        }
        Ok(Some(count.unsigned_abs()).filter(|count| *count > 0))
    }
}
