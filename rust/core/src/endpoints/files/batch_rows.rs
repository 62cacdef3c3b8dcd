//! Translation of a batch's input file: each `OpenAI` line becomes a line in the format of the provider and its model.

use std::borrow::Cow;

use penstock_llm::{
    api_format::{self, LineSplitter},
    files::{BatchInputLine, BatchLineFormat},
    json::edit,
    translation::{DroppedParams, RequestError},
};

use crate::endpoints::batches::line_requests::{self, BatchLine};

/// Maximum length of a line; a longer one is an error.
const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;

/// Streaming translator of a batch's input file.
pub struct BatchInputTranslator {
    provider: &'static str,
    line_format: BatchLineFormat,
    overrides: LineOverrides,
    lines: LineSplitter,
    has_lines: bool,
    /// Model and endpoint of the first line. All lines must use the same, because a batch job has one of each.
    pub model_and_endpoint: Option<(String, String)>,
    pub dropped_params: DroppedParams,
    output: Vec<u8>,
}

/// Values that apply to all lines of a file, whatever the lines contain.
#[derive(Debug, Default, Clone)]
pub struct LineOverrides {
    pub model: Option<String>,
    /// Path of the endpoint, with `/v1`.
    pub endpoint: Option<String>,
}

impl BatchInputTranslator {
    pub fn new(provider: &'static str, line_format: BatchLineFormat, overrides: LineOverrides) -> Self {
        let (lines, output) = (LineSplitter::new(MAX_LINE_BYTES), Vec::new());
        Self {
            provider,
            line_format,
            overrides,
            lines,
            has_lines: false,
            model_and_endpoint: None,
            dropped_params: DroppedParams::default(),
            output,
        }
    }

    /// Translates the next chunk of the file.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), RequestError> {
        self.with_lines(|rows, lines| lines.feed(bytes, |number, line| rows.process_line(number, line)))
    }

    /// Translates the last line, which may lack a line break. Rejects a file without lines.
    pub fn finish(&mut self) -> Result<(), RequestError> {
        self.with_lines(|rows, lines| lines.finish(|number, line| rows.process_line(number, line)))?;
        if self.has_lines { Ok(()) } else { Err(RequestError::new("file", "it has no lines")) }
    }

    fn with_lines<T>(&mut self, action: impl FnOnce(&mut Self, &mut LineSplitter) -> T) -> T {
        let mut lines = std::mem::replace(&mut self.lines, LineSplitter::new(MAX_LINE_BYTES));
        let done = action(self, &mut lines);
        self.lines = lines;
        done
    }

    /// Returns the output since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    fn process_line(&mut self, number: usize, line: &[u8]) -> Result<(), RequestError> {
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(());
        }
        self.has_lines = true;
        let row: BatchInputLine<'_> = serde_json::from_slice(line)
            .map_err(|error| line_error(number, "", &format!("it is not a JSON object of a batch request: {error}")))?;
        if self.line_format.is_native_line(&row) {
            self.check_native_row(&row).map_err(|refusal| line_error(number, &refusal.path, &refusal.message))?;
            self.output.extend_from_slice(line);
        } else {
            let translated =
                self.translate_row(&row).map_err(|refusal| line_error(number, &refusal.path, &refusal.message))?;
            self.output.extend_from_slice(&translated);
        }
        self.output.push(b'\n');
        Ok(())
    }

    fn translate_row(&mut self, row: &BatchInputLine<'_>) -> Result<Vec<u8>, RequestError> {
        let missing = |path: &str, expected: &str| RequestError::new(path, format!("it must be {expected}"));
        let custom_id = row.custom_id.as_deref().ok_or_else(|| missing("custom_id", "a string"))?;
        let url = self.overrides.endpoint.clone().or_else(|| row.url.as_deref().map(ToOwned::to_owned));
        let url = &*url.ok_or_else(|| missing("url", "the path of an endpoint"))?;
        let body = row.body.ok_or_else(|| missing("body", "the body of a request"))?.get().as_bytes();
        let body = &*self.overrides.apply_model(body)?;
        let model = api_format::peek(body).ok().and_then(|peek| peek.model);
        self.check_same_job(&model.ok_or_else(|| missing("body.model", "a string"))?, url)?;
        if let Some(only) = self.line_format.passthrough_endpoint() {
            if url != only {
                return Err(RequestError::new("url", format!("it is `{url}`; batches here support only {only}")));
            }
            self.line_format.unsupported_fields(body).iter().for_each(|name| self.dropped_params.add(name));
            return self.line_format.encode_line(custom_id, body).map_err(|message| RequestError::new("body", message));
        }
        let line = BatchLine { provider: self.provider, path: url, body };
        let translated =
            line_requests::translate_line(line).map_err(|problem| RequestError::new(problem.path, problem.message))?;
        translated
            .dropped_params
            .split(", ")
            .filter(|name| !name.is_empty())
            .for_each(|name| self.dropped_params.add(name));
        self.line_format.encode_line(custom_id, &translated.body).map_err(|message| RequestError::new("", message))
    }

    /// Checks a line that is already in the provider's format. It may contain a model name too.
    fn check_native_row(&mut self, row: &BatchInputLine<'_>) -> Result<(), RequestError> {
        let (Some(only), Some(body)) = (self.line_format.passthrough_endpoint(), row.body) else { return Ok(()) };
        let peek = api_format::peek(body.get().as_bytes()).map_err(|error| RequestError::new("body", error.message))?;
        peek.model.map_or(Ok(()), |model| self.check_same_job(&model, only))
    }

    fn check_same_job(&mut self, model: &str, url: &str) -> Result<(), RequestError> {
        let (first, endpoint) = self.model_and_endpoint.get_or_insert_with(|| (model.to_owned(), url.to_owned()));
        let wrong = |path: &str, is: &str, expected: &str| {
            RequestError::new(
                path,
                format!("it is `{is}`; all lines of a file must be for one job, here with `{expected}`"),
            )
        };
        if first != model {
            return Err(wrong("body.model", model, first));
        }
        if endpoint == url { Ok(()) } else { Err(wrong("url", url, endpoint)) }
    }
}

impl LineOverrides {
    /// Sets the overriding model in a request body, if there is one.
    fn apply_model<'b>(&self, body: &'b [u8]) -> Result<Cow<'b, [u8]>, RequestError> {
        let Some(model) = &self.model else { return Ok(body.into()) };
        let updated = edit::set_fields(body, &[], &[edit::json_field("model", &model.as_str().into())]);
        updated.map(Cow::Owned).map_err(|error| RequestError::new("body", error.message))
    }
}

fn line_error(number: usize, path: &str, message: &str) -> RequestError {
    let location = if path.is_empty() { "file".to_owned() } else { format!("file.{path}") };
    RequestError::new(location, format!("line {number}: {message}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn batch_line(id: &str, model: &str, text: &str) -> String {
        let body = json!({"model": model, "seed": 1, "messages": [{"role": "user", "content": text}]});
        json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
    }

    fn translate_file(
        provider: &'static str,
        line_format: BatchLineFormat,
        file: &str,
        step: usize,
    ) -> Result<Vec<Value>, RequestError> {
        let mut rows = BatchInputTranslator::new(provider, line_format, LineOverrides::default());
        file.as_bytes().chunks(step).try_for_each(|chunk| rows.feed(chunk))?;
        rows.finish()?;
        let out = String::from_utf8(rows.take_output()).unwrap();
        Ok(out.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    #[test]
    fn translates_lines_with_any_chunk_size() {
        let file = format!("{}\n\n{}", batch_line("a", "amazon.nova", "one"), batch_line("b", "amazon.nova", "two"));
        for step in [1, 7, file.len()] {
            let rows = translate_file("bedrock", BatchLineFormat::Bedrock, &file, step).unwrap();
            assert_eq!((rows.len(), &rows[1]["recordId"]), (2, &json!("b")));
            assert_eq!(rows[1]["modelInput"]["messages"][0]["content"][0]["text"], "two");
        }
        let rows = translate_file("vertex-ai", BatchLineFormat::Vertex, &batch_line("a", "gemini-2.5-pro", "one"), 50)
            .unwrap();
        assert_eq!(rows[0]["request"]["labels"]["custom_id"], "a");
        let rows =
            translate_file("vertex-ai", BatchLineFormat::Vertex, &batch_line("A", "claude-sonnet-4-5", "one"), 50)
                .unwrap();
        assert_eq!((&rows[0]["custom_id"], &rows[0]["request"]["messages"][0]["role"]), (&json!("A"), &json!("user")));
    }

    #[test]
    fn keeps_lines_in_provider_format_unchanged() {
        let native_line = r#"{"recordId": "x",  "modelInput": {"any": 1}}"#;
        let mut rows = BatchInputTranslator::new("bedrock", BatchLineFormat::Bedrock, LineOverrides::default());
        rows.feed(native_line.as_bytes()).unwrap();
        rows.finish().unwrap();
        assert_eq!(
            (rows.take_output(), rows.model_and_endpoint.is_none()),
            (format!("{native_line}\n").into_bytes(), true)
        );
    }

    #[test]
    fn model_and_endpoint_can_be_set_for_the_whole_file() {
        let for_all =
            LineOverrides { model: Some("amazon.nova".into()), endpoint: Some("/v1/chat/completions".into()) };
        let mut rows = BatchInputTranslator::new("bedrock", BatchLineFormat::Bedrock, for_all);
        let body = json!({"messages": [{"role": "user", "content": "x"}]});
        let lookup = json!({"custom_id": "a", "body": body}).to_string();
        rows.feed(format!("{lookup}\n{}", batch_line("b", "other", "y")).as_bytes()).unwrap();
        rows.finish().unwrap();
        let first = Some(("amazon.nova".to_owned(), "/v1/chat/completions".to_owned()));
        let written = String::from_utf8(rows.take_output()).unwrap();
        assert_eq!((rows.model_and_endpoint, written.lines().count()), (first, 2));
    }

    #[test]
    fn lists_each_dropped_parameter_once() {
        let mut rows = BatchInputTranslator::new("bedrock", BatchLineFormat::Bedrock, LineOverrides::default());
        for id in ["a", "b"] {
            rows.feed((batch_line(id, "amazon.nova", "x") + "\n").as_bytes()).unwrap();
        }
        assert_eq!(
            (rows.dropped_params.header_value().as_str(), rows.model_and_endpoint.unwrap().0.as_str()),
            ("seed", "amazon.nova")
        );
    }

    #[test]
    fn reports_number_and_path_of_an_invalid_line() {
        let good = batch_line("a", "m", "x");
        let without = |key: &str| {
            let mut row: Value = serde_json::from_str(&good).unwrap();
            row.as_object_mut().unwrap().remove(key);
            row.to_string()
        };
        for (second, path, message) in [
            ("[1]".to_owned(), "file", "line 2: it is not a JSON object"),
            (without("custom_id"), "file.custom_id", "line 2: it must be a string"),
            (without("url"), "file.url", "line 2"),
            (without("body"), "file.body", "line 2"),
            (batch_line("b", "other", "x"), "file.body.model", "line 2: it is `other`"),
            (good.replace("/chat/completions", "/nowhere"), "file.url", "line 2"),
            (good.replace(r#""role":"user""#, r#""role":7"#), "file.body.messages", "line 2"),
        ] {
            let refusal =
                translate_file("bedrock", BatchLineFormat::Bedrock, &format!("{good}\n{second}"), 64).unwrap_err();
            assert!(refusal.path.starts_with(path) && refusal.message.contains(message), "{refusal}");
        }
        let elsewhere = good.replace("/chat/completions", "/embeddings");
        let refusal = translate_file("fireworks-ai", BatchLineFormat::Fireworks, &elsewhere, 64).unwrap_err();
        assert!(refusal.path == "file.url" && refusal.message.contains("line 1"), "{refusal}");
        assert!(
            translate_file("bedrock", BatchLineFormat::Bedrock, "\n \n", 2).unwrap_err().message.contains("no lines")
        );
    }
}
