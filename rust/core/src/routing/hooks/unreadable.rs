//! Reasons why hooks cannot read a response, as results name them.

pub const UNREADABLE_STREAM: &str = "the stream has another format than its operation";
pub const TOO_LARGE: &str = "the response is too large to be checked";
