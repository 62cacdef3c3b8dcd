//! Streaming scanner for multipart forms that extracts the request fields the gateway needs. Its memory is bounded,
//! whatever the order and size of the parts.

use memchr::memmem::{self, Finder};

use crate::api_format::ImageParams;

/// Maximum length of a part's headers, and of a field value that is read.
const MAX_HEAD_OR_VALUE_BYTES: usize = 4 * 1024;

/// Scanner for the few fields that decide how a request is routed and logged. The first of several fields with the same
/// name counts.
#[derive(Debug)]
pub struct FormScanner {
    /// Delimiter between parts: a line end, two dashes and the boundary.
    delimiter: Finder<'static>,
    state: FormParserState,
    /// Received bytes of an element that is not complete yet.
    buffer: Vec<u8>,
    model: Option<String>,
    stream: Option<bool>,
    image_params: ImageParams,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormField {
    Model,
    Stream,
    /// A parameter of an image request, by its field name.
    ImageParam(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormParserState {
    /// Skips content up to the next delimiter.
    Skipping,
    /// In the headers of a part.
    PartHeaders,
    /// In the value of a field.
    Value(FormField),
    Finished,
}

impl FormScanner {
    /// Creates a scanner; `None` if the content type is not multipart form data with a boundary.
    pub fn from_content_type(content_type: &str) -> Option<Self> {
        let delimiter = Finder::new(multipart_delimiter(content_type)?.as_bytes()).into_owned();
        // The first delimiter may lack the line end before it, so one is added here.
        let (state, buffer) = (FormParserState::Skipping, b"\r\n".to_vec());
        Some(Self { delimiter, state, buffer, model: None, stream: None, image_params: ImageParams::default() })
    }

    /// Returns true if the form has ended and no more fields can follow.
    pub fn is_finished(&self) -> bool {
        self.state == FormParserState::Finished
    }

    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Returns true if the client requests a stream.
    pub fn is_streaming(&self) -> bool {
        self.stream == Some(true)
    }

    /// Returns the image parameters that the form sets.
    pub fn image_params(&self) -> &ImageParams {
        &self.image_params
    }

    /// Scans the next bytes of the form.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state != FormParserState::Finished {
            let used = match self.state {
                FormParserState::Skipping => self.skip_to_delimiter(bytes),
                FormParserState::PartHeaders => self.buffer_until(bytes, b"\r\n\r\n", Self::read_part_headers),
                FormParserState::Value(_) => {
                    let delimiter = self.delimiter.needle().to_vec();
                    self.buffer_until(bytes, &delimiter, Self::read_value)
                }
                FormParserState::Finished => 0,
            };
            bytes = &bytes[used..];
        }
    }

    /// Searches for the next delimiter and buffers only what may be the beginning of one.
    fn skip_to_delimiter(&mut self, bytes: &[u8]) -> usize {
        let length = self.delimiter.needle().len();
        if !self.buffer.is_empty() {
            let before = self.buffer.len();
            self.buffer.extend_from_slice(&bytes[..bytes.len().min(length)]);
            if let Some(at) = self.delimiter.find(&self.buffer) {
                self.enter_state(FormParserState::PartHeaders);
                return at + length - before;
            }
            if bytes.len() < length {
                self.retain_tail(length);
                return bytes.len();
            }
            self.buffer.clear();
        }
        if let Some(at) = self.delimiter.find(bytes) {
            self.enter_state(FormParserState::PartHeaders);
            return at + length;
        }
        self.buffer.extend_from_slice(&bytes[bytes.len().saturating_sub(length - 1)..]);
        bytes.len()
    }

    fn retain_tail(&mut self, length: usize) {
        let surplus = self.buffer.len().saturating_sub(length - 1);
        self.buffer.drain(..surplus);
    }

    /// Buffers bytes up to `end`, then passes them to `read`. Skips an element that exceeds the maximum length.
    fn buffer_until(&mut self, bytes: &[u8], end: &[u8], read: fn(&mut Self, &[u8]) -> FormParserState) -> usize {
        let before = self.buffer.len();
        let take_len = (MAX_HEAD_OR_VALUE_BYTES + end.len()).saturating_sub(before).min(bytes.len());
        self.buffer.extend_from_slice(&bytes[..take_len]);
        let from = before.saturating_sub(end.len() - 1);
        if let Some(at) = memmem::find(&self.buffer[from..], end) {
            let buffered = std::mem::take(&mut self.buffer);
            let next = read(self, &buffered[..from + at]);
            self.enter_state(next);
            return from + at + end.len() - before;
        }
        if self.is_closing_delimiter() {
            self.state = FormParserState::Finished;
        } else if self.buffer.len() >= MAX_HEAD_OR_VALUE_BYTES {
            let length = self.delimiter.needle().len();
            self.retain_tail(length);
            self.state = FormParserState::Skipping;
        }
        take_len
    }

    fn enter_state(&mut self, state: FormParserState) {
        self.buffer.clear();
        self.state = state;
    }

    /// Returns true if two dashes follow a delimiter, which ends the form.
    fn is_closing_delimiter(&self) -> bool {
        self.state == FormParserState::PartHeaders && self.buffer.starts_with(b"--")
    }

    fn read_part_headers(&mut self, head: &[u8]) -> FormParserState {
        if head.starts_with(b"--") {
            return FormParserState::Finished;
        }
        match parse_form_field(&String::from_utf8_lossy(head)) {
            Some(FormField::Model) if self.model.is_none() => FormParserState::Value(FormField::Model),
            Some(FormField::Stream) if self.stream.is_none() => FormParserState::Value(FormField::Stream),
            Some(field @ FormField::ImageParam(_)) => FormParserState::Value(field),
            _ => FormParserState::Skipping,
        }
    }

    /// Stores the value of the current field. Its delimiter is consumed already, so part headers follow.
    fn read_value(&mut self, value: &[u8]) -> FormParserState {
        let text = String::from_utf8_lossy(value);
        match self.state {
            FormParserState::Value(FormField::Model) => self.model = Some(text.into_owned()),
            FormParserState::Value(FormField::Stream) => self.stream = Some(text.trim().eq_ignore_ascii_case("true")),
            FormParserState::Value(FormField::ImageParam(name)) => self.image_params.set_field(name.as_bytes(), &text),
            _ => (),
        }
        FormParserState::PartHeaders
    }
}

/// Replaces the model in the beginning of a form, or in a whole form; `None` if these bytes contain no model field.
pub fn replace_model(content_type: &str, bytes: &[u8], model: &str) -> Option<Vec<u8>> {
    let form = FormScanner::from_content_type(content_type)?;
    let (find_from, length) =
        (|from: usize| form.delimiter.find(&bytes[from..]).map(|at| from + at), form.delimiter.needle().len());
    let is_first = bytes.starts_with(&form.delimiter.needle()[2..]);
    let mut at = if is_first { length - 2 } else { find_from(0)? + length };
    loop {
        let head = at..at + memmem::find(&bytes[at..], b"\r\n\r\n")?;
        let value = head.end + 4;
        let end = find_from(value)?;
        if parse_form_field(&String::from_utf8_lossy(&bytes[head])) == Some(FormField::Model) {
            return Some([&bytes[..value], model.as_bytes(), &bytes[end..]].concat());
        }
        at = end + length;
    }
}

/// Returns the field that the headers of a part announce; `None` for files and other fields.
fn parse_form_field(head: &str) -> Option<FormField> {
    let disposition = part_header(head, "content-disposition")?;
    if header_parameter(disposition, "filename").is_some() {
        return None;
    }
    match header_parameter(disposition, "name")? {
        "model" => Some(FormField::Model),
        "stream" => Some(FormField::Stream),
        "n" => Some(FormField::ImageParam("n")),
        "quality" => Some(FormField::ImageParam("quality")),
        "size" => Some(FormField::ImageParam("size")),
        _ => None,
    }
}

/// Returns the value of a header parameter without its quotes. A semicolon inside quotes does not end the value.
pub(crate) fn header_parameter<'p>(mut parameters: &'p str, parameter_name: &str) -> Option<&'p str> {
    loop {
        let mut is_quoted = false;
        let end = parameters.find(|parameter| {
            is_quoted ^= parameter == '"';
            parameter == ';' && !is_quoted
        });
        let (pair, rest) = parameters.split_at(end.unwrap_or(parameters.len()));
        if let Some((name, value)) = pair.split_once('=')
            && name.trim().eq_ignore_ascii_case(parameter_name)
        {
            return Some(value.trim().trim_matches('"'));
        }
        parameters = rest.strip_prefix(';')?;
    }
}

/// Returns the delimiter between the parts of a form, including the line end before it. `None` if the content type is
/// not multipart form data with a boundary.
pub(crate) fn multipart_delimiter(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    let is_form = kind.trim().eq_ignore_ascii_case("multipart/form-data");
    let boundary = header_parameter(parameters, "boundary").filter(|boundary| is_form && !boundary.is_empty())?;
    Some(format!("\r\n--{boundary}"))
}

/// Returns the value of a header of a part.
pub(crate) fn part_header<'h>(head: &'h str, parameter_name: &str) -> Option<&'h str> {
    head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case(parameter_name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT_TYPE: &str = "multipart/form-data; boundary=\"b-1\"";

    fn form_part(head: &str, value: &str) -> String {
        format!("--b-1\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    }

    fn file_part(size: usize) -> String {
        let noise = "\r\n--b-\r\n\r\nname=\"model\"\r\n-".repeat(size / 25 + 1);
        form_part("name=\"file\"; filename=\"model; name=model\"\r\nContent-Type: audio/wav", &noise[..size])
    }

    fn scan_form(body: &str, step: usize) -> (Option<String>, bool) {
        let mut form = FormScanner::from_content_type(CONTENT_TYPE).unwrap();
        for chunk in body.as_bytes().chunks(step) {
            form.feed(chunk);
            assert!(form.buffer.len() <= MAX_HEAD_OR_VALUE_BYTES + 64);
        }
        (form.model().map(ToOwned::to_owned), form.is_streaming())
    }

    #[test]
    fn finds_fields_for_any_part_order_and_chunk_size() {
        let (model, stream) = (form_part("name=\"model\"", "whisper-1"), form_part("name=stream", "True"));
        let other = form_part("name=\"timestamp_granularities[]\"", "word");
        let model_name = (Some("whisper-1".to_owned()), true);
        for size in [0, 3, 100, 9_000] {
            let orders = [
                [model.clone(), stream.clone(), other.clone(), file_part(size)],
                [file_part(size), other.clone(), stream.clone(), model.clone()],
                [stream.clone(), file_part(size), model.clone(), other.clone()],
            ];
            for parts in orders {
                let body = parts.concat() + "--b-1--\r\n";
                for step in [1, 2, 3, 7, 64, 1000, body.len()] {
                    assert_eq!(scan_form(&body, step), model_name, "{size} {step}");
                }
            }
        }
    }

    #[test]
    fn first_of_duplicate_fields_counts() {
        let body = form_part("name=\"model\"", "a") + &form_part("name=\"model\"", "b") + "--b-1--";
        assert_eq!(scan_form(&body, 5).0.as_deref(), Some("a"));
    }

    #[test]
    fn skips_oversized_values_and_part_headers() {
        let long =
            form_part("name=\"model\"", &"x".repeat(100_000)) + &form_part("name=\"stream\"", "true") + "--b-1--";
        assert_eq!(scan_form(&long, 1000), (None, true));
        let head =
            form_part(&format!("name=\"file\"; x={}", "y".repeat(100_000)), "z") + &form_part("name=\"model\"", "m");
        assert_eq!(scan_form(&(head + "--b-1--"), 999).0.as_deref(), Some("m"));
    }

    #[test]
    fn replaces_the_model_only_in_its_field() {
        let (model, other) = (form_part("name=\"model\"", "@mine/m"), form_part("name=\"prompt\"", "@mine/m"));
        for parts in [[&model, &other, &file_part(90)], [&file_part(90), &other, &model]] {
            let (body, changed) = (parts.map(String::as_str).concat(), form_part("name=\"model\"", "m"));
            for end in ["--b-1--\r\n", "--b-1\r\nContent-Dispo"] {
                let renamed = replace_model(CONTENT_TYPE, (body.clone() + end).as_bytes(), "m").unwrap();
                assert_eq!(String::from_utf8(renamed).unwrap(), body.replace(&model, &changed) + end);
            }
        }
        for none in [other.clone() + "--b-1--\r\n", other + "--b-1\r\nContent-Dispo", String::new(), "--b-1".into()] {
            assert_eq!(replace_model(CONTENT_TYPE, none.as_bytes(), "m"), None, "{none}");
        }
    }

    #[test]
    fn ignores_fields_after_the_end_of_the_form() {
        let body = form_part("name=\"stream\"", "false") + "--b-1--\r\n" + &form_part("name=\"model\"", "late");
        for step in [1, 4, 500] {
            assert_eq!(scan_form(&body, step), (None, false));
        }
    }

    #[test]
    fn accepts_only_multipart_forms_with_a_boundary() {
        for kind in
            ["application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=x"]
        {
            assert!(FormScanner::from_content_type(kind).is_none(), "{kind}");
        }
        assert!(FormScanner::from_content_type("Multipart/Form-Data; charset=utf-8; Boundary=x").is_some());
    }
}
