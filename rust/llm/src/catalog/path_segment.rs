//! Paths: encodes segments from clients and options, and finds segments in paths.

use std::fmt::Write;

use crate::operation::Operation;

/// Percent-encodes all bytes except the unreserved characters of RFC 3986.
pub(crate) fn encode_segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte.into());
        } else {
            // Writing to a `String` cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Encodes a model name as a segment. Rejects an empty name, and `.` and `..`, which would change the path.
pub(crate) fn encode_model(name: &str) -> Result<String, String> {
    match name {
        "" => Err("no model: the body must name one".into()),
        "." | ".." => Err("the model must not be `.` or `..`".into()),
        name => Ok(encode_segment(name)),
    }
}

/// Path parts that usually precede the name of a model or a deployment.
const MODEL_PATH_MARKERS: &[&str] = &["/deployments/", "/endpoints/", "/models/"];

/// Returns the segment after a part that usually precedes the name of a model or a deployment.
pub(crate) fn find_model(path: &str) -> Option<&str> {
    segment_after(path, MODEL_PATH_MARKERS)
}

/// Returns the segment after the first marker that the path contains, encoded as received.
pub(crate) fn segment_after<'p>(path: &'p str, markers: &[&str]) -> Option<&'p str> {
    let rest = markers.iter().find_map(|marker| path.split_once(marker)).map(|(_, rest)| rest)?;
    Some(first_segment(rest))
}

/// Returns the first segment of a path.
pub(crate) fn first_segment(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split('/').next().unwrap_or(path)
}

/// Returns true if the text can be one label of a host name.
pub(crate) fn is_host_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Returns the path of the `OpenAI` operation that a translated request uses.
pub(crate) fn openai_path(operation: Operation) -> &'static str {
    if operation.is_embedding() { "/embeddings" } else { "/chat/completions" }
}

/// Returns the job id in a path such as `/fine_tuning/jobs/:id/cancel`, encoded as received.
pub(crate) fn job_id_in_path(path: &str) -> Result<&str, String> {
    let below = path.strip_prefix("/fine_tuning/jobs/").or_else(|| path.strip_prefix("/batches/"));
    let id = below.and_then(|rest| rest.split('/').next()).unwrap_or_default();
    if matches!(id, "" | "." | "..") { Err("the path must name a job".into()) } else { Ok(id) }
}
