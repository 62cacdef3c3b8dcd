//! Chat completions, `OpenAI`'s dialect, with the few fields more that a gateway to all providers needs.

mod request;
pub(crate) mod response;
mod stream;
mod usage;

pub use crate::chat::clients::openai_chat::response::ResponseBuilder;
pub use request::parse_request;
pub use stream::StreamWriter;
pub use usage::encode_usage;
