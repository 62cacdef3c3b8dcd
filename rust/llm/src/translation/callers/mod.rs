//! The dialects in which callers write their requests and read their answers.

pub mod chat;
pub mod complete;
pub mod converse;
pub mod gemini;
pub mod messages;
pub mod responses;
