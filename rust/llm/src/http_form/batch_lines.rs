//! Model checks for batch lines. They read uploads and files as streams and reject lines whose model is not allowed.

use crate::{
    api_format::{LineSplitter, named_models, peek},
    http_form::upload::UploadParser,
    json::{
        lines::LineTooLong,
        scan::{ScanError, for_each_element_from, for_each_field},
    },
};

/// Reason why batch lines are rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchLineError {
    /// A line names this model, which is not allowed.
    ModelNotAllowed(String),
    Malformed(String),
}

impl From<LineTooLong> for BatchLineError {
    fn from(fault: LineTooLong) -> Self {
        Self::Malformed(fault.to_string())
    }
}

/// Predicate that returns true if a model is allowed.
pub type ModelFilter<'a> = &'a dyn Fn(&str) -> bool;

/// Checks the models of one batch line; empty lines are accepted.
pub fn check_line(number: usize, line: &[u8], admit: ModelFilter<'_>) -> Result<(), BatchLineError> {
    if line.trim_ascii().is_empty() {
        return Ok(());
    }
    let models = requested_models(line, "body")
        .map_err(|message| BatchLineError::Malformed(format!("line {number}: {message}")))?;
    models.into_iter().find(|model| !admit(model)).map_or(Ok(()), |model| Err(BatchLineError::ModelNotAllowed(model)))
}

/// Checks a message batch, which carries all its requests in one body.
pub fn check_message_batch(batch: &[u8], admit: ModelFilter<'_>) -> Result<(), BatchLineError> {
    let mut requests = None;
    let read = for_each_field(batch, |key, at| match (key, &requests) {
        (b"requests", None) => {
            requests = Some(at);
            Ok(())
        }
        _ => Err(ScanError {
            offset: at.start,
            message: "a message batch must have `requests` exactly once and no other field",
        }),
    });
    read.map_err(|error| BatchLineError::Malformed(error.to_string()))?;
    let at = requests.ok_or_else(|| BatchLineError::Malformed("it must have `requests`".into()))?;
    let (mut number, mut fault) = (0, None);
    let read = for_each_element_from(batch, at.start, |item| {
        number += 1;
        fault = match requested_models(&batch[item.clone()], "params") {
            Ok(models) => match models.into_iter().find(|model| !admit(model)) {
                Some(model) => Some(BatchLineError::ModelNotAllowed(model)),
                None => return Ok(()),
            },
            Err(message) => Some(BatchLineError::Malformed(format!("request {number}: {message}"))),
        };
        Err(ScanError { offset: item.start, message: "it is rejected" })
    });
    match fault {
        Some(fault) => Err(fault),
        None => read.map(|_| ()).map_err(|error| BatchLineError::Malformed(error.to_string())),
    }
}

/// Returns the main model of the object `part` in a request, and all other models that this object names. The object
/// must occur exactly once, because the provider might read a different duplicate than the one checked here.
fn requested_models(request: &[u8], part: &str) -> Result<Vec<String>, String> {
    let mut positions = Vec::with_capacity(1);
    for_each_field(request, |key, at| {
        if key == part.as_bytes() {
            positions.push(at);
        }
        Ok(())
    })
    .map_err(|error| error.to_string())?;
    let [at] = <[_; 1]>::try_from(positions).map_err(|_| format!("it must have one {part}"))?;
    let peek = peek(&request[at.clone()]).map_err(|error| format!("{part}: {error}"))?;
    let candidate = peek.model.filter(|model| !model.is_empty());
    let model_name = candidate.ok_or_else(|| format!("it must name its model in {part}.model"))?;
    let models = named_models(&request[at])
        .map_err(|unlistable| format!("the models of {} cannot be read", unlistable.field))?;
    Ok([model_name].into_iter().chain(models.into_iter().map(|model| model.name)).collect())
}

/// Checks the batch lines of a multipart upload as it streams. Errors in the lines only count if the file is for a
/// batch, which a form field after the file may declare.
pub struct BatchUploadChecker {
    upload: UploadParser,
    lines: LineSplitter,
    is_file_complete: bool,
    error: Option<BatchLineError>,
}

impl BatchUploadChecker {
    /// Creates a checker; `None` if the content type is not multipart form data with a boundary.
    pub fn from_content_type(content_type: &str, longest_line: usize) -> Option<Self> {
        let upload = UploadParser::from_content_type(content_type)?;
        Some(Self { upload, lines: LineSplitter::new(longest_line), is_file_complete: false, error: None })
    }

    /// Returns true if the form has ended.
    pub fn is_finished(&self) -> bool {
        self.upload.is_finished()
    }

    /// Checks the next bytes before they are forwarded. An error means that they must not be forwarded.
    pub fn feed(&mut self, bytes: &[u8], admit: ModelFilter<'_>) -> Result<(), BatchLineError> {
        let unread = |message| BatchLineError::Malformed(format!("the form cannot be read: {message}"));
        self.upload.feed(bytes).map_err(unread)?;
        let content = self.upload.take_content();
        if self.error.is_none() {
            self.error = self.check_content(&content, admit).err();
        }
        match self.error.take_if(|_| is_for_batch(&self.upload)) {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    fn check_content(&mut self, content: &[u8], admit: ModelFilter<'_>) -> Result<(), BatchLineError> {
        let each = |number: usize, line: &[u8]| check_line(number, line, admit);
        self.lines.feed(content, each)?;
        let is_last = self.upload.is_file_complete() && !std::mem::replace(&mut self.is_file_complete, true);
        if is_last { self.lines.finish(each) } else { Ok(()) }
    }
}

/// Returns true if a `purpose` field contains `batch`, since some providers use longer values. A form that ended
/// without a purpose counts as a batch too.
fn is_for_batch(upload: &UploadParser) -> bool {
    let batch_purpose = |(name, value): (&str, &str)| {
        name.eq_ignore_ascii_case("purpose").then(|| value.to_ascii_lowercase().contains("batch"))
    };
    let mut purposes = upload.fields().filter_map(batch_purpose).peekable();
    if purposes.peek().is_none() { upload.is_finished() } else { purposes.any(|is_batch| is_batch) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT_TYPE: &str = "multipart/form-data; boundary=b-1";

    fn is_good_model(model: &str) -> bool {
        model == "good"
    }

    fn batch_line(model: &str) -> String {
        format!("{{\"custom_id\":\"1\",\"method\":\"POST\",\"body\":{{\"model\":\"{model}\",\"messages\":[]}}}}\n")
    }

    fn form_part(head: &str, value: &str) -> String {
        format!("--b-1\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    }

    fn build_form(parts: &[String]) -> String {
        parts.concat() + "--b-1--\r\n"
    }

    fn purpose_part(purpose: &str) -> String {
        form_part("name=\"purpose\"", purpose)
    }

    fn file_part(lines: &str) -> String {
        form_part("name=\"file\"; filename=\"a.jsonl\"\r\nContent-Type: application/jsonl", lines)
    }

    /// Feeds the body in chunks. Returns the number of accepted bytes, and the error or whether the form is finished.
    fn feed_form(body: &str, step: usize) -> (usize, Result<bool, BatchLineError>) {
        let mut upload = BatchUploadChecker::from_content_type(CONTENT_TYPE, 200).unwrap();
        let mut passed = 0;
        for chunk in body.as_bytes().chunks(step) {
            if let Err(fault) = upload.feed(chunk, &is_good_model) {
                return (passed, Err(fault));
            }
            passed += chunk.len();
        }
        (passed, Ok(upload.is_finished()))
    }

    const CHUNK_SIZES: [usize; 6] = [1, 2, 7, 64, 300, 100_000];

    #[test]
    fn accepts_lines_with_allowed_models_for_any_chunk_size_and_part_order() {
        let lines = batch_line("good").repeat(5) + "\r\n \n" + batch_line("good").trim_end();
        for parts in [[purpose_part("batch"), file_part(&lines)], [file_part(&lines), purpose_part("batch")]] {
            for step in CHUNK_SIZES {
                assert_eq!(feed_form(&build_form(&parts), step).1, Ok(true), "{step}");
            }
        }
    }

    #[test]
    fn rejects_a_disallowed_model_before_the_form_ends() {
        for (at, lines) in [
            batch_line("good") + &batch_line("bad"),
            batch_line("bad") + &batch_line("good"),
            batch_line("good") + batch_line("bad").trim_end(),
        ]
        .iter()
        .enumerate()
        {
            for parts in [
                [purpose_part("batch"), file_part(lines)],
                [file_part(lines), purpose_part("batch")],
                [file_part(lines), String::new()],
            ] {
                let body = build_form(&parts);
                for step in CHUNK_SIZES {
                    let (passed, result) = feed_form(&body, step);
                    assert_eq!(result, Err(BatchLineError::ModelNotAllowed("bad".into())), "{at} {step}");
                    assert!(passed < body.len() - "\r\n".len(), "{at} {step}: the provider has all of it");
                }
            }
        }
    }

    #[test]
    fn accepts_any_content_in_files_that_are_not_for_a_batch() {
        let anything = "\u{0}\u{1}no lines".repeat(100) + &batch_line("bad");
        for parts in
            [[purpose_part("assistants"), file_part(&anything)], [file_part(&anything), purpose_part("fine-tune")]]
        {
            for step in CHUNK_SIZES {
                assert_eq!(feed_form(&build_form(&parts), step).1, Ok(true));
            }
        }
        let both = build_form(&[purpose_part("assistants"), file_part(&anything), purpose_part("batch")]);
        assert!(feed_form(&both, 10).1.is_err(), "one of them is");
        assert!(feed_form(&build_form(&[file_part(&anything), purpose_part("Batch-API")]), 10).1.is_err());
    }

    #[test]
    fn rejects_malformed_batch_lines_with_their_line_number() {
        let long = batch_line(&"x".repeat(200));
        for (lines, expected) in [
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
            let body = build_form(&[purpose_part("batch"), file_part(&(batch_line("good") + lines))]);
            for step in CHUNK_SIZES {
                let Err(BatchLineError::Malformed(message)) = feed_form(&body, step).1 else {
                    panic!("{lines} passed")
                };
                assert!(message.starts_with("line 2: ") && message.contains(expected), "{message}");
            }
        }
    }

    #[test]
    fn checks_the_model_of_each_request_in_a_message_batch() {
        let batch =
            |requests: &str| check_message_batch(format!("{{\"requests\":[{requests}]}}").as_bytes(), &is_good_model);
        let request = |model: &str| format!("{{\"custom_id\":\"1\",\"params\":{{\"model\":\"{model}\"}}}}");
        assert_eq!((batch(&request("good")), batch("")), (Ok(()), Ok(())));
        let both = request("good") + "," + &request("bad");
        assert_eq!(batch(&both), Err(BatchLineError::ModelNotAllowed("bad".into())));
        for requests in
            ["7", "{}", "{\"params\":{}}", "{\"params\":{\"model\":\"good\"},\"params\":{\"model\":\"bad\"}}"]
        {
            let result = batch(&(request("good") + "," + requests));
            assert!(
                matches!(&result, Err(BatchLineError::Malformed(why)) if why.starts_with("request 2: ")),
                "{result:?}"
            );
        }
        for body in [
            "{}",
            "[]",
            "{\"requests\":{}}",
            "{\"requests\":[],\"requests\":[]}",
            "{\"requests\":[],\"model\":\"bad\"}",
        ] {
            assert!(
                matches!(check_message_batch(body.as_bytes(), &is_good_model), Err(BatchLineError::Malformed(_))),
                "{body}"
            );
        }
    }

    #[test]
    fn rejects_encoded_files_and_oversized_headers_and_does_not_finish_truncated_forms() {
        let coded =
            form_part("name=\"file\"; filename=\"a\"\r\nContent-Transfer-Encoding: base64", &batch_line("good"));
        assert!(matches!(
            feed_form(&build_form(&[purpose_part("batch"), coded]), 9).1,
            Err(BatchLineError::Malformed(_))
        ));
        let endless = format!("--b-1\r\nx: {}", "y".repeat(1 << 20));
        assert!(matches!(feed_form(&endless, 500).1, Err(BatchLineError::Malformed(_))));
        let cut = purpose_part("batch") + &file_part(&batch_line("good"));
        assert_eq!(feed_form(&cut, 9).1, Ok(false));
        assert!(BatchUploadChecker::from_content_type("application/json", 9).is_none());
    }
}
