//! Gemini's client format, as Google's own SDKs use it.

mod parts;
mod request;
pub(crate) mod response;
mod schema;
mod stream;
pub mod texts;

pub use crate::chat::clients::gemini::response::ResponseBuilder;
pub use request::{parse_count_request, parse_request, should_show_thinking};
pub use stream::StreamWriter;
