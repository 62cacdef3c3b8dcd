//! The form in which a file is uploaded, taken apart while it comes: no more of the file is kept than was not taken yet.

use memchr::memmem::{self, Finder};

use super::form::{delimiter, header, parameter};

/// Longest head of a part, and longest value of a field.
const LONGEST: usize = 8 * 1024;
/// A form has fewer fields.
const MOST_FIELDS: usize = 32;

const FILE: &str = "file";
const ONE_FILE: &str = "it must have one file, which is called `file` and has a name";
/// Nobody has to understand these in a form any more.
const CODINGS: [&str; 2] = ["content-transfer-encoding", "content-encoding"];

/// A form with one file among its fields, whatever their order.
pub struct Upload {
    /// A line end, two dashes and the boundary.
    delimiter: Finder<'static>,
    state: State,
    /// What was not understood yet.
    kept: Vec<u8>,
    fields: Vec<(String, String)>,
    file: Option<Described>,
    content: Vec<u8>,
}

/// What a form says of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub name: String,
    /// Its type, where it has one.
    pub kind: Option<String>,
}

enum State {
    /// Before the first delimiter.
    Before,
    /// Behind a delimiter.
    Head,
    /// In the value of the field of this name.
    Value(String),
    File,
    Over,
}

impl Upload {
    /// `None` where the content type is not that of a form.
    pub fn of(content_type: &str) -> Option<Self> {
        let delimiter = Finder::new(delimiter(content_type)?.as_bytes()).into_owned();
        Some(Self {
            delimiter,
            state: State::Before,
            // The first delimiter needs no line end before it; it gets one here.
            kept: b"\r\n".to_vec(),
            fields: Vec::new(),
            file: None,
            content: Vec::new(),
        })
    }

    /// Takes the next bytes of the form; an error says what is wrong with it.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        if matches!(self.state, State::Over) {
            return Ok(());
        }
        self.kept.extend_from_slice(bytes);
        while self.step()? {}
        Ok(())
    }

    /// What came of the file since the last time.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.content)
    }

    /// What is said of the file, once it has begun.
    pub fn file(&self) -> Option<&Described> {
        self.file.as_ref()
    }

    /// The value of a field that has come.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All fields that have come, with their values.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether all of the file has come.
    pub fn has_file(&self) -> bool {
        self.file.is_some() && !matches!(self.state, State::File)
    }

    /// Whether the end of the form has come.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Goes on by one part, or a piece of the file; `false` where more must come first.
    fn step(&mut self) -> Result<bool, &'static str> {
        match &mut self.state {
            State::Before => Ok(self.pass(false)),
            State::File => Ok(self.pass(true)),
            State::Head => self.read_head(),
            State::Value(name) => {
                let name = std::mem::take(name);
                self.read_value(name)
            }
            State::Over => Ok(false),
        }
    }

    /// Passes over everything up to the next delimiter, which is the file's or nobody's.
    fn pass(&mut self, is_file: bool) -> bool {
        let found = self.delimiter.find(&self.kept);
        let length = self.delimiter.needle().len();
        // What may be the beginning of a delimiter waits.
        let end = found.unwrap_or_else(|| self.kept.len().saturating_sub(length - 1));
        if is_file {
            self.content.extend_from_slice(&self.kept[..end]);
        }
        self.kept.drain(..found.map_or(end, |at| at + length));
        if found.is_some() {
            self.state = State::Head;
        }
        found.is_some()
    }

    fn read_head(&mut self) -> Result<bool, &'static str> {
        if self.kept.starts_with(b"--") {
            self.state = State::Over;
            self.kept = Vec::new();
            return Ok(false);
        }
        let Some(end) = memmem::find(&self.kept, b"\r\n\r\n") else {
            let is_fine = self.kept.len() <= LONGEST;
            return if is_fine { Ok(false) } else { Err("the head of a part is too long") };
        };
        let head = String::from_utf8_lossy(&self.kept[..end]).into_owned();
        self.kept.drain(..end + 4);
        let disposition = header(&head, "content-disposition").ok_or("a part has no content-disposition")?;
        if head.to_ascii_lowercase().matches("content-disposition").count() > 1 {
            return Err("a part has more than one content-disposition");
        }
        let name = parameter(disposition, "name").ok_or("a part has no name")?.to_owned();
        let is_file = name.eq_ignore_ascii_case(FILE);
        let Some(filename) = parameter(disposition, "filename").filter(|_| is_file) else {
            // Whoever reads it next may take either for a file.
            if is_file || ["filename", "filename*"].iter().any(|key| parameter(disposition, key).is_some()) {
                return Err(ONE_FILE);
            }
            if self.fields.len() >= MOST_FIELDS {
                return Err("it has too many fields");
            }
            self.state = State::Value(name);
            return Ok(true);
        };
        if name != FILE || self.file.is_some() {
            return Err(ONE_FILE);
        }
        if CODINGS.iter().any(|coding| header(&head, coding).is_some()) {
            return Err("its file must come as it is, in no encoding");
        }
        let kind = header(&head, "content-type").map(ToOwned::to_owned);
        self.file = Some(Described { name: filename.to_owned(), kind });
        self.state = State::File;
        Ok(true)
    }

    fn read_value(&mut self, name: String) -> Result<bool, &'static str> {
        let Some(end) = self.delimiter.find(&self.kept) else {
            self.state = State::Value(name);
            let is_fine = self.kept.len() <= LONGEST;
            return if is_fine { Ok(false) } else { Err("the value of a field is too long") };
        };
        let value = String::from_utf8_lossy(&self.kept[..end]).into_owned();
        self.kept.drain(..end + self.delimiter.needle().len());
        self.fields.push((name, value));
        self.state = State::Head;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "multipart/form-data; boundary=b-1";

    fn part(head: &str, value: &str) -> String {
        format!("--b-1\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    }

    fn read(body: &str, step: usize) -> Result<(Upload, Vec<u8>), &'static str> {
        let mut form = Upload::of(KIND).unwrap();
        let mut content = Vec::new();
        for piece in body.as_bytes().chunks(step) {
            form.feed(piece)?;
            content.extend(form.take());
            assert!(form.kept.len() <= LONGEST + step);
        }
        Ok((form, content))
    }

    #[test]
    fn a_file_comes_out_as_it_went_in_whatever_the_order_and_the_pieces() {
        let purpose = part("name=\"purpose\"", "batch");
        for size in [0, 1, 40, 30_000] {
            let noise = "\r\n--b-\r\n\r\n-\r\n--".repeat(size / 10 + 1);
            let file =
                part("name=\"file\"; filename=\"a; b.jsonl\"\r\nContent-Type: application/jsonl", &noise[..size]);
            for parts in [[&purpose, &file], [&file, &purpose]] {
                let body = parts.map(String::as_str).concat() + "--b-1--\r\n";
                for step in [1, 2, 7, 4096, body.len()] {
                    let (form, content) = read(&body, step).unwrap();
                    assert_eq!(content, &noise.as_bytes()[..size], "{size} {step}");
                    assert!(form.is_over() && form.field("purpose") == Some("batch"));
                    let kind = Some("application/jsonl".to_owned());
                    assert_eq!(form.file(), Some(&Described { name: "a; b.jsonl".into(), kind }));
                }
            }
        }
    }

    #[test]
    fn a_form_that_breaks_off_is_not_over() {
        let whole = part("name=\"file\"; filename=a", "content") + "--b-1--";
        for end in 0..whole.len() {
            assert!(!read(&whole[..end], 5).unwrap().0.is_over(), "{end}");
        }
        assert!(read(&(whole + "epilogue"), 5).unwrap().0.is_over());
    }

    #[test]
    fn no_form_however_broken_is_kept_without_bound() {
        let good = part("name=\"purpose\"", "batch") + &part("name=\"file\"; filename=\"a\"", "x") + "--b-1--\r\n";
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
            let mut form = Upload::of(KIND).unwrap();
            let mut taken = 0;
            for piece in body.chunks(random.usize(1..40)) {
                if form.feed(piece).is_err() {
                    break;
                }
                taken += form.take().len();
            }
            assert!(taken + form.kept.len() <= body.len() + 2, "{seed}");
        }
    }

    #[test]
    fn what_no_upload_has_is_said() {
        let file = part("name=\"file\"; filename=a", "");
        for (body, why) in [
            (file.repeat(2), "one file"),
            (part("name=\"other\"; filename=a", ""), "one file"),
            (part("name=\"File\"; filename=a", ""), "one file"),
            (part("name=\"file\"", ""), "one file"),
            (part("name=\"file\"; filename*=a", ""), "one file"),
            (part("name=\"file\"; filename=a\r\nContent-Transfer-Encoding: base64", ""), "encoding"),
            (part("name=\"purpose\"", &"x".repeat(LONGEST * 2)), "value"),
            (part(&format!("x={}", "y".repeat(LONGEST * 2)), ""), "head"),
            (part("x=y", ""), "name"),
            ("--b-1\r\n\r\n\r\n".to_owned() + &file, "no content-disposition"),
            (part("name=a\r\nContent-Disposition: form-data; name=\"file\"; filename=a", ""), "more than one"),
            (part("name=\"a\"", "b").repeat(MOST_FIELDS + 1), "too many"),
        ] {
            let found = read(&body, 1000).map(|_| ()).unwrap_err();
            assert!(found.contains(why), "{found}");
        }
        assert!(Upload::of("application/json").is_none());
    }
}
