//! What a form says of its request, read while it passes: bounded memory, whatever the order and the size of its parts.

use memchr::memmem::{self, Finder};

use crate::api_format::Drawing;

/// Longest head of a part, and longest value of a field that is kept.
const LONGEST: usize = 4 * 1024;

/// The few fields that decide how a request is recorded; of two fields of one name the first counts.
#[derive(Debug)]
pub struct Form {
    /// A line end, two dashes and the boundary: what stands between parts.
    delimiter: Finder<'static>,
    state: State,
    /// What was seen of something that is not complete.
    kept: Vec<u8>,
    model: Option<String>,
    stream: Option<bool>,
    drawing: Drawing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Model,
    Stream,
    /// Of images that are to be made.
    Drawn(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In what nobody here reads, up to the next delimiter.
    Passing,
    /// In the head of a part.
    Head,
    /// In the value of a field.
    Value(Field),
    Over,
}

impl Form {
    /// `None` where the content type is not that of a form.
    pub fn of(content_type: &str) -> Option<Self> {
        let delimiter = Finder::new(delimiter(content_type)?.as_bytes()).into_owned();
        // The first delimiter needs no line end before it; it gets one here.
        let (state, kept) = (State::Passing, b"\r\n".to_vec());
        Some(Self { delimiter, state, kept, model: None, stream: None, drawing: Drawing::default() })
    }

    /// Whether nothing more can be learned of it.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Whether the caller asked for a stream.
    pub fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    /// What is asked for, where images are.
    pub fn drawing(&self) -> &Drawing {
        &self.drawing
    }

    /// Looks at the next bytes of the form.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state != State::Over {
            let used = match self.state {
                State::Passing => self.pass(bytes),
                State::Head => self.gather(bytes, b"\r\n\r\n", Self::read_head),
                State::Value(_) => {
                    let delimiter = self.delimiter.needle().to_vec();
                    self.gather(bytes, &delimiter, Self::read_value)
                }
                State::Over => 0,
            };
            bytes = &bytes[used..];
        }
    }

    /// Searches for the next delimiter without keeping more than may be the beginning of one.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let length = self.delimiter.needle().len();
        if !self.kept.is_empty() {
            let before = self.kept.len();
            self.kept.extend_from_slice(&bytes[..bytes.len().min(length)]);
            if let Some(at) = self.delimiter.find(&self.kept) {
                self.enter(State::Head);
                return at + length - before;
            }
            if bytes.len() < length {
                self.keep_tail(length);
                return bytes.len();
            }
            self.kept.clear();
        }
        if let Some(at) = self.delimiter.find(bytes) {
            self.enter(State::Head);
            return at + length;
        }
        self.kept.extend_from_slice(&bytes[bytes.len().saturating_sub(length - 1)..]);
        bytes.len()
    }

    fn keep_tail(&mut self, length: usize) {
        let surplus = self.kept.len().saturating_sub(length - 1);
        self.kept.drain(..surplus);
    }

    /// Keeps bytes up to `end`, then has them read. What is longer than anything of interest is passed over.
    fn gather(&mut self, bytes: &[u8], end: &[u8], read: fn(&mut Self, &[u8]) -> State) -> usize {
        let before = self.kept.len();
        let room = (LONGEST + end.len()).saturating_sub(before).min(bytes.len());
        self.kept.extend_from_slice(&bytes[..room]);
        let from = before.saturating_sub(end.len() - 1);
        if let Some(at) = memmem::find(&self.kept[from..], end) {
            let whole = std::mem::take(&mut self.kept);
            let next = read(self, &whole[..from + at]);
            self.enter(next);
            return from + at + end.len() - before;
        }
        if self.is_closed() {
            self.state = State::Over;
        } else if self.kept.len() >= LONGEST {
            let length = self.delimiter.needle().len();
            self.keep_tail(length);
            self.state = State::Passing;
        }
        room
    }

    fn enter(&mut self, state: State) {
        self.kept.clear();
        self.state = state;
    }

    /// Two dashes after a delimiter: the form ends.
    fn is_closed(&self) -> bool {
        self.state == State::Head && self.kept.starts_with(b"--")
    }

    fn read_head(&mut self, head: &[u8]) -> State {
        if head.starts_with(b"--") {
            return State::Over;
        }
        match field_of(&String::from_utf8_lossy(head)) {
            Some(Field::Model) if self.model.is_none() => State::Value(Field::Model),
            Some(Field::Stream) if self.stream.is_none() => State::Value(Field::Stream),
            Some(field @ Field::Drawn(_)) => State::Value(field),
            _ => State::Passing,
        }
    }

    /// The delimiter behind a value is read already: a head is next.
    fn read_value(&mut self, value: &[u8]) -> State {
        let text = String::from_utf8_lossy(value);
        match self.state {
            State::Value(Field::Model) => self.model = Some(text.into_owned()),
            State::Value(Field::Stream) => self.stream = Some(text.trim().eq_ignore_ascii_case("true")),
            State::Value(Field::Drawn(name)) => self.drawing.take(name.as_bytes(), &text),
            _ => (),
        }
        State::Head
    }
}

/// The beginning of a form, or all of it, with another model; `None` where these bytes name none.
pub fn rename(content_type: &str, bytes: &[u8], model: &str) -> Option<Vec<u8>> {
    let form = Form::of(content_type)?;
    let (found, length) =
        (|from: usize| form.delimiter.find(&bytes[from..]).map(|at| from + at), form.delimiter.needle().len());
    let is_first = bytes.starts_with(&form.delimiter.needle()[2..]);
    let mut at = if is_first { length - 2 } else { found(0)? + length };
    loop {
        let head = at..at + memmem::find(&bytes[at..], b"\r\n\r\n")?;
        let value = head.end + 4;
        let end = found(value)?;
        if field_of(&String::from_utf8_lossy(&bytes[head])) == Some(Field::Model) {
            return Some([&bytes[..value], model.as_bytes(), &bytes[end..]].concat());
        }
        at = end + length;
    }
}

/// The field that a part's head announces; files are none.
fn field_of(head: &str) -> Option<Field> {
    let disposition = header(head, "content-disposition")?;
    if parameter(disposition, "filename").is_some() {
        return None;
    }
    match parameter(disposition, "name")? {
        "model" => Some(Field::Model),
        "stream" => Some(Field::Stream),
        "n" => Some(Field::Drawn("n")),
        "quality" => Some(Field::Drawn("quality")),
        "size" => Some(Field::Drawn("size")),
        _ => None,
    }
}

/// The value of a parameter, without its quotes; within them a semicolon stands for itself.
pub(crate) fn parameter<'p>(mut parameters: &'p str, wanted: &str) -> Option<&'p str> {
    loop {
        let mut is_quoted = false;
        let end = parameters.find(|one| {
            is_quoted ^= one == '"';
            one == ';' && !is_quoted
        });
        let (pair, rest) = parameters.split_at(end.unwrap_or(parameters.len()));
        if let Some((name, value)) = pair.split_once('=')
            && name.trim().eq_ignore_ascii_case(wanted)
        {
            return Some(value.trim().trim_matches('"'));
        }
        parameters = rest.strip_prefix(';')?;
    }
}

/// What stands between the parts of a form, with the line end before it; `None` where the content type is not that of one.
pub(crate) fn delimiter(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    let is_form = kind.trim().eq_ignore_ascii_case("multipart/form-data");
    let boundary = parameter(parameters, "boundary").filter(|boundary| is_form && !boundary.is_empty())?;
    Some(format!("\r\n--{boundary}"))
}

/// The value of a header field in the head of a part.
pub(crate) fn header<'h>(head: &'h str, wanted: &str) -> Option<&'h str> {
    head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case(wanted).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "multipart/form-data; boundary=\"b-1\"";

    fn part(head: &str, value: &str) -> String {
        format!("--b-1\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    }

    fn file(size: usize) -> String {
        let noise = "\r\n--b-\r\n\r\nname=\"model\"\r\n-".repeat(size / 25 + 1);
        part("name=\"file\"; filename=\"model; name=model\"\r\nContent-Type: audio/wav", &noise[..size])
    }

    fn read(body: &str, step: usize) -> (Option<String>, bool) {
        let mut form = Form::of(KIND).unwrap();
        for piece in body.as_bytes().chunks(step) {
            form.feed(piece);
            assert!(form.kept.len() <= LONGEST + 64);
        }
        (form.model().map(ToOwned::to_owned), form.streams())
    }

    #[test]
    fn finds_fields_in_any_order_and_any_pieces() {
        let (model, stream) = (part("name=\"model\"", "whisper-1"), part("name=stream", "True"));
        let other = part("name=\"timestamp_granularities[]\"", "word");
        let found = (Some("whisper-1".to_owned()), true);
        for size in [0, 3, 100, 9_000] {
            let orders = [
                [model.clone(), stream.clone(), other.clone(), file(size)],
                [file(size), other.clone(), stream.clone(), model.clone()],
                [stream.clone(), file(size), model.clone(), other.clone()],
            ];
            for parts in orders {
                let body = parts.concat() + "--b-1--\r\n";
                for step in [1, 2, 3, 7, 64, 1000, body.len()] {
                    assert_eq!(read(&body, step), found, "{size} {step}");
                }
            }
        }
    }

    #[test]
    fn the_first_field_of_a_name_counts() {
        let body = part("name=\"model\"", "a") + &part("name=\"model\"", "b") + "--b-1--";
        assert_eq!(read(&body, 5).0.as_deref(), Some("a"));
    }

    #[test]
    fn a_value_or_a_head_without_end_is_passed_over() {
        let long = part("name=\"model\"", &"x".repeat(100_000)) + &part("name=\"stream\"", "true") + "--b-1--";
        assert_eq!(read(&long, 1000), (None, true));
        let head = part(&format!("name=\"file\"; x={}", "y".repeat(100_000)), "z") + &part("name=\"model\"", "m");
        assert_eq!(read(&(head + "--b-1--"), 999).0.as_deref(), Some("m"));
    }

    #[test]
    fn another_model_takes_the_place_of_the_one_that_is_named() {
        let (model, other) = (part("name=\"model\"", "@mine/m"), part("name=\"prompt\"", "@mine/m"));
        for parts in [[&model, &other, &file(90)], [&file(90), &other, &model]] {
            let (body, changed) = (parts.map(String::as_str).concat(), part("name=\"model\"", "m"));
            for end in ["--b-1--\r\n", "--b-1\r\nContent-Dispo"] {
                let renamed = rename(KIND, (body.clone() + end).as_bytes(), "m").unwrap();
                assert_eq!(String::from_utf8(renamed).unwrap(), body.replace(&model, &changed) + end);
            }
        }
        for none in [other.clone() + "--b-1--\r\n", other + "--b-1\r\nContent-Dispo", String::new(), "--b-1".into()] {
            assert_eq!(rename(KIND, none.as_bytes(), "m"), None, "{none}");
        }
    }

    #[test]
    fn nothing_counts_after_the_end_of_the_form() {
        let body = part("name=\"stream\"", "false") + "--b-1--\r\n" + &part("name=\"model\"", "late");
        for step in [1, 4, 500] {
            assert_eq!(read(&body, step), (None, false));
        }
    }

    #[test]
    fn only_forms_with_a_boundary_are_read() {
        for kind in
            ["application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=x"]
        {
            assert!(Form::of(kind).is_none(), "{kind}");
        }
        assert!(Form::of("Multipart/Form-Data; charset=utf-8; Boundary=x").is_some());
    }
}
