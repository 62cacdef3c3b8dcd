//! Completions, `OpenAI`'s oldest API format: a prompt in, its continuation out. Chat models receive the prompt as a
//! user message.

mod request;
pub(crate) mod response;
mod stream;

pub use crate::chat::clients::openai_completions::response::ResponseBuilder;
pub use request::parse_request;
pub use stream::StreamWriter;
