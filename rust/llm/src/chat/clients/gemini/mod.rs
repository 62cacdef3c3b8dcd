//! Gemini's dialect, as Google's own clients write and read it.

mod parts;
mod request;
pub(crate) mod response;
mod schema;
mod stream;
pub mod texts;

pub use crate::chat::clients::gemini::response::Whole;
pub use request::{read, read_counted, shows_thoughts};
pub use stream::Stream;
