//! The answers of a batch on their way to the caller: each told in the words of its endpoint.

use std::borrow::Cow;

use penstock_llm::{
    api_format::{Lines, TooLong},
    files::Words,
};
use serde_json::{Value, json, value::RawValue};

use crate::{
    endpoints::batches::{
        Output,
        line_requests::{self, Line},
    },
    request::translate::retyped,
    resolve::target_resolver::Call,
    upstream::Incoming,
};

/// A line that is longer is none.
const LONGEST: usize = 16 * 1024 * 1024;
/// Of what is told line by line.
const KIND: &[u8] = b"application/octet-stream";

/// What of a batch's answers has come.
pub struct Results {
    provider: &'static str,
    words: Words,
    endpoint: String,
    /// A request of which all that its answers need is known: that it is one, and which model was asked.
    question: Vec<u8>,
    lines: Lines,
    is_broken: bool,
}

impl Results {
    /// `None` where no lines of a batch are asked for.
    pub fn of(call: &Call<'_>, provider: &'static str, words: Words) -> Option<Self> {
        let Some(Output::Lines { endpoint, model }) = call.head.output.as_deref() else { return None };
        Some(Self::new(provider, words, (endpoint, model)))
    }

    fn new(provider: &'static str, words: Words, (endpoint, model): (&str, &str)) -> Self {
        let said = match endpoint {
            "/v1/completions" => json!({"model": model, "prompt": "-"}),
            "/v1/embeddings" | "/v1/responses" => json!({"model": model, "input": "-"}),
            _ => json!({"model": model, "messages": [{"role": "user", "content": "-"}]}),
        };
        let (lines, question) = (Lines::new(LONGEST), said.to_string().into_bytes());
        Self { provider, words, endpoint: endpoint.to_owned(), question, lines, is_broken: false }
    }

    /// What is told of these bytes; of the end, where there are none.
    pub fn told(&mut self, piece: Option<&[u8]>) -> Vec<u8> {
        let mut out = Vec::new();
        if self.is_broken {
            return out;
        }
        let mut lines = std::mem::replace(&mut self.lines, Lines::new(LONGEST));
        let each = |number: usize, line: &[u8]| {
            let line = line.trim_ascii();
            if !line.is_empty() {
                out.extend(self.line(number, line));
            }
            Ok::<_, TooLong>(())
        };
        let read = match piece {
            Some(piece) => lines.feed(piece, each),
            None => lines.end(each),
        };
        self.lines = lines;
        if let Err(fault) = read {
            // What follows cannot be told from the line that has no end.
            self.is_broken = true;
            out.extend(row(fault.number, "", Err(&fault.to_string())));
        }
        out
    }

    fn line(&self, number: usize, line: &[u8]) -> Vec<u8> {
        let unread = |id: &str, why: &str| row(number, id, Err(why));
        let answered = match self.words.answered(line) {
            Ok(answered) => answered,
            Err(broken) => return unread("", &broken.0),
        };
        let (id, status) = (&*answered.custom_id, answered.status);
        let body: Cow<'_, str> = if answered.is_plain {
            answered.body
        } else {
            let asked = Line { provider: self.provider, path: &self.endpoint, body: &self.question };
            let told = line_requests::told(asked, status, answered.body.as_bytes());
            match told.map(String::from_utf8) {
                Ok(Ok(told)) => told.into(),
                Ok(Err(_)) => return unread(id, "it is no text"),
                Err(problem) => return unread(id, &problem.message),
            }
        };
        match RawValue::from_string(body.into_owned()) {
            Ok(body) => row(number, id, Ok((status, &body))),
            Err(error) => unread(id, &error.to_string()),
        }
    }
}

/// One of `OpenAI`'s lines: what was answered, or why that cannot be told.
fn row(number: usize, custom_id: &str, answered: Result<(u16, &RawValue), &str>) -> Vec<u8> {
    let (response, error) = match answered {
        Ok((status, body)) => {
            let request = json!(id_of(body).unwrap_or_default());
            (format!("{{\"status_code\":{status},\"request_id\":{request},\"body\":{}}}", body.get()), Value::Null)
        }
        Err(why) => ("null".to_owned(), json!({"code": "answer_unreadable", "message": why})),
    };
    let (id, custom_id) = (json!(format!("batch_req_{number}")), json!(custom_id));
    format!("{{\"id\":{id},\"custom_id\":{custom_id},\"response\":{response},\"error\":{error}}}\n").into_bytes()
}

/// What an answer is called.
fn id_of(body: &RawValue) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Named {
        id: Option<String>,
    }
    serde_json::from_str::<Named>(body.get()).ok()?.id
}

/// An answer whose lines are told.
pub fn telling(mut results: Results, incoming: Incoming) -> Incoming {
    let Incoming { head, body } = incoming;
    lines(Incoming { head, body: body.through(move |piece| results.told(piece.as_deref()).into()) })
}

/// An answer of other bytes than came.
pub fn lines(incoming: Incoming) -> Incoming {
    let Incoming { mut head, body } = incoming;
    head.headers = retyped(head.headers, KIND);
    Incoming { head, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(results: &mut Results, file: &str, step: usize) -> Vec<Value> {
        let mut out: Vec<u8> = file.as_bytes().chunks(step).flat_map(|piece| results.told(Some(piece))).collect();
        out.extend(results.told(None));
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn answers_are_told_in_the_words_of_their_endpoint_however_they_come() {
        let good = json!({"recordId": "a", "modelInput": {}, "modelOutput": {"stopReason": "end_turn",
            "output": {"message": {"role": "assistant", "content": [{"text": "hello"}]}},
            "usage": {"inputTokens": 3, "outputTokens": 1, "totalTokens": 4}}});
        let bad = json!({"recordId": "b", "error": {"errorCode": 429, "errorMessage": "too busy"}});
        let file = format!("{good}\n\n{bad}\n<html>");
        for step in [1, 17, file.len()] {
            let mut results = Results::new("bedrock", Words::Bedrock, ("/v1/chat/completions", "amazon.nova"));
            let rows = told(&mut results, &file, step);
            let ids: Vec<_> = rows.iter().map(|row| row["custom_id"].as_str().unwrap()).collect();
            assert_eq!(ids, ["a", "b", ""]);
            let body = &rows[0]["response"]["body"];
            assert_eq!(
                (&body["choices"][0]["message"]["content"], &body["usage"]["total_tokens"]),
                (&json!("hello"), &json!(4))
            );
            assert_eq!((&body["model"], &rows[0]["response"]["request_id"]), (&json!("amazon.nova"), &body["id"]));
            assert_eq!((&rows[1]["response"]["status_code"], &rows[1]["error"]), (&json!(429), &Value::Null));
            assert!(rows[1]["response"]["body"]["error"]["message"].as_str().unwrap().contains("too busy"));
            assert_eq!((&rows[2]["response"], &rows[2]["error"]["code"]), (&Value::Null, &json!("answer_unreadable")));
        }
    }

    #[test]
    fn embeddings_responses_and_completions_have_shapes_of_their_own() {
        let vector = r#"{"recordId":"a","modelOutput":{"embedding":[0.5],"inputTextTokenCount":2}}"#;
        let mut results = Results::new("bedrock", Words::Bedrock, ("/v1/embeddings", "amazon.titan-embed-text-v2:0"));
        assert_eq!(told(&mut results, vector, 9)[0]["response"]["body"]["data"][0]["embedding"], json!([0.5]));
        let gemini = json!({"status": "", "request": {"labels": {"custom_id": "a"}}, "response": {"responseId": "r-1",
            "candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}});
        for (endpoint, object) in [("/v1/completions", "text_completion"), ("/v1/responses", "response")] {
            let mut results = Results::new("vertex-ai", Words::Vertex, (endpoint, "gemini-2.5-pro"));
            let rows = told(&mut results, &gemini.to_string(), 30);
            assert_eq!((&rows[0]["response"]["body"]["object"], &rows[0]["custom_id"]), (&json!(object), &json!("a")));
        }
    }

    #[test]
    fn a_line_without_an_end_is_told_and_nothing_after_it() {
        let mut results = Results::new("fireworks-ai", Words::Fireworks, ("/v1/chat/completions", "m"));
        let long = vec![b'x'; LONGEST + 1];
        let row: Value = serde_json::from_slice(&results.told(Some(&long))).unwrap();
        assert!(row["error"]["message"].as_str().unwrap().contains("line 1"), "{row}");
        assert!(results.told(Some(b"\n{}\n")).is_empty() && results.told(None).is_empty());
    }
}
