//! Byte reader for Avro's primitive encodings: zigzag varints, length-prefixed bytes and block counts.

/// Reason why a value cannot be decoded.
#[derive(Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The input ends too early; decoding may succeed with more bytes.
    Incomplete,
    Invalid(String),
}

impl DecodeError {
    pub fn invalid(reason: &str) -> Self {
        Self::Invalid(reason.to_owned())
    }
}

/// Cursor over the bytes that are not decoded yet.
#[derive(Clone)]
pub struct ByteReader<'b>(&'b [u8]);

/// Maximum length of a 64-bit varint, in bytes.
const MAX_VARINT_BYTES: u32 = 10;

impl<'b> ByteReader<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    pub fn remaining(&self) -> &'b [u8] {
        self.0
    }

    pub fn read_slice(&mut self, length: usize) -> Result<&'b [u8], DecodeError> {
        let (consumed, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Incomplete)?;
        self.0 = rest;
        Ok(consumed)
    }

    pub fn read_array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (consumed, rest) = self.0.split_first_chunk().ok_or(DecodeError::Incomplete)?;
        self.0 = rest;
        Ok(*consumed)
    }

    /// Reads a zigzag-encoded varint: seven bits per byte, least significant group first, with the sign in the lowest
    /// bit.
    pub fn read_long(&mut self) -> Result<i64, DecodeError> {
        let mut number = 0_u64;
        for at in 0..MAX_VARINT_BYTES {
            let [byte] = self.read_array()?;
            number |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                return Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed());
            }
        }
        Err(DecodeError::invalid("a number is too long"))
    }

    pub fn read_bytes(&mut self) -> Result<&'b [u8], DecodeError> {
        let length = usize::try_from(self.read_long()?).map_err(|_| DecodeError::invalid("a length is negative"))?;
        self.read_slice(length)
    }

    /// Reads the item count of the next block of an array or a map; `None` at the end.
    pub fn read_block_count(&mut self) -> Result<Option<u64>, DecodeError> {
        let count = self.read_long()?;
        if count < 0 {
            // A negative count is followed by the block's size in bytes, which only serves to skip the block.
            self.read_long()?;
        }
        Ok(Some(count.unsigned_abs()).filter(|count| *count > 0))
    }
}
