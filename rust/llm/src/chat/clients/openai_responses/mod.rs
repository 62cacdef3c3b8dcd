//! `OpenAI` Responses as a client format, as far as it can be translated to providers that do not support it.

mod request;
pub(crate) mod response;
mod stream;

pub use crate::chat::clients::openai_responses::response::ResponseBuilder;
pub use request::parse_request;
pub use stream::StreamWriter;
