//! Lines that come in pieces: no more than one of them is held.

use memchr::memchr;

use crate::translation::Refusal;

/// A line that is longer than lines may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong {
    pub number: usize,
    pub most: usize,
}

impl std::fmt::Display for TooLong {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "line {}: it is longer than {} bytes", self.number, self.most)
    }
}

impl From<TooLong> for Refusal {
    fn from(fault: TooLong) -> Self {
        Self::new("file", fault.to_string())
    }
}

/// The lines of a file, counted from 1.
#[derive(Debug)]
pub struct Lines {
    longest: usize,
    /// What came of a line that has not ended.
    kept: Vec<u8>,
    number: usize,
}

impl Lines {
    pub fn new(longest: usize) -> Self {
        Self { longest, kept: Vec::new(), number: 1 }
    }

    /// Calls `each` with the number of every line that ends in these bytes, and with the line without its end.
    pub fn feed<E: From<TooLong>>(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.kept.is_empty() {
                self.bound(line.len())?;
                each(self.number, line)?;
            } else {
                self.keep(line)?;
                let whole = std::mem::take(&mut self.kept);
                each(self.number, &whole)?;
            }
            self.number += 1;
            bytes = rest;
        }
        Ok(self.keep(bytes)?)
    }

    /// The same for the last line, which may lack its end.
    pub fn end<E>(&mut self, each: impl FnOnce(usize, &[u8]) -> Result<(), E>) -> Result<(), E> {
        each(self.number, &std::mem::take(&mut self.kept))
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), TooLong> {
        self.bound(self.kept.len() + part.len())?;
        self.kept.extend_from_slice(part);
        Ok(())
    }

    fn bound(&self, length: usize) -> Result<(), TooLong> {
        if length <= self.longest { Ok(()) } else { Err(TooLong { number: self.number, most: self.longest }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, step: usize, longest: usize) -> Result<Vec<(usize, String)>, TooLong> {
        let (mut lines, mut found) = (Lines::new(longest), Vec::new());
        let mut each = |number: usize, line: &[u8]| {
            found.push((number, String::from_utf8_lossy(line).into_owned()));
            Ok(())
        };
        text.as_bytes().chunks(step).try_for_each(|piece| lines.feed(piece, &mut each))?;
        lines.end(&mut each)?;
        Ok(found)
    }

    #[test]
    fn lines_are_the_same_in_whatever_pieces_they_come() {
        for step in [1, 2, 5, 100] {
            let found = read("one\n\ntwo\r\nthree", step, 5).unwrap();
            let wanted = [(1, "one"), (2, ""), (3, "two\r"), (4, "three")];
            assert_eq!(found, wanted.map(|(number, line)| (number, line.to_owned())), "{step}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_told_by_its_number_whether_it_ends_or_not() {
        for text in ["one\nlonger", "one\nlonger\n", "one\nlonger\nshort"] {
            for step in [1, 3, 100] {
                assert_eq!(read(text, step, 5), Err(TooLong { number: 2, most: 5 }), "{text} {step}");
            }
        }
    }
}
