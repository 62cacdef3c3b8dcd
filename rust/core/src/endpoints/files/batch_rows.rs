//! The lines of a file for a batch, on their way to who keeps it: each is said in the words of its model.

use std::borrow::Cow;

use penstock_llm::{
    api_format::{self, Lines},
    files::{Row, Words},
    json::edit,
    translation::{Lost, Refusal},
};

use crate::endpoints::batches::line_requests::{self, Line};

/// A line that is longer is none.
const LONGEST: usize = 16 * 1024 * 1024;

/// What has come of a file for a batch, and what became of it.
pub struct Rows {
    provider: &'static str,
    words: Words,
    for_all: ForAll,
    lines: Lines,
    has_some: bool,
    /// The model and the endpoint of its first line, which are those of all: a job has one.
    pub first: Option<(String, String)>,
    pub lost: Lost,
    out: Vec<u8>,
}

/// What is said of all lines of a file beside it, whatever they say themselves.
#[derive(Debug, Default, Clone)]
pub struct ForAll {
    pub model: Option<String>,
    /// With `/v1`.
    pub endpoint: Option<String>,
}

impl Rows {
    pub fn new(provider: &'static str, words: Words, for_all: ForAll) -> Self {
        let (lines, out) = (Lines::new(LONGEST), Vec::new());
        Self { provider, words, for_all, lines, has_some: false, first: None, lost: Lost::default(), out }
    }

    /// Takes what comes next of the file.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.with_lines(|rows, lines| lines.feed(bytes, |number, line| rows.line(number, line)))
    }

    /// Its last line may have no end. A file without lines is none for a batch.
    pub fn finish(&mut self) -> Result<(), Refusal> {
        self.with_lines(|rows, lines| lines.end(|number, line| rows.line(number, line)))?;
        if self.has_some { Ok(()) } else { Err(Refusal::new("file", "it has no lines")) }
    }

    fn with_lines<T>(&mut self, work: impl FnOnce(&mut Self, &mut Lines) -> T) -> T {
        let mut lines = std::mem::replace(&mut self.lines, Lines::new(LONGEST));
        let done = work(self, &mut lines);
        self.lines = lines;
        done
    }

    /// What is to be written, since the last time.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    fn line(&mut self, number: usize, line: &[u8]) -> Result<(), Refusal> {
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(());
        }
        self.has_some = true;
        let row: Row<'_> = serde_json::from_slice(line)
            .map_err(|error| at(number, "", &format!("it is no JSON object of a batch: {error}")))?;
        if self.words.are_of(&row) {
            self.look(&row).map_err(|refusal| at(number, &refusal.path, &refusal.message))?;
            self.out.extend_from_slice(line);
        } else {
            let said = self.said(&row).map_err(|refusal| at(number, &refusal.path, &refusal.message))?;
            self.out.extend_from_slice(&said);
        }
        self.out.push(b'\n');
        Ok(())
    }

    fn said(&mut self, row: &Row<'_>) -> Result<Vec<u8>, Refusal> {
        let missing = |path: &str, what: &str| Refusal::new(path, format!("it must be {what}"));
        let custom_id = row.custom_id.as_deref().ok_or_else(|| missing("custom_id", "a string"))?;
        let url = self.for_all.endpoint.clone().or_else(|| row.url.as_deref().map(ToOwned::to_owned));
        let url = &*url.ok_or_else(|| missing("url", "the path of an endpoint"))?;
        let body = row.body.ok_or_else(|| missing("body", "the body of a request"))?.get().as_bytes();
        let body = &*self.for_all.named(body)?;
        let model = api_format::peek(body).ok().and_then(|peek| peek.model);
        self.refuse_other(&model.ok_or_else(|| missing("body.model", "a string"))?, url)?;
        if let Some(only) = self.words.plain() {
            if url != only {
                return Err(Refusal::new("url", format!("it is `{url}`: batches are of {only} here")));
            }
            self.words.unsaid(body).iter().for_each(|name| self.lost.add(name));
            return self.words.row(custom_id, body).map_err(|message| Refusal::new("body", message));
        }
        let line = Line { provider: self.provider, path: url, body };
        let said = line_requests::said(line).map_err(|problem| Refusal::new(problem.path, problem.message))?;
        said.lost.split(", ").filter(|name| !name.is_empty()).for_each(|name| self.lost.add(name));
        self.words.row(custom_id, &said.body).map_err(|message| Refusal::new("", message))
    }

    /// A line that is a request in the provider's own words may name a model too.
    fn look(&mut self, row: &Row<'_>) -> Result<(), Refusal> {
        let (Some(only), Some(body)) = (self.words.plain(), row.body) else { return Ok(()) };
        let peek = api_format::peek(body.get().as_bytes()).map_err(|found| Refusal::new("body", found.message))?;
        peek.model.map_or(Ok(()), |model| self.refuse_other(&model, only))
    }

    fn refuse_other(&mut self, model: &str, url: &str) -> Result<(), Refusal> {
        let (first, endpoint) = self.first.get_or_insert_with(|| (model.to_owned(), url.to_owned()));
        let wrong = |path: &str, is: &str, wanted: &str| {
            Refusal::new(path, format!("it is `{is}`: all lines of a file are for one job, here of `{wanted}`"))
        };
        if first != model {
            return Err(wrong("body.model", model, first));
        }
        if endpoint == url { Ok(()) } else { Err(wrong("url", url, endpoint)) }
    }
}

impl ForAll {
    /// The same body for the model that is meant.
    fn named<'b>(&self, body: &'b [u8]) -> Result<Cow<'b, [u8]>, Refusal> {
        let Some(model) = &self.model else { return Ok(body.into()) };
        let named = edit::set(body, &[], &[edit::field("model", &model.as_str().into())]);
        named.map(Cow::Owned).map_err(|found| Refusal::new("body", found.message))
    }
}

fn at(number: usize, path: &str, message: &str) -> Refusal {
    let place = if path.is_empty() { "file".to_owned() } else { format!("file.{path}") };
    Refusal::new(place, format!("line {number}: {message}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn line(id: &str, model: &str, text: &str) -> String {
        let body = json!({"model": model, "seed": 1, "messages": [{"role": "user", "content": text}]});
        json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
    }

    fn written(provider: &'static str, words: Words, file: &str, step: usize) -> Result<Vec<Value>, Refusal> {
        let mut rows = Rows::new(provider, words, ForAll::default());
        file.as_bytes().chunks(step).try_for_each(|piece| rows.feed(piece))?;
        rows.finish()?;
        let out = String::from_utf8(rows.take()).unwrap();
        Ok(out.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    #[test]
    fn lines_are_said_in_the_words_of_their_model_however_they_come() {
        let file = format!("{}\n\n{}", line("a", "amazon.nova", "one"), line("b", "amazon.nova", "two"));
        for step in [1, 7, file.len()] {
            let rows = written("bedrock", Words::Bedrock, &file, step).unwrap();
            assert_eq!((rows.len(), &rows[1]["recordId"]), (2, &json!("b")));
            assert_eq!(rows[1]["modelInput"]["messages"][0]["content"][0]["text"], "two");
        }
        let rows = written("vertex-ai", Words::Vertex, &line("a", "gemini-2.5-pro", "one"), 50).unwrap();
        assert_eq!(rows[0]["request"]["labels"]["custom_id"], "a");
        let rows = written("vertex-ai", Words::Vertex, &line("A", "claude-sonnet-4-5", "one"), 50).unwrap();
        assert_eq!((&rows[0]["custom_id"], &rows[0]["request"]["messages"][0]["role"]), (&json!("A"), &json!("user")));
    }

    #[test]
    fn lines_in_the_providers_own_words_stay_as_they_are() {
        let own = r#"{"recordId": "x",  "modelInput": {"any": 1}}"#;
        let mut rows = Rows::new("bedrock", Words::Bedrock, ForAll::default());
        rows.feed(own.as_bytes()).unwrap();
        rows.finish().unwrap();
        assert_eq!((rows.take(), rows.first.is_none()), (format!("{own}\n").into_bytes(), true));
    }

    #[test]
    fn a_model_and_an_endpoint_may_be_said_beside_the_file() {
        let for_all = ForAll { model: Some("amazon.nova".into()), endpoint: Some("/v1/chat/completions".into()) };
        let mut rows = Rows::new("bedrock", Words::Bedrock, for_all);
        let body = json!({"messages": [{"role": "user", "content": "x"}]});
        let nameless = json!({"custom_id": "a", "body": body}).to_string();
        rows.feed(format!("{nameless}\n{}", line("b", "other", "y")).as_bytes()).unwrap();
        rows.finish().unwrap();
        let first = Some(("amazon.nova".to_owned(), "/v1/chat/completions".to_owned()));
        let written = String::from_utf8(rows.take()).unwrap();
        assert_eq!((rows.first, written.lines().count()), (first, 2));
    }

    #[test]
    fn what_a_model_cannot_be_told_is_named_once() {
        let mut rows = Rows::new("bedrock", Words::Bedrock, ForAll::default());
        for id in ["a", "b"] {
            rows.feed((line(id, "amazon.nova", "x") + "\n").as_bytes()).unwrap();
        }
        assert_eq!((rows.lost.text().as_str(), rows.first.unwrap().0.as_str()), ("seed", "amazon.nova"));
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        let good = line("a", "m", "x");
        let without = |key: &str| {
            let mut row: Value = serde_json::from_str(&good).unwrap();
            row.as_object_mut().unwrap().remove(key);
            row.to_string()
        };
        for (second, path, why) in [
            ("[1]".to_owned(), "file", "line 2: it is no JSON object"),
            (without("custom_id"), "file.custom_id", "line 2: it must be a string"),
            (without("url"), "file.url", "line 2"),
            (without("body"), "file.body", "line 2"),
            (line("b", "other", "x"), "file.body.model", "line 2: it is `other`"),
            (good.replace("/chat/completions", "/nowhere"), "file.url", "line 2"),
            (good.replace(r#""role":"user""#, r#""role":7"#), "file.body.messages", "line 2"),
        ] {
            let refusal = written("bedrock", Words::Bedrock, &format!("{good}\n{second}"), 64).unwrap_err();
            assert!(refusal.path.starts_with(path) && refusal.message.contains(why), "{refusal}");
        }
        let elsewhere = good.replace("/chat/completions", "/embeddings");
        let refusal = written("fireworks-ai", Words::Fireworks, &elsewhere, 64).unwrap_err();
        assert!(refusal.path == "file.url" && refusal.message.contains("line 1"), "{refusal}");
        assert!(written("bedrock", Words::Bedrock, "\n \n", 2).unwrap_err().message.contains("no lines"));
    }
}
