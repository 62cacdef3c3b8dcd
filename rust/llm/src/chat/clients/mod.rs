//! The dialects in which callers write their requests and read their answers.

pub mod anthropic_messages;
pub mod bedrock_converse;
pub mod gemini;
pub mod openai_chat;
pub mod openai_completions;
pub mod openai_responses;
