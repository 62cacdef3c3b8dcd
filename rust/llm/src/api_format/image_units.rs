//! Image parameters of requests and image counts of responses. Some models are billed per image, by quality and size.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::json::{keys::value_start, scan::for_each_field, string_literal::decode_string};

/// Upper bound for the requested image count. No provider makes more at once; providers reject larger requests.
const MAX_IMAGES: u64 = 1000;

/// Parameters of the images that a client requests, as the client wrote them. `quality` and `size` are empty if the
/// request does not set them.
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
    /// Reads the parameters from a JSON body. For malformed JSON, reads the fields before the error.
    pub fn from_json(body: &[u8]) -> Self {
        let mut params = Self::default();
        let _ = for_each_field(body, |key, at| {
            let value = &body[at];
            let text = decode_string(value).unwrap_or_else(|| String::from_utf8_lossy(value));
            params.set_field(key, &text);
            Ok(())
        });
        params
    }

    /// Sets a parameter; ignores other keys.
    pub(crate) fn set_field(&mut self, key: &[u8], text: &str) {
        match key {
            b"n" => self.count = text.trim().parse().unwrap_or(1).min(MAX_IMAGES),
            b"quality" if text != "null" => text.clone_into(&mut self.quality),
            b"size" if text != "null" => text.clone_into(&mut self.size),
            _ => (),
        }
    }
}

/// Key of an image in base64. Quotes inside strings are escaped, so a key never matches within text.
static BASE64_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"b64_json\""));
/// Key of an image that is returned as a URL.
static URL_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"url\""));
/// Key of the list that contains the images.
static DATA_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"data\""));
/// Number of bytes at the end of the received data that are scanned with the next chunk. A key and the first byte of
/// its value fit into them.
const LOOKAHEAD_BYTES: usize = 64;

/// Counts the images of a response while it is forwarded.
#[derive(Debug, Default)]
pub struct ImageCounter {
    /// Tail that is not scanned yet, because a key in it may continue in the next chunk.
    unscanned: Vec<u8>,
    base64_count: u64,
    url_count: u64,
    has_data_list: bool,
}

impl ImageCounter {
    /// Counts the images of a complete response; `None` if it has no list of images.
    pub fn count_images(response: &[u8]) -> Option<u64> {
        let mut counter = Self::default();
        counter.scan(response, response.len());
        counter.count()
    }

    /// Scans the next chunk of the response.
    pub(crate) fn feed(&mut self, chunk: &[u8]) {
        let mut bytes = std::mem::take(&mut self.unscanned);
        bytes.extend_from_slice(chunk);
        let scanned = bytes.len().saturating_sub(LOOKAHEAD_BYTES);
        self.scan(&bytes, scanned);
        bytes.drain(..scanned);
        self.unscanned = bytes;
    }

    /// Scans the remaining bytes at the end of the response and returns the image count.
    pub(crate) fn finish(mut self) -> Option<u64> {
        let rest = std::mem::take(&mut self.unscanned);
        self.scan(&rest, rest.len());
        self.count()
    }

    fn count(&self) -> Option<u64> {
        self.has_data_list.then(|| self.base64_count.max(self.url_count))
    }

    /// Counts the keys that begin before the offset `end`.
    fn scan(&mut self, bytes: &[u8], end: usize) {
        let count_key = |key: &Finder<'_>, open: u8| {
            let keys = key.find_iter(bytes).take_while(|at| *at < end);
            let is_it =
                |at: &usize| matches!(value_start(bytes, at + key.needle().len()), Some((_, byte)) if byte == open);
            keys.filter(is_it).count() as u64
        };
        self.has_data_list |= count_key(&DATA_KEY, b'[') > 0;
        self.base64_count += count_key(&BASE64_KEY, b'"');
        self.url_count += count_key(&URL_KEY, b'"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_images_for_any_encoding_and_chunk_size() {
        let image = "A".repeat(300);
        for (response, expected) in [
            (format!(r#"{{"data":[{{"b64_json":"{image}"}},{{"b64_json" : "{image}"}}]}}"#), Some(2)),
            (r#"{"created":1,"data":[{"url":"u","revised_prompt":"\"url\":\"u\""}]}"#.to_owned(), Some(1)),
            (r#"{"data":[{"url":"u","b64_json":null},{"url":"v","b64_json":null}]}"#.to_owned(), Some(2)),
            (r#"{"data":[]}"#.to_owned(), Some(0)),
            (r#"{"error":{"message":"no"}}"#.to_owned(), None),
        ] {
            assert_eq!(ImageCounter::count_images(response.as_bytes()), expected, "{response}");
            for size in [1, 7, 100, 1000] {
                let mut counter = ImageCounter::default();
                response.as_bytes().chunks(size).for_each(|chunk| counter.feed(chunk));
                assert_eq!(counter.finish(), expected, "{size} {response}");
            }
        }
    }

    #[test]
    fn defaults_to_one_image_without_quality_and_size() {
        let image_params =
            |count, quality: &str, size: &str| ImageParams { count, quality: quality.into(), size: size.into() };
        for (body, expected) in [
            (
                r#"{"model":"m","prompt":"\"n\":9","n":3,"quality":"hd","size":"1024x1792"}"#,
                image_params(3, "hd", "1024x1792"),
            ),
            (r#"{"n":null,"quality":null,"size":"auto"}"#, image_params(1, "", "auto")),
            (r#"{"n":99999999999,"size":"1x1""#, image_params(MAX_IMAGES, "", "1x1")),
            ("[]", ImageParams::default()),
        ] {
            assert_eq!(ImageParams::from_json(body.as_bytes()), expected, "{body}");
        }
    }
}
