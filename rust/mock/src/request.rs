//! Reading a request: its head by httparse, and the two or three fields of its body by a search instead of a parser.

use std::ops::Range;

use memchr::memmem;

const MAX_HEADERS: usize = 128;
const MAX_HEAD: usize = 512 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    Known(usize),
    Chunked,
}

/// What the pretend provider needs to know of a request's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub len: usize,
    pub method: Range<usize>,
    pub target: Range<usize>,
    pub body: BodyLength,
    pub marks: Marks,
}

/// What the headers asked for, in one word so that it can be part of a plan's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks(pub u16);

impl Marks {
    pub const CLOSE: u16 = 1;
    pub const HTTP_1_0: u16 = 2;
    pub const EXPECTS_CONTINUE: u16 = 4;
    pub const ANTHROPIC: u16 = 8;
    pub const MOCK_HEADERS: u16 = 16;
    pub const STREAM: u16 = 32;
    pub const INCLUDE_USAGE: u16 = 64;
    pub const HEAD: u16 = 128;
    pub const UPGRADES: u16 = 256;
    /// The request brings what a tool gave back.
    pub const ANSWERS_CALL: u16 = 512;

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

impl Head {
    /// `None` while the head is incomplete.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, BadRequest> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let len = match request.parse(bytes) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
            _ => return Err(BadRequest),
        };
        let mut head = Self {
            len,
            method: span(bytes, request.method.unwrap_or_default()),
            target: span(bytes, request.path.unwrap_or_default()),
            body: BodyLength::Known(0),
            marks: Marks::default(),
        };
        head.marks.set(Marks::HTTP_1_0 | Marks::CLOSE, request.version == Some(0));
        for header in request.headers.iter() {
            head.read(header.name, header.value)?;
        }
        Ok(Some(head))
    }

    fn read(&mut self, name: &str, value: &[u8]) -> Result<(), BadRequest> {
        match name.len() {
            6 if name.eq_ignore_ascii_case("expect") => {
                self.marks.set(Marks::EXPECTS_CONTINUE, true);
            }
            7 if name.eq_ignore_ascii_case("upgrade") => {
                self.marks.set(Marks::UPGRADES, value.eq_ignore_ascii_case(b"websocket"));
            }
            10 if name.eq_ignore_ascii_case("connection") => {
                self.marks.set(Marks::CLOSE, value.eq_ignore_ascii_case(b"close"));
            }
            14 if name.eq_ignore_ascii_case("content-length") && self.body != BodyLength::Chunked => {
                let text = std::str::from_utf8(value).map_err(|_| BadRequest)?;
                self.body = BodyLength::Known(text.trim().parse().map_err(|_| BadRequest)?);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => self.body = BodyLength::Chunked,
            17 if name.eq_ignore_ascii_case("anthropic-version") => {
                self.marks.set(Marks::ANTHROPIC, true);
            }
            8.. if name.as_bytes()[..7].eq_ignore_ascii_case(b"x-mock-") => {
                self.marks.set(Marks::MOCK_HEADERS, true);
            }
            _ => {}
        }
        Ok(())
    }
}

// httparse hands out slices of its input, so their distance from its start is their place in it.
fn span(bytes: &[u8], part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize);
    start..start + part.len()
}

/// Method, path and lower-cased headers of a head.
pub fn describe(head: &[u8]) -> (String, String, Vec<(String, String)>) {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let _ = request.parse(head);
    let named = request
        .headers
        .iter()
        .map(|header| (header.name.to_ascii_lowercase(), String::from_utf8_lossy(header.value).into_owned()))
        .collect();
    (request.method.unwrap_or_default().to_owned(), request.path.unwrap_or_default().to_owned(), named)
}

/// The raw text of a string field, without its quotes; `quoted_name` includes them.
pub fn string_field<'a>(body: &'a [u8], quoted_name: &'static str) -> Option<&'a [u8]> {
    values(body, quoted_name).find_map(|value| {
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

/// The text of a raw JSON string. Clients may write any character as an escape; Go's encoder does so with "&".
pub fn unescape(raw: &[u8]) -> String {
    if memchr::memchr(b'\\', raw).is_none() {
        return String::from_utf8_lossy(raw).into_owned();
    }
    serde_json::from_slice(&[b"\"", raw, b"\""].concat()).unwrap_or_default()
}

pub fn is_true(body: &[u8], quoted_name: &'static str) -> bool {
    values(body, quoted_name).any(|value| value.starts_with(b"true"))
}

// A quoted name inside a JSON string has its quotes escaped, so this finds keys (and string values, which no colon follows).
fn values<'a>(body: &'a [u8], quoted_name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    memmem::find_iter(body, quoted_name).filter_map(move |at| {
        body[at + quoted_name.len()..].trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_needs_of_a_head() {
        let text =
            b"POST /v1/x?y=1 HTTP/1.1\r\nContent-Length: 12\r\nX-Mock-Fault: cut\r\nConnection: Close\r\n\r\nbody";
        let head = Head::parse(text).unwrap().unwrap();
        assert_eq!((&text[head.method.clone()], &text[head.target.clone()]), (&b"POST"[..], &b"/v1/x?y=1"[..]));
        assert_eq!((head.len, head.body), (text.len() - 4, BodyLength::Known(12)));
        assert!(
            head.marks.has(Marks::MOCK_HEADERS) && head.marks.has(Marks::CLOSE) && !head.marks.has(Marks::HTTP_1_0)
        );
        assert_eq!(Head::parse(&text[..40]), Ok(None));
        assert_eq!(Head::parse(b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n"), Err(BadRequest));
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescape(br"mock?a=1\u0026b=2"), "mock?a=1&b=2");
    }

    #[test]
    fn finds_fields_without_a_parser() {
        let body = br#"{"messages":[{"role":"model","content":"\"model\": \"no\", \"stream\": true"}], "model" : "a\"b?x=1","stream":false}"#;
        assert_eq!(string_field(body, "\"model\""), Some(&br#"a\"b?x=1"#[..]));
        assert!(!is_true(body, "\"stream\""));
        assert!(is_true(br#"{"stream": true}"#, "\"stream\""));
        assert_eq!(string_field(br#"{"model":"cut"#, "\"model\""), None);
    }
}
