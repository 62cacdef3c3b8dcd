//! Request reader. Parses the head with httparse and finds the few body fields it needs by a search instead of a JSON
//! parser.

use std::ops::Range;

use memchr::memmem;

const MAX_HEADERS: usize = 128;
const MAX_HEAD_BYTES: usize = 512 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    ContentLength(usize),
    Chunked,
}

/// Parts of a request's head that the mock provider needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    pub len: usize,
    pub method: Range<usize>,
    pub target: Range<usize>,
    pub body_length: BodyLength,
    pub flags: RequestFlags,
}

/// Flags of a request. They are bits of one integer, so that they can be part of the cache key of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFlags(pub u16);

impl RequestFlags {
    pub const CLOSE: u16 = 1;
    pub const HTTP_1_0: u16 = 2;
    pub const EXPECTS_CONTINUE: u16 = 4;
    pub const ANTHROPIC_VERSION: u16 = 8;
    pub const MOCK_HEADERS: u16 = 16;
    pub const STREAM: u16 = 32;
    pub const INCLUDE_USAGE: u16 = 64;
    pub const HEAD_METHOD: u16 = 128;
    pub const WEBSOCKET_UPGRADE: u16 = 256;
    /// The request contains a tool result.
    pub const HAS_TOOL_RESULT: u16 = 512;

    pub fn has(self, mark: u16) -> bool {
        self.0 & mark != 0
    }

    pub fn set(&mut self, mark: u16, on: bool) {
        if on {
            self.0 |= mark;
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct BadRequest;

impl RequestHead {
    /// Parses the head; returns `None` while it is incomplete.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, BadRequest> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let len = match request.parse(bytes) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
            _ => return Err(BadRequest),
        };
        let mut head = Self {
            len,
            method: byte_range(bytes, request.method.unwrap_or_default()),
            target: byte_range(bytes, request.path.unwrap_or_default()),
            body_length: BodyLength::ContentLength(0),
            flags: RequestFlags::default(),
        };
        head.flags.set(RequestFlags::HTTP_1_0 | RequestFlags::CLOSE, request.version == Some(0));
        for header in request.headers.iter() {
            head.read_header(header.name, header.value)?;
        }
        Ok(Some(head))
    }

    fn read_header(&mut self, name: &str, value: &[u8]) -> Result<(), BadRequest> {
        match name.len() {
            6 if name.eq_ignore_ascii_case("expect") => {
                self.flags.set(RequestFlags::EXPECTS_CONTINUE, true);
            }
            7 if name.eq_ignore_ascii_case("upgrade") => {
                self.flags.set(RequestFlags::WEBSOCKET_UPGRADE, value.eq_ignore_ascii_case(b"websocket"));
            }
            10 if name.eq_ignore_ascii_case("connection") => {
                self.flags.set(RequestFlags::CLOSE, value.eq_ignore_ascii_case(b"close"));
            }
            14 if name.eq_ignore_ascii_case("content-length") && self.body_length != BodyLength::Chunked => {
                let text = std::str::from_utf8(value).map_err(|_| BadRequest)?;
                self.body_length = BodyLength::ContentLength(text.trim().parse().map_err(|_| BadRequest)?);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => self.body_length = BodyLength::Chunked,
            17 if name.eq_ignore_ascii_case("anthropic-version") => {
                self.flags.set(RequestFlags::ANTHROPIC_VERSION, true);
            }
            8.. if name.as_bytes()[..7].eq_ignore_ascii_case(b"x-mock-") => {
                self.flags.set(RequestFlags::MOCK_HEADERS, true);
            }
            _ => {}
        }
        Ok(())
    }
}

// httparse returns slices of its input, so the offset of a slice follows from the two pointers.
fn byte_range(bytes: &[u8], part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize);
    start..start + part.len()
}

/// Returns the method, the path and the headers of a head; header names are in lower case.
pub fn decode_head(head: &[u8]) -> (String, String, Vec<(String, String)>) {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let _ = request.parse(head);
    let header_pairs = request
        .headers
        .iter()
        .map(|header| (header.name.to_ascii_lowercase(), String::from_utf8_lossy(header.value).into_owned()))
        .collect();
    (request.method.unwrap_or_default().to_owned(), request.path.unwrap_or_default().to_owned(), header_pairs)
}

/// Returns the raw text of a string field, without its quotes; `quoted_name` includes the quotes of the name.
pub fn find_string_field<'a>(body: &'a [u8], quoted_name: &'static str) -> Option<&'a [u8]> {
    find_field_values(body, quoted_name).find_map(|value| {
        let text = value.strip_prefix(b"\"")?;
        let mut from = 0;
        loop {
            let end = from + memchr::memchr2(b'"', b'\\', &text[from..])?;
            if text[end] == b'"' {
                return Some(&text[..end]);
            }
            from = (end + 2).min(text.len());
        }
    })
}

/// Decodes the escapes of a raw JSON string. Clients may escape any character; Go's encoder escapes `&`.
pub fn unescape_json(raw: &[u8]) -> String {
    if memchr::memchr(b'\\', raw).is_none() {
        return String::from_utf8_lossy(raw).into_owned();
    }
    serde_json::from_slice(&[b"\"", raw, b"\""].concat()).unwrap_or_default()
}

pub fn is_field_true(body: &[u8], quoted_name: &'static str) -> bool {
    find_field_values(body, quoted_name).any(|value| value.starts_with(b"true"))
}

// Inside a JSON string, the quotes of a quoted name are escaped, so the search finds only keys and complete string
// values. String values are skipped, because no colon follows them.
fn find_field_values<'a>(body: &'a [u8], quoted_name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    memmem::find_iter(body, quoted_name).filter_map(move |at| {
        body[at + quoted_name.len()..].trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_method_target_length_and_flags() {
        let text =
            b"POST /v1/x?y=1 HTTP/1.1\r\nContent-Length: 12\r\nX-Mock-Fault: cut\r\nConnection: Close\r\n\r\nbody";
        let head = RequestHead::parse(text).unwrap().unwrap();
        assert_eq!((&text[head.method.clone()], &text[head.target.clone()]), (&b"POST"[..], &b"/v1/x?y=1"[..]));
        assert_eq!((head.len, head.body_length), (text.len() - 4, BodyLength::ContentLength(12)));
        assert!(
            head.flags.has(RequestFlags::MOCK_HEADERS)
                && head.flags.has(RequestFlags::CLOSE)
                && !head.flags.has(RequestFlags::HTTP_1_0)
        );
        assert_eq!(RequestHead::parse(&text[..40]), Ok(None));
        assert_eq!(RequestHead::parse(b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n"), Err(BadRequest));
    }

    #[test]
    fn unescapes_json_strings() {
        assert_eq!(unescape_json(br"mock?a=1\u0026b=2"), "mock?a=1&b=2");
    }

    #[test]
    fn finds_body_fields_without_a_parser() {
        let body = br#"{"messages":[{"role":"model","content":"\"model\": \"no\", \"stream\": true"}], "model" : "a\"b?x=1","stream":false}"#;
        assert_eq!(find_string_field(body, "\"model\""), Some(&br#"a\"b?x=1"#[..]));
        assert!(!is_field_true(body, "\"stream\""));
        assert!(is_field_true(br#"{"stream": true}"#, "\"stream\""));
        assert_eq!(find_string_field(br#"{"model":"cut"#, "\"model\""), None);
    }
}
