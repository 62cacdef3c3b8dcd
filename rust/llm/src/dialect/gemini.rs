//! Google's way of saying that something failed, and what of its requests is said more than once.

use serde_json::{Value, json};

use super::Failure;

/// The body of a batch whose requests, which each name the model, name this one; `None` where they do already, or are none.
pub fn renamed(body: &[u8], model: &str) -> Option<Vec<u8>> {
    let mut batch: Value = serde_json::from_slice(body).ok()?;
    let name = Value::from(format!("models/{}", model.trim_start_matches("models/")));
    let mut is_same = true;
    for request in batch.get_mut("requests")?.as_array_mut()? {
        let named = request.get_mut("model")?;
        is_same &= *named == name;
        named.clone_from(&name);
    }
    (!is_same).then(|| batch.to_string().into_bytes())
}

pub fn error_body(failure: &Failure) -> Vec<u8> {
    let Failure { status, message, .. } = failure;
    let error: Value = json!({"code": status, "message": message, "status": status_of(*status)});
    json!({"error": error}).to_string().into_bytes()
}

pub fn error_event(failure: &Failure) -> Vec<u8> {
    [b"data: ", error_body(failure).as_slice(), b"\n\n"].concat()
}

fn status_of(status: u16) -> &'static str {
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
