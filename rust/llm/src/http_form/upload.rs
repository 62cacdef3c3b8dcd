//! Streaming parser for multipart file uploads. Buffers only the file content that is not consumed yet.

use memchr::memmem::{self, Finder};

use super::form::{header_parameter, multipart_delimiter, part_header};

/// Maximum length of a part's headers, and of a field value.
const MAX_HEAD_OR_VALUE_BYTES: usize = 8 * 1024;
/// Maximum number of fields; real forms have fewer.
const MAX_FIELDS: usize = 32;

const FILE_FIELD: &str = "file";
const ONE_FILE_REQUIRED: &str = "it must have exactly one file, in a field called `file`, with a filename";
/// Headers that encode the content of a part. RFC 7578 deprecates them in forms, so they are rejected.
const ENCODING_HEADERS: [&str; 2] = ["content-transfer-encoding", "content-encoding"];

/// Parser for a form with one file among its fields, in any order.
pub struct UploadParser {
    /// Delimiter between parts: a line end, two dashes and the boundary.
    delimiter: Finder<'static>,
    state: UploadParserState,
    /// Received bytes that are not parsed yet.
    buffer: Vec<u8>,
    fields: Vec<(String, String)>,
    file_info: Option<FileInfo>,
    content: Vec<u8>,
}

/// Description of the file in the form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    pub name: String,
    /// Content type of the file, if the form gives one.
    pub content_type: Option<String>,
}

enum UploadParserState {
    /// Before the first delimiter.
    Preamble,
    /// After a delimiter.
    PartHeaders,
    /// In the value of the field with this name.
    Value(String),
    File,
    Finished,
}

impl UploadParser {
    /// Creates a parser; `None` if the content type is not multipart form data with a boundary.
    pub fn from_content_type(content_type: &str) -> Option<Self> {
        let delimiter = Finder::new(multipart_delimiter(content_type)?.as_bytes()).into_owned();
        Some(Self {
            delimiter,
            state: UploadParserState::Preamble,
            // The first delimiter may lack the line end before it, so one is added here.
            buffer: b"\r\n".to_vec(),
            fields: Vec::new(),
            file_info: None,
            content: Vec::new(),
        })
    }

    /// Parses the next bytes of the form; the error is a message about what is wrong with it.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        if matches!(self.state, UploadParserState::Finished) {
            return Ok(());
        }
        self.buffer.extend_from_slice(bytes);
        while self.advance()? {}
        Ok(())
    }

    /// Returns the file content that arrived since the last call.
    pub fn take_content(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.content)
    }

    /// Returns the description of the file once its part has begun.
    pub fn file_info(&self) -> Option<&FileInfo> {
        self.file_info.as_ref()
    }

    /// Returns the value of a field that was received.
    pub fn field_value(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field_name, _)| field_name == name).map(|(_, value)| value.as_str())
    }

    /// Returns the names and values of all received fields.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns true if the whole file was received.
    pub fn is_file_complete(&self) -> bool {
        self.file_info.is_some() && !matches!(self.state, UploadParserState::File)
    }

    /// Returns true if the form has ended.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, UploadParserState::Finished)
    }

    /// Parses one part, or a chunk of the file. Returns `false` if more input is needed first.
    fn advance(&mut self) -> Result<bool, &'static str> {
        match &mut self.state {
            UploadParserState::Preamble => Ok(self.consume_to_delimiter(false)),
            UploadParserState::File => Ok(self.consume_to_delimiter(true)),
            UploadParserState::PartHeaders => self.read_part_headers(),
            UploadParserState::Value(name) => {
                let name = std::mem::take(name);
                self.read_value(name)
            }
            UploadParserState::Finished => Ok(false),
        }
    }

    /// Consumes everything up to the next delimiter: as file content if `is_file` is true, otherwise it is discarded.
    fn consume_to_delimiter(&mut self, is_file: bool) -> bool {
        let delimiter_at = self.delimiter.find(&self.buffer);
        let length = self.delimiter.needle().len();
        // Retains what may be the beginning of a delimiter.
        let end = delimiter_at.unwrap_or_else(|| self.buffer.len().saturating_sub(length - 1));
        if is_file {
            self.content.extend_from_slice(&self.buffer[..end]);
        }
        self.buffer.drain(..delimiter_at.map_or(end, |at| at + length));
        if delimiter_at.is_some() {
            self.state = UploadParserState::PartHeaders;
        }
        delimiter_at.is_some()
    }

    fn read_part_headers(&mut self) -> Result<bool, &'static str> {
        if self.buffer.starts_with(b"--") {
            self.state = UploadParserState::Finished;
            self.buffer = Vec::new();
            return Ok(false);
        }
        let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") else {
            let is_fine = self.buffer.len() <= MAX_HEAD_OR_VALUE_BYTES;
            return if is_fine { Ok(false) } else { Err("the headers of a part are too long") };
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        self.buffer.drain(..end + 4);
        let disposition = part_header(&head, "content-disposition").ok_or("a part has no content-disposition")?;
        if head.to_ascii_lowercase().matches("content-disposition").count() > 1 {
            return Err("a part has more than one content-disposition");
        }
        let name = header_parameter(disposition, "name").ok_or("a part has no name")?.to_owned();
        let is_file = name.eq_ignore_ascii_case(FILE_FIELD);
        let Some(filename) = header_parameter(disposition, "filename").filter(|_| is_file) else {
            // The provider's parser might treat either of these as a file.
            if is_file || ["filename", "filename*"].iter().any(|key| header_parameter(disposition, key).is_some()) {
                return Err(ONE_FILE_REQUIRED);
            }
            if self.fields.len() >= MAX_FIELDS {
                return Err("it has too many fields");
            }
            self.state = UploadParserState::Value(name);
            return Ok(true);
        };
        if name != FILE_FIELD || self.file_info.is_some() {
            return Err(ONE_FILE_REQUIRED);
        }
        if ENCODING_HEADERS.iter().any(|coding| part_header(&head, coding).is_some()) {
            return Err("its file must be sent without a content encoding");
        }
        let kind = part_header(&head, "content-type").map(ToOwned::to_owned);
        self.file_info = Some(FileInfo { name: filename.to_owned(), content_type: kind });
        self.state = UploadParserState::File;
        Ok(true)
    }

    fn read_value(&mut self, name: String) -> Result<bool, &'static str> {
        let Some(end) = self.delimiter.find(&self.buffer) else {
            self.state = UploadParserState::Value(name);
            let is_fine = self.buffer.len() <= MAX_HEAD_OR_VALUE_BYTES;
            return if is_fine { Ok(false) } else { Err("the value of a field is too long") };
        };
        let value = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        self.buffer.drain(..end + self.delimiter.needle().len());
        self.fields.push((name, value));
        self.state = UploadParserState::PartHeaders;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT_TYPE: &str = "multipart/form-data; boundary=b-1";

    fn form_part(head: &str, value: &str) -> String {
        format!("--b-1\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    }

    fn parse_upload(body: &str, step: usize) -> Result<(UploadParser, Vec<u8>), &'static str> {
        let mut form = UploadParser::from_content_type(CONTENT_TYPE).unwrap();
        let mut content = Vec::new();
        for chunk in body.as_bytes().chunks(step) {
            form.feed(chunk)?;
            content.extend(form.take_content());
            assert!(form.buffer.len() <= MAX_HEAD_OR_VALUE_BYTES + step);
        }
        Ok((form, content))
    }

    #[test]
    fn returns_the_file_unchanged_for_any_part_order_and_chunk_size() {
        let purpose = form_part("name=\"purpose\"", "batch");
        for size in [0, 1, 40, 30_000] {
            let noise = "\r\n--b-\r\n\r\n-\r\n--".repeat(size / 10 + 1);
            let file =
                form_part("name=\"file\"; filename=\"a; b.jsonl\"\r\nContent-Type: application/jsonl", &noise[..size]);
            for parts in [[&purpose, &file], [&file, &purpose]] {
                let body = parts.map(String::as_str).concat() + "--b-1--\r\n";
                for step in [1, 2, 7, 4096, body.len()] {
                    let (form, content) = parse_upload(&body, step).unwrap();
                    assert_eq!(content, &noise.as_bytes()[..size], "{size} {step}");
                    assert!(form.is_finished() && form.field_value("purpose") == Some("batch"));
                    let content_type = Some("application/jsonl".to_owned());
                    assert_eq!(form.file_info(), Some(&FileInfo { name: "a; b.jsonl".into(), content_type }));
                }
            }
        }
    }

    #[test]
    fn truncated_form_is_not_finished() {
        let form = form_part("name=\"file\"; filename=a", "content") + "--b-1--";
        for end in 0..form.len() {
            assert!(!parse_upload(&form[..end], 5).unwrap().0.is_finished(), "{end}");
        }
        assert!(parse_upload(&(form + "epilogue"), 5).unwrap().0.is_finished());
    }

    #[test]
    fn corrupted_forms_never_exceed_the_buffer_bound() {
        let good =
            form_part("name=\"purpose\"", "batch") + &form_part("name=\"file\"; filename=\"a\"", "x") + "--b-1--\r\n";
        for seed in 0..3_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut body = good.clone().into_bytes();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..body.len());
                match random.u8(..3) {
                    0 => body[at] = random.u8(..),
                    1 => body.truncate(at + 1),
                    _ => body.extend_from_slice(&good.as_bytes()[at.min(good.len() - 1)..]),
                }
            }
            let mut form = UploadParser::from_content_type(CONTENT_TYPE).unwrap();
            let mut consumed = 0;
            for chunk in body.chunks(random.usize(1..40)) {
                if form.feed(chunk).is_err() {
                    break;
                }
                consumed += form.take_content().len();
            }
            assert!(consumed + form.buffer.len() <= body.len() + 2, "{seed}");
        }
    }

    #[test]
    fn rejects_malformed_uploads_with_a_reason() {
        let file = form_part("name=\"file\"; filename=a", "");
        for (body, reason) in [
            (file.repeat(2), "one file"),
            (form_part("name=\"other\"; filename=a", ""), "one file"),
            (form_part("name=\"File\"; filename=a", ""), "one file"),
            (form_part("name=\"file\"", ""), "one file"),
            (form_part("name=\"file\"; filename*=a", ""), "one file"),
            (form_part("name=\"file\"; filename=a\r\nContent-Transfer-Encoding: base64", ""), "encoding"),
            (form_part("name=\"purpose\"", &"x".repeat(MAX_HEAD_OR_VALUE_BYTES * 2)), "value"),
            (form_part(&format!("x={}", "y".repeat(MAX_HEAD_OR_VALUE_BYTES * 2)), ""), "head"),
            (form_part("x=y", ""), "name"),
            ("--b-1\r\n\r\n\r\n".to_owned() + &file, "no content-disposition"),
            (form_part("name=a\r\nContent-Disposition: form-data; name=\"file\"; filename=a", ""), "more than one"),
            (form_part("name=\"a\"", "b").repeat(MAX_FIELDS + 1), "too many"),
        ] {
            let error = parse_upload(&body, 1000).map(|_| ()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(UploadParser::from_content_type("application/json").is_none());
    }
}
