//! Gemini error format, model replacement in batch requests, and streams as a JSON array.

use serde_json::{Value, json};

use super::failure::Failure;

/// Replaces the model in each request of a batch body. Returns `None` if every request already names that model. Also
/// returns `None` if the list of requests or the model of a request is missing.
pub fn replace_batch_model(body: &[u8], model: &str) -> Option<Vec<u8>> {
    let mut batch: Value = serde_json::from_slice(body).ok()?;
    let name = Value::from(format!("models/{}", model.trim_start_matches("models/")));
    let mut is_same = true;
    for request in batch.get_mut("requests")?.as_array_mut()? {
        let model_field = request.get_mut("model")?;
        is_same &= *model_field == name;
        model_field.clone_from(&name);
    }
    (!is_same).then(|| batch.to_string().into_bytes())
}

pub fn error_body(failure: &Failure) -> Vec<u8> {
    let Failure { status, message, .. } = failure;
    let error: Value = json!({"code": status, "message": message, "status": rpc_code_for_status(*status)});
    json!({"error": error}).to_string().into_bytes()
}

pub fn error_event(failure: &Failure) -> Vec<u8> {
    [b"data: ", error_body(failure).as_slice(), b"\n\n"].concat()
}

/// Converts the events of a stream to items of one JSON array. Google streams that way to clients that do not ask for
/// SSE.
#[derive(Debug, Default)]
pub struct JsonArrayStream {
    has_items: bool,
}

impl JsonArrayStream {
    /// Returns the next part of the array for complete events, and the closing bracket if `is_end` is true.
    pub fn encode_events(&mut self, events: &[u8], is_end: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(events.len() + 4);
        for item in events.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data: ")) {
            out.extend_from_slice(if self.has_items { b",\r\n" } else { b"[" });
            out.extend_from_slice(item);
            self.has_items = true;
        }
        if is_end {
            out.extend_from_slice(if self.has_items { b"]" } else { b"[]" });
        }
        out
    }
}

fn rpc_code_for_status(status: u16) -> &'static str {
    match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        408 | 504 => "DEADLINE_EXCEEDED",
        409 => "ABORTED",
        429 => "RESOURCE_EXHAUSTED",
        499 => "CANCELLED",
        501 => "UNIMPLEMENTED",
        502 | 503 | 529 => "UNAVAILABLE",
        _ if status < 500 => "INVALID_ARGUMENT",
        _ => "INTERNAL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_events_as_items_of_one_array() {
        let mut items = JsonArrayStream::default();
        let events: [(&[u8], bool); 4] =
            [(b"", false), (b"data: {\"a\":1}\n\ndata: {\"b\":2}\n\n", false), (b"data: {}\n\n", false), (b"", true)];
        let encoded: Vec<_> = events.iter().map(|(event, is_end)| items.encode_events(event, *is_end)).collect();
        assert_eq!(encoded.concat(), b"[{\"a\":1},\r\n{\"b\":2},\r\n{}]");
        assert_eq!(JsonArrayStream::default().encode_events(b"", true), b"[]");
    }
}
