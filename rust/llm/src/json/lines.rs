//! Line splitter for input that arrives in chunks. Buffers at most one line.

use memchr::memchr;

/// Error for a line that exceeds the maximum length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineTooLong {
    pub line_number: usize,
    pub max_bytes: usize,
}

impl std::fmt::Display for LineTooLong {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "line {}: it is longer than {} bytes", self.line_number, self.max_bytes)
    }
}

/// Splits a file into lines and counts them from 1.
#[derive(Debug)]
pub struct LineSplitter {
    max_line_bytes: usize,
    /// Received part of the current line.
    partial_line: Vec<u8>,
    line_number: usize,
}

impl LineSplitter {
    pub fn new(max_line_bytes: usize) -> Self {
        Self { max_line_bytes, partial_line: Vec::new(), line_number: 1 }
    }

    /// Calls `each` for every line that ends in these bytes, with its number and its content without the newline.
    pub fn feed<E: From<LineTooLong>>(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.partial_line.is_empty() {
                self.check_length(line.len())?;
                each(self.line_number, line)?;
            } else {
                self.append_partial(line)?;
                let full_line = std::mem::take(&mut self.partial_line);
                each(self.line_number, &full_line)?;
            }
            self.line_number += 1;
            bytes = rest;
        }
        Ok(self.append_partial(bytes)?)
    }

    /// Calls `each` for the last line, which may lack its newline.
    pub fn finish<E>(&mut self, each: impl FnOnce(usize, &[u8]) -> Result<(), E>) -> Result<(), E> {
        each(self.line_number, &std::mem::take(&mut self.partial_line))
    }

    fn append_partial(&mut self, part: &[u8]) -> Result<(), LineTooLong> {
        self.check_length(self.partial_line.len() + part.len())?;
        self.partial_line.extend_from_slice(part);
        Ok(())
    }

    fn check_length(&self, length: usize) -> Result<(), LineTooLong> {
        if length <= self.max_line_bytes {
            Ok(())
        } else {
            Err(LineTooLong { line_number: self.line_number, max_bytes: self.max_line_bytes })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_lines(text: &str, step: usize, longest: usize) -> Result<Vec<(usize, String)>, LineTooLong> {
        let (mut lines, mut split) = (LineSplitter::new(longest), Vec::new());
        let mut each = |number: usize, line: &[u8]| {
            split.push((number, String::from_utf8_lossy(line).into_owned()));
            Ok(())
        };
        text.as_bytes().chunks(step).try_for_each(|chunk| lines.feed(chunk, &mut each))?;
        lines.finish(&mut each)?;
        Ok(split)
    }

    #[test]
    fn splits_lines_the_same_for_any_chunk_size() {
        for step in [1, 2, 5, 100] {
            let lines = split_lines("one\n\ntwo\r\nthree", step, 5).unwrap();
            let expected_lines = [(1, "one"), (2, ""), (3, "two\r"), (4, "three")];
            assert_eq!(lines, expected_lines.map(|(number, line)| (number, line.to_owned())), "{step}");
        }
    }

    #[test]
    fn reports_the_number_of_a_line_that_is_too_long() {
        for text in ["one\nlonger", "one\nlonger\n", "one\nlonger\nshort"] {
            for step in [1, 3, 100] {
                assert_eq!(
                    split_lines(text, step, 5),
                    Err(LineTooLong { line_number: 2, max_bytes: 5 }),
                    "{text} {step}"
                );
            }
        }
    }
}
