//! The lines of a batch, as they come in a form or a file: which model each names.

use crate::{
    api_format::{Lines, Upload, beside, peek},
    json::{
        lines::TooLong,
        scan::{PeekError, elements_from, fields},
    },
};

/// Why lines may not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A line names this model, which may not be used.
    Model(String),
    Unreadable(String),
}

impl From<TooLong> for Fault {
    fn from(fault: TooLong) -> Self {
        Self::Unreadable(fault.to_string())
    }
}

/// Whether a model may be named.
pub type Admit<'a> = &'a dyn Fn(&str) -> bool;

/// Looks at one line.
pub fn look(number: usize, line: &[u8], admit: Admit<'_>) -> Result<(), Fault> {
    if line.trim_ascii().is_empty() {
        return Ok(());
    }
    let models = models_in(line, "body").map_err(|message| Fault::Unreadable(format!("line {number}: {message}")))?;
    models.into_iter().find(|model| !admit(model)).map_or(Ok(()), |model| Err(Fault::Model(model)))
}

/// Looks at a batch of messages, whose requests come together.
pub fn messages(batch: &[u8], admit: Admit<'_>) -> Result<(), Fault> {
    let mut requests = None;
    let read = fields(batch, |key, at| match (key, &requests) {
        (b"requests", None) => {
            requests = Some(at);
            Ok(())
        }
        _ => Err(PeekError { at: at.start, message: "a batch of messages has `requests`, once, and nothing else" }),
    });
    read.map_err(|error| Fault::Unreadable(error.to_string()))?;
    let at = requests.ok_or_else(|| Fault::Unreadable("it must have `requests`".into()))?;
    let (mut number, mut fault) = (0, None);
    let read = elements_from(batch, at.start, |item| {
        number += 1;
        fault = match models_in(&batch[item.clone()], "params") {
            Ok(models) => match models.into_iter().find(|model| !admit(model)) {
                Some(model) => Some(Fault::Model(model)),
                None => return Ok(()),
            },
            Err(message) => Some(Fault::Unreadable(format!("request {number}: {message}"))),
        };
        Err(PeekError { at: item.start, message: "it is refused" })
    });
    match fault {
        Some(fault) => Err(fault),
        None => read.map(|_| ()).map_err(|error| Fault::Unreadable(error.to_string())),
    }
}

/// The model in this part of a request, and those beside it. Of two such parts the provider might read another one than is looked
/// at here.
fn models_in(request: &[u8], part: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::with_capacity(1);
    fields(request, |key, at| {
        if key == part.as_bytes() {
            found.push(at);
        }
        Ok(())
    })
    .map_err(|error| error.to_string())?;
    let [at] = <[_; 1]>::try_from(found).map_err(|_| format!("it must have one {part}"))?;
    let peek = peek(&request[at.clone()]).map_err(|error| format!("{part}: {error}"))?;
    let named = peek.model.filter(|model| !model.is_empty());
    let named = named.ok_or_else(|| format!("it must name its model in {part}.model"))?;
    Ok([named].into_iter().chain(beside(&request[at])).collect())
}

/// A form that brings a file. What is wrong with its lines counts where the file is for a batch, which the form may say after it.
pub struct FormLines {
    upload: Upload,
    lines: Lines,
    is_whole: bool,
    fault: Option<Fault>,
}

impl FormLines {
    /// `None` where the content type is not that of a form.
    pub fn of(content_type: &str, longest_line: usize) -> Option<Self> {
        let upload = Upload::of(content_type)?;
        Some(Self { upload, lines: Lines::new(longest_line), is_whole: false, fault: None })
    }

    /// Whether the form has ended.
    pub fn is_over(&self) -> bool {
        self.upload.is_over()
    }

    /// Looks at the next bytes, before they go on. An error says why they may not.
    pub fn feed(&mut self, bytes: &[u8], admit: Admit<'_>) -> Result<(), Fault> {
        let unread = |message| Fault::Unreadable(format!("the form cannot be read: {message}"));
        self.upload.feed(bytes).map_err(unread)?;
        let content = self.upload.take();
        if self.fault.is_none() {
            self.fault = self.look(&content, admit).err();
        }
        match self.fault.take_if(|_| is_for_batch(&self.upload)) {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    fn look(&mut self, content: &[u8], admit: Admit<'_>) -> Result<(), Fault> {
        let each = |number: usize, line: &[u8]| look(number, line, admit);
        self.lines.feed(content, each)?;
        let is_last = self.upload.has_file() && !std::mem::replace(&mut self.is_whole, true);
        if is_last { self.lines.end(each) } else { Ok(()) }
    }
}

/// Some say it with more words, and what nobody said of a file may be anything.
fn is_for_batch(upload: &Upload) -> bool {
    let said = |(name, value): (&str, &str)| {
        name.eq_ignore_ascii_case("purpose").then(|| value.to_ascii_lowercase().contains("batch"))
    };
    let mut purposes = upload.fields().filter_map(said).peekable();
    if purposes.peek().is_none() { upload.is_over() } else { purposes.any(|is_batch| is_batch) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "multipart/form-data; boundary=b-1";

    fn good(model: &str) -> bool {
        model == "good"
    }

    fn line(model: &str) -> String {
        format!("{{\"custom_id\":\"1\",\"method\":\"POST\",\"body\":{{\"model\":\"{model}\",\"messages\":[]}}}}\n")
    }

    fn part(head: &str, value: &str) -> String {
        format!("--b-1\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    }

    fn form(parts: &[String]) -> String {
        parts.concat() + "--b-1--\r\n"
    }

    fn purpose(said: &str) -> String {
        part("name=\"purpose\"", said)
    }

    fn file(lines: &str) -> String {
        part("name=\"file\"; filename=\"a.jsonl\"\r\nContent-Type: application/jsonl", lines)
    }

    /// How far it came, and why no further.
    fn fed(body: &str, step: usize) -> (usize, Result<bool, Fault>) {
        let mut upload = FormLines::of(KIND, 200).unwrap();
        let mut passed = 0;
        for piece in body.as_bytes().chunks(step) {
            if let Err(fault) = upload.feed(piece, &good) {
                return (passed, Err(fault));
            }
            passed += piece.len();
        }
        (passed, Ok(upload.is_over()))
    }

    const STEPS: [usize; 6] = [1, 2, 7, 64, 300, 100_000];

    #[test]
    fn lines_for_models_that_may_be_used_pass_in_any_pieces_and_order() {
        let lines = line("good").repeat(5) + "\r\n \n" + line("good").trim_end();
        for parts in [[purpose("batch"), file(&lines)], [file(&lines), purpose("batch")]] {
            for step in STEPS {
                assert_eq!(fed(&form(&parts), step).1, Ok(true), "{step}");
            }
        }
    }

    #[test]
    fn one_line_for_another_model_ends_it_before_the_form_ends() {
        for (at, lines) in
            [line("good") + &line("bad"), line("bad") + &line("good"), line("good") + line("bad").trim_end()]
                .iter()
                .enumerate()
        {
            for parts in
                [[purpose("batch"), file(lines)], [file(lines), purpose("batch")], [file(lines), String::new()]]
            {
                let body = form(&parts);
                for step in STEPS {
                    let (passed, told) = fed(&body, step);
                    assert_eq!(told, Err(Fault::Model("bad".into())), "{at} {step}");
                    assert!(passed < body.len() - "\r\n".len(), "{at} {step}: the provider has all of it");
                }
            }
        }
    }

    #[test]
    fn what_is_not_for_a_batch_may_be_anything() {
        let anything = "\u{0}\u{1}no lines".repeat(100) + &line("bad");
        for parts in [[purpose("assistants"), file(&anything)], [file(&anything), purpose("fine-tune")]] {
            for step in STEPS {
                assert_eq!(fed(&form(&parts), step).1, Ok(true));
            }
        }
        let both = form(&[purpose("assistants"), file(&anything), purpose("batch")]);
        assert!(fed(&both, 10).1.is_err(), "one of them is");
        assert!(fed(&form(&[file(&anything), purpose("Batch-API")]), 10).1.is_err());
    }

    #[test]
    fn what_cannot_be_read_as_a_line_of_a_batch_is_refused_with_its_number() {
        let long = line(&"x".repeat(200));
        for (lines, says) in [
            ("no JSON", "expected an object"),
            ("{\"custom_id\":\"1\"}", "one body"),
            ("{\"body\":{\"model\":\"good\"},\"b\\u006fdy\":{\"model\":\"bad\"}}", "one body"),
            ("{\"body\":{\"model\":\"good\",\"mod\\u0065l\":\"bad\"}}", "appears twice"),
            ("{\"body\":{\"model\":\"good\"}} {\"body\":{\"model\":\"bad\"}}", ""),
            ("{\"body\":{\"model\":7}}", "body.model"),
            ("{\"body\":{}}", "body.model"),
            ("{\"body\":[]}", "body"),
            (&long, "longer than 200 bytes"),
        ] {
            let body = form(&[purpose("batch"), file(&(line("good") + lines))]);
            for step in STEPS {
                let Err(Fault::Unreadable(message)) = fed(&body, step).1 else { panic!("{lines} passed") };
                assert!(message.starts_with("line 2: ") && message.contains(says), "{message}");
            }
        }
    }

    #[test]
    fn each_request_of_a_batch_of_messages_names_a_model_that_may_be_used() {
        let batch = |requests: &str| messages(format!("{{\"requests\":[{requests}]}}").as_bytes(), &good);
        let request = |model: &str| format!("{{\"custom_id\":\"1\",\"params\":{{\"model\":\"{model}\"}}}}");
        assert_eq!((batch(&request("good")), batch("")), (Ok(()), Ok(())));
        let both = request("good") + "," + &request("bad");
        assert_eq!(batch(&both), Err(Fault::Model("bad".into())));
        for requests in
            ["7", "{}", "{\"params\":{}}", "{\"params\":{\"model\":\"good\"},\"params\":{\"model\":\"bad\"}}"]
        {
            let told = batch(&(request("good") + "," + requests));
            assert!(matches!(&told, Err(Fault::Unreadable(why)) if why.starts_with("request 2: ")), "{told:?}");
        }
        for whole in [
            "{}",
            "[]",
            "{\"requests\":{}}",
            "{\"requests\":[],\"requests\":[]}",
            "{\"requests\":[],\"model\":\"bad\"}",
        ] {
            assert!(matches!(messages(whole.as_bytes(), &good), Err(Fault::Unreadable(_))), "{whole}");
        }
    }

    #[test]
    fn a_form_that_hides_its_file_or_does_not_end_is_none() {
        let coded = part("name=\"file\"; filename=\"a\"\r\nContent-Transfer-Encoding: base64", &line("good"));
        assert!(matches!(fed(&form(&[purpose("batch"), coded]), 9).1, Err(Fault::Unreadable(_))));
        let endless = format!("--b-1\r\nx: {}", "y".repeat(1 << 20));
        assert!(matches!(fed(&endless, 500).1, Err(Fault::Unreadable(_))));
        let cut = purpose("batch") + &file(&line("good"));
        assert_eq!(fed(&cut, 9).1, Ok(false));
        assert!(FormLines::of("application/json", 9).is_none());
    }
}
