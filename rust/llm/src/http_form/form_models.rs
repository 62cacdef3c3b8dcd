//! Reader of all models that a multipart form names, in bounded memory. Ambiguous forms are errors, unlike in other
//! form parsers. Otherwise the provider's parser might find a model that this reader misses.

use std::ops::Range;

use memchr::memmem::{self, Finder};

use crate::{
    api_format::{NamedModel, is_model_key, named_models},
    http_form::form::multipart_delimiter,
};

const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Maximum length of a field that may name a model.
const MAX_VALUE_BYTES: usize = 64 * 1024;
/// Headers that encode the content of a part. RFC 7578 deprecates them in forms.
const ENCODING_HEADERS: [&str; 2] = ["content-transfer-encoding", "content-encoding"];

/// Reads a form as it streams. The models must be taken after each chunk.
pub struct FormModelReader {
    /// Two dashes and the boundary.
    boundary: Finder<'static>,
    state: ReaderState,
    /// Received bytes that are not parsed yet.
    buffer: Vec<u8>,
    found: Vec<NamedModel>,
}

enum ReaderState {
    /// In the preamble, or in a part that names no model.
    Skipping,
    PartHeaders,
    Value(PartField),
    Finished,
}

struct PartField {
    name: String,
    /// True if the value itself is a model; otherwise it may be a JSON document that names some.
    is_model: bool,
}

impl FormModelReader {
    /// Creates a reader; `None` if the content type is not multipart form data with one unambiguous boundary.
    pub fn from_content_type(content_type: &str) -> Option<Self> {
        let delimiter = multipart_delimiter(content_type)?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=?\r\n".contains(&byte);
        if content_type.to_ascii_lowercase().matches("boundary=").count() > 1 || !delimiter.bytes().all(is_plain) {
            return None;
        }
        let boundary = Finder::new(delimiter.trim_start().as_bytes()).into_owned();
        // The first boundary may lack the line end before it, so one is added here.
        Some(Self { boundary, state: ReaderState::Skipping, buffer: b"\r\n".to_vec(), found: Vec::new() })
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.state, ReaderState::Finished)
    }

    /// Returns the models that were found since the last call.
    pub fn take_models(&mut self) -> Vec<NamedModel> {
        std::mem::take(&mut self.found)
    }

    /// Reads the next bytes of the form; the error is a message about what makes it ambiguous.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        if self.is_finished() {
            return Ok(());
        }
        self.buffer.extend_from_slice(bytes);
        while self.advance()? {}
        Ok(())
    }

    /// Reads one element. Returns false if more input is needed first.
    fn advance(&mut self) -> Result<bool, &'static str> {
        match std::mem::replace(&mut self.state, ReaderState::Skipping) {
            ReaderState::Skipping => {
                let Some(delimiter) = self.find_delimiter(0)? else {
                    // Retains what may be the beginning of a delimiter.
                    let surplus = self.buffer.len().saturating_sub(self.boundary.needle().len() + 1);
                    self.buffer.drain(..surplus);
                    return Ok(false);
                };
                self.enter_part(delimiter.end);
                Ok(true)
            }
            ReaderState::PartHeaders => self.read_part_headers(),
            ReaderState::Value(field) => self.read_value(field),
            ReaderState::Finished => {
                self.state = ReaderState::Finished;
                Ok(false)
            }
        }
    }

    /// Returns the range of the next delimiter.
    fn find_delimiter(&self, mut from: usize) -> Result<Option<Range<usize>>, &'static str> {
        let length = self.boundary.needle().len();
        while let Some(at) = self.boundary.find(&self.buffer[from..]).map(|at| from + at) {
            match &self.buffer[..at] {
                [.., b'\r', b'\n'] => return Ok(Some(at - 2..at + length)),
                [] | [.., b'\r' | b'\n'] => return Err("a boundary does not follow a CRLF line end"),
                _ => from = at + 1,
            }
        }
        Ok(None)
    }

    /// Drops the input up to the end of a delimiter.
    fn enter_part(&mut self, delimiter_end: usize) {
        self.buffer.drain(..delimiter_end);
        self.state = ReaderState::PartHeaders;
    }

    fn read_part_headers(&mut self) -> Result<bool, &'static str> {
        self.state = ReaderState::PartHeaders;
        match &*self.buffer {
            [] | [b'-' | b'\r'] => return Ok(false),
            [b'-', b'-', ..] => {
                (self.state, self.buffer) = (ReaderState::Finished, Vec::new());
                return Ok(false);
            }
            [b'\r', b'\n', ..] => (),
            _ => return Err("a boundary is not at the end of its line"),
        }
        let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") else {
            let is_short = self.buffer.len() <= MAX_HEAD_BYTES;
            return if is_short { Ok(false) } else { Err("the headers of a part are too long") };
        };
        let head: Vec<_> = self.buffer.drain(..end + 4).collect();
        let head = std::str::from_utf8(&head[..end]).map_err(|_| "the headers of a part are not UTF-8")?;
        self.state = parse_part_head(head)?.map_or(ReaderState::Skipping, ReaderState::Value);
        Ok(true)
    }

    fn read_value(&mut self, field: PartField) -> Result<bool, &'static str> {
        let Some(delimiter) = self.find_delimiter(0)? else {
            let is_document = || matches!(self.buffer.trim_ascii_start(), [b'{' | b'[', ..] | []);
            if self.buffer.len() <= MAX_VALUE_BYTES {
                self.state = ReaderState::Value(field);
                return Ok(false);
            }
            // A long text names no model.
            return if field.is_model || is_document() { Err("the value of a field is too long") } else { Ok(true) };
        };
        let value = self.buffer[..delimiter.start].to_vec();
        if field.is_model {
            let name = String::from_utf8(value).map_err(|_| "a field that names a model is not UTF-8")?;
            self.found.push(NamedModel { field: field.name, name });
        } else if value.trim_ascii_start().starts_with(b"{") {
            let nested = |model: NamedModel| NamedModel { field: format!("{}.{}", field.name, model.field), ..model };
            let models = named_models(&value).map_err(|_| "the JSON of a field cannot be read")?;
            self.found.extend(models.into_iter().map(nested));
        }
        self.enter_part(delimiter.end);
        Ok(true)
    }
}

/// Parses the headers of a part. Returns the field if its value may name a model.
fn parse_part_head(head: &str) -> Result<Option<PartField>, &'static str> {
    let (mut disposition, mut has_coding, mut is_json) = (None, false, false);
    for line in head.split("\r\n").filter(|line| !line.is_empty()) {
        if line.contains(['\r', '\n', '\0']) || line.starts_with([' ', '\t']) {
            return Err("the headers of a part have an ambiguous line end");
        }
        let (name, value) = line.split_once(':').ok_or("a part has an invalid header")?;
        match name.to_ascii_lowercase().as_str() {
            "content-disposition" if disposition.is_some() => {
                return Err("a part has more than one content-disposition");
            }
            "content-disposition" => disposition = Some(value),
            "content-type" => is_json = value.to_ascii_lowercase().contains("json"),
            name => has_coding |= ENCODING_HEADERS.contains(&name.trim()),
        }
    }
    let parameters = parse_disposition(disposition.ok_or("a part has no content-disposition")?)?;
    let parameter = |parameter_name: &str| parameters.iter().find(|(name, _)| name == parameter_name);
    if parameter("name*").is_some() || parameters.iter().filter(|(name, _)| name == "name").count() != 1 {
        return Err("a part must have one `name`");
    }
    let name = parameter("name").map(|(_, value)| *value).unwrap_or_default();
    let is_model = is_model_key(name) || name.eq_ignore_ascii_case("version") || name.eq_ignore_ascii_case("engine");
    let is_file = parameter("filename").is_some() || parameter("filename*").is_some();
    if is_file && !is_model && !is_json {
        return Ok(None);
    }
    if has_coding {
        return Err("a field is encoded");
    }
    Ok(Some(PartField { name: name.to_owned(), is_model }))
}

/// Parses the parameters of a content-disposition. Rejects escapes, which parsers read differently.
fn parse_disposition(value: &str) -> Result<Vec<(String, &str)>, &'static str> {
    const INVALID: &str = "a part has an invalid content-disposition";
    let mut rest = value.trim();
    rest = rest
        .get(.."form-data".len())
        .filter(|kind| kind.eq_ignore_ascii_case("form-data"))
        .map(|kind| &rest[kind.len()..])
        .ok_or(INVALID)?;
    let mut parameters = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(parameters);
        }
        rest = rest.strip_prefix(';').ok_or(INVALID)?.trim_start();
        if rest.is_empty() {
            return Ok(parameters);
        }
        let (name, after) = rest.split_once('=').ok_or(INVALID)?;
        let value;
        (value, rest) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or(INVALID)?,
            None => after.split_at(after.find(';').unwrap_or(after.len())),
        };
        let name = name.to_ascii_lowercase();
        if name.contains(['"', ' ', '\t']) || name.starts_with("name") && value.contains(['\\', '"', '%']) {
            return Err(INVALID);
        }
        parameters.push((name, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT_TYPE: &str = "multipart/form-data; boundary=b-1";

    fn part(head: &str, value: &str) -> String {
        format!("--b-1\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    }

    fn read_models(body: &str, step: usize) -> Result<String, &'static str> {
        let mut reader = FormModelReader::from_content_type(CONTENT_TYPE).unwrap();
        let mut models = Vec::new();
        for chunk in body.as_bytes().chunks(step) {
            reader.feed(chunk)?;
            assert!(reader.buffer.len() <= MAX_VALUE_BYTES + step + 16);
            models.extend(reader.take_models());
        }
        assert!(reader.is_finished());
        Ok(models.into_iter().map(|row| format!("{}={}", row.field, row.name)).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn finds_every_model_for_any_chunk_size() {
        let file = part("name=\"file\"; filename=\"a;name=model\"", &"\r\n--b-\r\nmodel\n".repeat(9_000));
        let body = part("name=\"model\"", "a")
            + &file
            + &part("name=\"prompt\"", &"x".repeat(200_000))
            + &part("name=empty", "")
            + &part("name=\"Model\"", "b")
            + &part("name=\"session\"", r#"{"model":"c"}"#)
            + &part("name=\"model\"; filename=\"m\"", "d")
            + "--b-1--\r\n";
        for step in [1, 2, 7, 1000, body.len()] {
            assert_eq!(read_models(&body, step).as_deref(), Ok("model=a Model=b session.model=c model=d"), "{step}");
        }
    }

    #[test]
    fn rejects_ambiguous_boundaries() {
        for kind in ["a; boundary=b", "a; Boundary=b", "a\\b", "a b"]
            .map(|boundary| format!("multipart/form-data; boundary={boundary}"))
        {
            assert!(FormModelReader::from_content_type(&kind).is_none(), "{kind}");
        }
        // Browsers put the word into the boundary itself.
        let webkit = "multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW";
        assert!(FormModelReader::from_content_type(webkit).is_some());
    }

    #[test]
    fn rejects_ambiguous_forms() {
        for bad in [
            part("name*=UTF-8''model", "a"),
            part("name=\"x\"; name=\"model\"", "a"),
            part("name=\"mo\\del\"", "a"),
            part("name=\"x\"\r\n ; name=\"model\"", "a"),
            part("name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"", "a"),
            part("name=\"model\"\r\nContent-Transfer-Encoding: base64", "YQ=="),
            part("name=\"x\"", "y\n--b-1\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\na"),
            part("name=\"x\"", "y\r\n--b-1 \r\nContent-Disposition: form-data; name=\"model\"\r\n\r\na"),
            part("name=\"model\"", &"x".repeat(100_000)),
            part("name=\"session\"", &format!("{{{}}}", " ".repeat(100_000))),
        ] {
            let body = bad + "--b-1--\r\n";
            for step in [1, 1000] {
                assert!(read_models(&body, step).is_err(), "{body:.300}");
            }
        }
    }
}
