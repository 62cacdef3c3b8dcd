//! How many images a request asks for, and of which kind, and how many came: by that some are paid for.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::json::scan::{decode_string, for_each_field};
use crate::usage::value_start;

/// More are made by nobody at once; who asks for more is refused by its provider.
const MAX_IMAGES: u64 = 1000;

/// What is asked for, in the caller's words; empty where nothing is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageParams {
    pub count: u64,
    pub quality: String,
    pub size: String,
}

impl Default for ImageParams {
    fn default() -> Self {
        Self { count: 1, quality: String::new(), size: String::new() }
    }
}

impl ImageParams {
    /// Of a body of JSON; of a broken one, what stands before the fault.
    pub fn from_json(body: &[u8]) -> Self {
        let mut drawing = Self::default();
        let _ = for_each_field(body, |key, at| {
            let value = &body[at];
            let said = decode_string(value).unwrap_or_else(|| String::from_utf8_lossy(value));
            drawing.set_field(key, &said);
            Ok(())
        });
        drawing
    }

    /// Takes a field, if it is one of these.
    pub(crate) fn set_field(&mut self, key: &[u8], said: &str) {
        match key {
            b"n" => self.count = said.trim().parse().unwrap_or(1).min(MAX_IMAGES),
            b"quality" if said != "null" => said.clone_into(&mut self.quality),
            b"size" if said != "null" => said.clone_into(&mut self.size),
            _ => (),
        }
    }
}

/// Each image is in one of these ways in the list. Quotes within strings are escaped, so keys are found in no text.
static BASE64_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"b64_json\""));
static URL_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"url\""));
static DATA_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"data\""));
/// A key and the beginning of its value stand within so many bytes.
const LOOKAHEAD_BYTES: usize = 64;

/// Counts the images of an answer as it passes by.
#[derive(Debug, Default)]
pub struct ImageCounter {
    /// What has not been looked at, as more of it may come.
    unscanned: Vec<u8>,
    base64_count: u64,
    url_count: u64,
    has_data_list: bool,
}

impl ImageCounter {
    /// Those of a whole answer; `None` where it has no list of them.
    pub fn count_images(answer: &[u8]) -> Option<u64> {
        let mut drawn = Self::default();
        drawn.scan(answer, answer.len());
        drawn.count()
    }

    /// Takes the next bytes of the answer.
    pub(crate) fn feed(&mut self, chunk: &[u8]) {
        let mut bytes = std::mem::take(&mut self.unscanned);
        bytes.extend_from_slice(chunk);
        let known = bytes.len().saturating_sub(LOOKAHEAD_BYTES);
        self.scan(&bytes, known);
        bytes.drain(..known);
        self.unscanned = bytes;
    }

    /// The answer is over.
    pub(crate) fn finish(mut self) -> Option<u64> {
        let rest = std::mem::take(&mut self.unscanned);
        self.scan(&rest, rest.len());
        self.count()
    }

    fn count(&self) -> Option<u64> {
        self.has_data_list.then(|| self.base64_count.max(self.url_count))
    }

    /// Looks at what begins before an offset.
    fn scan(&mut self, bytes: &[u8], end: usize) {
        let found = |key: &Finder<'_>, open: u8| {
            let keys = key.find_iter(bytes).take_while(|at| *at < end);
            let is_it =
                |at: &usize| matches!(value_start(bytes, at + key.needle().len()), Some((_, byte)) if byte == open);
            keys.filter(is_it).count() as u64
        };
        self.has_data_list |= found(&DATA_KEY, b'[') > 0;
        self.base64_count += found(&BASE64_KEY, b'"');
        self.url_count += found(&URL_KEY, b'"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_images_for_any_encoding_and_chunk_size() {
        let image = "A".repeat(300);
        for (answer, expected) in [
            (format!(r#"{{"data":[{{"b64_json":"{image}"}},{{"b64_json" : "{image}"}}]}}"#), Some(2)),
            (r#"{"created":1,"data":[{"url":"u","revised_prompt":"\"url\":\"u\""}]}"#.to_owned(), Some(1)),
            (r#"{"data":[{"url":"u","b64_json":null},{"url":"v","b64_json":null}]}"#.to_owned(), Some(2)),
            (r#"{"data":[]}"#.to_owned(), Some(0)),
            (r#"{"error":{"message":"no"}}"#.to_owned(), None),
        ] {
            assert_eq!(ImageCounter::count_images(answer.as_bytes()), expected, "{answer}");
            for size in [1, 7, 100, 1000] {
                let mut drawn = ImageCounter::default();
                answer.as_bytes().chunks(size).for_each(|chunk| drawn.feed(chunk));
                assert_eq!(drawn.finish(), expected, "{size} {answer}");
            }
        }
    }

    #[test]
    fn defaults_to_one_image_without_quality_and_size() {
        let drawing =
            |count, quality: &str, size: &str| ImageParams { count, quality: quality.into(), size: size.into() };
        for (body, expected) in [
            (
                r#"{"model":"m","prompt":"\"n\":9","n":3,"quality":"hd","size":"1024x1792"}"#,
                drawing(3, "hd", "1024x1792"),
            ),
            (r#"{"n":null,"quality":null,"size":"auto"}"#, drawing(1, "", "auto")),
            (r#"{"n":99999999999,"size":"1x1""#, drawing(MAX_IMAGES, "", "1x1")),
            ("[]", ImageParams::default()),
        ] {
            assert_eq!(ImageParams::from_json(body.as_bytes()), expected, "{body}");
        }
    }
}
