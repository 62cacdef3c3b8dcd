//! `OpenAI` chat completions as a client format, with a few extra fields for the features of other providers.

mod request;
pub(crate) mod response;
mod stream;
mod usage;

pub use crate::chat::clients::openai_chat::response::ResponseBuilder;
pub use request::parse_request;
pub(crate) use request::{apply_allowed_tools, custom_tool, take_cache_control};
pub use stream::StreamWriter;
pub use usage::encode_usage;
