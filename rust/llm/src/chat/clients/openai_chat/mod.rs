//! Chat completions, `OpenAI`'s dialect, with the few fields more that a gateway to all providers needs.

mod request;
pub(crate) mod response;
mod stream;
mod usage;

pub use crate::chat::clients::openai_chat::response::Whole;
pub use request::read;
pub use stream::Stream;
pub use usage::usage;
