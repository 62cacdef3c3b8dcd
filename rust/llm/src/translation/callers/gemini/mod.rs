//! Gemini's dialect, as Google's own clients write and read it.

mod parts;
mod request;
mod schema;
mod stream;
pub mod texts;
mod whole;

pub use request::{read, read_counted, shows_thoughts};
pub use stream::Stream;
pub use whole::Whole;
