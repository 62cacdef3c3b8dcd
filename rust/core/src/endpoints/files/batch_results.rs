//! Translation of a batch's output file: each line becomes an `OpenAI` batch result of its endpoint.

use std::borrow::Cow;

use penstock_llm::{
    api_format::{LineSplitter, LineTooLong},
    files::BatchLineFormat,
};
use penstock_net::IncomingResponse;
use serde_json::{Value, json, value::RawValue};

use crate::{
    endpoints::batches::line_requests::{self, BatchLine},
    ingress::message::BatchOutput,
    resolve::target_resolver::ClientRequest,
    response::offload::with_content_type,
};

/// Maximum length of a line; a longer one is an error.
const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Content type of translated output files.
const FILE_CONTENT_TYPE: &[u8] = b"application/octet-stream";

/// Streaming translator of a batch's output file.
pub struct BatchOutputTranslator {
    provider: &'static str,
    line_format: BatchLineFormat,
    endpoint: String,
    /// Placeholder request for response translation. The original requests are unknown; only the endpoint and the model
    /// matter.
    placeholder_request: Vec<u8>,
    lines: LineSplitter,
    is_broken: bool,
}

impl BatchOutputTranslator {
    /// Returns `None` if the request is not for the output lines of a batch.
    pub fn from_client_request(
        client_request: &ClientRequest<'_>,
        provider: &'static str,
        line_format: BatchLineFormat,
    ) -> Option<Self> {
        let Some(BatchOutput::ProviderFile { endpoint, model }) = client_request.head.batch_output.as_deref() else {
            return None;
        };
        Some(Self::new(provider, line_format, endpoint, model))
    }

    fn new(provider: &'static str, line_format: BatchLineFormat, endpoint: &str, model: &str) -> Self {
        let request = match endpoint {
            "/v1/completions" => json!({"model": model, "prompt": "-"}),
            "/v1/embeddings" | "/v1/responses" => json!({"model": model, "input": "-"}),
            _ => json!({"model": model, "messages": [{"role": "user", "content": "-"}]}),
        };
        let (lines, placeholder_request) = (LineSplitter::new(MAX_LINE_BYTES), request.to_string().into_bytes());
        Self { provider, line_format, endpoint: endpoint.to_owned(), placeholder_request, lines, is_broken: false }
    }

    /// Translates the next chunk of the file; `None` marks its end.
    pub fn translate_chunk(&mut self, chunk: Option<&[u8]>) -> Vec<u8> {
        let mut out = Vec::new();
        if self.is_broken {
            return out;
        }
        let mut lines = std::mem::replace(&mut self.lines, LineSplitter::new(MAX_LINE_BYTES));
        let each = |number: usize, line: &[u8]| {
            let line = line.trim_ascii();
            if !line.is_empty() {
                out.extend(self.translate_line(number, line));
            }
            Ok::<_, LineTooLong>(())
        };
        let read = match chunk {
            Some(chunk) => lines.feed(chunk, each),
            None => lines.finish(each),
        };
        self.lines = lines;
        if let Err(fault) = read {
            // A line exceeded the limit. Later lines cannot be separated from it, so translation stops.
            self.is_broken = true;
            out.extend(encode_output_line(fault.line_number, "", Err(&fault.to_string())));
        }
        out
    }

    fn translate_line(&self, number: usize, line: &[u8]) -> Vec<u8> {
        let unread = |id: &str, reason: &str| encode_output_line(number, id, Err(reason));
        let result = match self.line_format.parse_result_line(line) {
            Ok(result) => result,
            Err(broken) => return unread("", &broken.0),
        };
        let (id, mut status) = (&*result.custom_id, result.status);
        let body: Cow<'_, str> = if result.is_openai_format {
            result.body
        } else {
            let batch_line =
                BatchLine { provider: self.provider, path: &self.endpoint, body: &self.placeholder_request };
            let response = line_requests::translate_line_response(batch_line, status, result.body.as_bytes());
            match response.map(|(translated_status, body)| (translated_status, String::from_utf8(body))) {
                Ok((translated_status, Ok(text))) => {
                    status = translated_status;
                    text.into()
                }
                Ok((_, Err(_))) => return unread(id, "it is not UTF-8 text"),
                Err(problem) => return unread(id, &problem.message),
            }
        };
        match RawValue::from_string(body.into_owned()) {
            Ok(body) => encode_output_line(number, id, Ok((status, &body))),
            Err(error) => unread(id, &error.to_string()),
        }
    }
}

/// Encodes one line of `OpenAI`'s batch output: the response, or why it could not be read.
fn encode_output_line(number: usize, custom_id: &str, outcome: Result<(u16, &RawValue), &str>) -> Vec<u8> {
    let (response, error) = match outcome {
        Ok((status, body)) => {
            let request = json!(response_id(body).unwrap_or_default());
            (format!("{{\"status_code\":{status},\"request_id\":{request},\"body\":{}}}", body.get()), Value::Null)
        }
        Err(reason) => ("null".to_owned(), json!({"code": "answer_unreadable", "message": reason})),
    };
    let (id, custom_id) = (json!(format!("batch_req_{number}")), json!(custom_id));
    format!("{{\"id\":{id},\"custom_id\":{custom_id},\"response\":{response},\"error\":{error}}}\n").into_bytes()
}

/// Returns the `id` of a response body.
fn response_id(body: &RawValue) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct ResponseId {
        id: Option<String>,
    }
    serde_json::from_str::<ResponseId>(body.get()).ok()?.id
}

/// Wraps a response so that its lines are translated as they arrive.
pub fn translate_output(mut results: BatchOutputTranslator, incoming: IncomingResponse) -> IncomingResponse {
    let IncomingResponse { head, body } = incoming;
    set_file_content_type(IncomingResponse {
        head,
        body: body.map_chunks(move |chunk| results.translate_chunk(chunk.as_deref()).into()),
    })
}

/// Sets the content type of a response whose body is replaced by lines.
pub fn set_file_content_type(incoming: IncomingResponse) -> IncomingResponse {
    let IncomingResponse { mut head, body } = incoming;
    head.headers = with_content_type(head.headers, FILE_CONTENT_TYPE);
    IncomingResponse { head, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate_in_chunks(results: &mut BatchOutputTranslator, file: &str, step: usize) -> Vec<Value> {
        let mut out: Vec<u8> =
            file.as_bytes().chunks(step).flat_map(|chunk| results.translate_chunk(Some(chunk))).collect();
        out.extend(results.translate_chunk(None));
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn translates_chat_lines_with_any_chunk_size() {
        let good = json!({"recordId": "a", "modelInput": {}, "modelOutput": {"stopReason": "end_turn",
            "output": {"message": {"role": "assistant", "content": [{"text": "hello"}]}},
            "usage": {"inputTokens": 3, "outputTokens": 1, "totalTokens": 4}}});
        let bad = json!({"recordId": "b", "error": {"errorCode": 429, "errorMessage": "too busy"}});
        let file = format!("{good}\n\n{bad}\n<html>");
        for step in [1, 17, file.len()] {
            let mut results =
                BatchOutputTranslator::new("bedrock", BatchLineFormat::Bedrock, "/v1/chat/completions", "amazon.nova");
            let rows = translate_in_chunks(&mut results, &file, step);
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
    fn translates_embeddings_responses_and_completions() {
        let vector = r#"{"recordId":"a","modelOutput":{"embedding":[0.5],"inputTextTokenCount":2}}"#;
        let mut results = BatchOutputTranslator::new(
            "bedrock",
            BatchLineFormat::Bedrock,
            "/v1/embeddings",
            "amazon.titan-embed-text-v2:0",
        );
        assert_eq!(
            translate_in_chunks(&mut results, vector, 9)[0]["response"]["body"]["data"][0]["embedding"],
            json!([0.5])
        );
        let gemini = json!({"status": "", "request": {"labels": {"custom_id": "a"}}, "response": {"responseId": "r-1",
            "candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}});
        for (endpoint, object) in [("/v1/completions", "text_completion"), ("/v1/responses", "response")] {
            let mut results =
                BatchOutputTranslator::new("vertex-ai", BatchLineFormat::Vertex, endpoint, "gemini-2.5-pro");
            let rows = translate_in_chunks(&mut results, &gemini.to_string(), 30);
            assert_eq!((&rows[0]["response"]["body"]["object"], &rows[0]["custom_id"]), (&json!(object), &json!("a")));
        }
    }

    #[test]
    fn reports_an_overlong_line_and_stops() {
        let mut results =
            BatchOutputTranslator::new("fireworks-ai", BatchLineFormat::Fireworks, "/v1/chat/completions", "m");
        let long = vec![b'x'; MAX_LINE_BYTES + 1];
        let row: Value = serde_json::from_slice(&results.translate_chunk(Some(&long))).unwrap();
        assert!(row["error"]["message"].as_str().unwrap().contains("line 1"), "{row}");
        assert!(results.translate_chunk(Some(b"\n{}\n")).is_empty() && results.translate_chunk(None).is_empty());
    }
}
