//! The dialects in which callers write their requests and read their answers.

pub mod chat;
pub mod messages;
pub mod responses;
