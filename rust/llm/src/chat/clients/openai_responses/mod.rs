//! Responses, `OpenAI`'s newer dialect, as far as it can be said to who does not speak it.

mod request;
pub(crate) mod response;
mod stream;

pub use crate::chat::clients::openai_responses::response::ResponseBuilder;
pub use request::parse_request;
pub use stream::StreamWriter;
