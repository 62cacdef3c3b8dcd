//! One segment of a path, from whatever a caller or an option says.

use std::fmt::Write;

/// Percent-encoded but for what may stand in a segment as it is.
pub(crate) fn encode_segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte.into());
        } else {
            // A String takes every write.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The name of a model as a segment; one must be named, and it must not lead elsewhere.
pub(crate) fn encode_model(name: &str) -> Result<String, String> {
    match name {
        "" => Err("no model: the body must name one".into()),
        "." | ".." => Err("a model must not be dots".into()),
        name => Ok(encode_segment(name)),
    }
}

/// Before the names of models and deployments, where most have them.
pub(crate) const MODEL_PATH_MARKERS: &[&str] = &["/deployments/", "/endpoints/", "/models/"];

/// The segment behind the first of these that stands in a path, as it came.
pub(crate) fn segment_after<'p>(path: &'p str, places: &[&str]) -> Option<&'p str> {
    let rest = places.iter().find_map(|place| path.split_once(place)).map(|(_, rest)| rest)?;
    Some(first_segment(rest))
}

/// A path's first segment.
pub(crate) fn first_segment(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split('/').next().unwrap_or(path)
}

/// What becomes part of a host's name.
pub(crate) fn is_host_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}
