//! Client formats. Each module parses the requests and writes the responses of one API format that clients use.

pub mod anthropic_messages;
pub mod bedrock_converse;
pub mod gemini;
pub mod openai_chat;
pub mod openai_completions;
pub mod openai_responses;
