//! Provider formats of chat: request bodies to providers, and their responses and streams.

pub mod anthropic_hosted;
pub mod anthropic_messages;
pub mod bedrock_converse;
pub mod bedrock_invoke;
pub mod cohere;
pub mod gemini;
pub mod openai_chat;
pub mod triton;
