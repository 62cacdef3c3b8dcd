//! Anthropic Messages as a client format.

mod request;
pub(crate) mod response;
mod stream;
mod usage;

pub use crate::chat::clients::anthropic_messages::response::ResponseBuilder;
pub use request::parse_request;
pub use stream::StreamWriter;
pub use usage::encode_usage;
