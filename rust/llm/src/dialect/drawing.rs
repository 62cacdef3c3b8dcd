//! How many images a request asks for, and of which kind: by that some are paid for.

use super::scan::{fields, text};

/// More are made by nobody at once; who asks for more is refused by its provider.
const MOST: u64 = 1000;

/// What is asked for, in the caller's words; empty where nothing is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drawing {
    pub count: u64,
    pub quality: String,
    pub size: String,
}

impl Default for Drawing {
    fn default() -> Self {
        Self { count: 1, quality: String::new(), size: String::new() }
    }
}

impl Drawing {
    /// Of a body of JSON; of a broken one, what stands before the fault.
    pub fn of(body: &[u8]) -> Self {
        let mut drawing = Self::default();
        let _ = fields(body, |key, at| {
            let value = &body[at];
            let said = text(value).unwrap_or_else(|| String::from_utf8_lossy(value));
            drawing.take(key, &said);
            Ok(())
        });
        drawing
    }

    /// Takes a field, if it is one of these.
    pub(super) fn take(&mut self, key: &[u8], said: &str) {
        match key {
            b"n" => self.count = said.trim().parse().unwrap_or(1).min(MOST),
            b"quality" if said != "null" => said.clone_into(&mut self.quality),
            b"size" if said != "null" => said.clone_into(&mut self.size),
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_one_image_of_whatever_kind() {
        let drawing = |count, quality: &str, size: &str| Drawing { count, quality: quality.into(), size: size.into() };
        for (body, expected) in [
            (
                r#"{"model":"m","prompt":"\"n\":9","n":3,"quality":"hd","size":"1024x1792"}"#,
                drawing(3, "hd", "1024x1792"),
            ),
            (r#"{"n":null,"quality":null,"size":"auto"}"#, drawing(1, "", "auto")),
            (r#"{"n":99999999999,"size":"1x1""#, drawing(MOST, "", "1x1")),
            ("[]", Drawing::default()),
        ] {
            assert_eq!(Drawing::of(body.as_bytes()), expected, "{body}");
        }
    }
}
