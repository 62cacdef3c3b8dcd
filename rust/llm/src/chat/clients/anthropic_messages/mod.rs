//! Messages, Anthropic's dialect.

mod request;
pub(crate) mod response;
mod stream;
mod usage;

pub use crate::chat::clients::anthropic_messages::response::Whole;
pub use request::read;
pub use stream::Stream;
pub use usage::usage;
