//! Gemini's dialect, as Google's own clients write and read it.

mod parts;
mod request;
mod schema;
mod stream;
mod whole;

pub use request::{read, shows_thoughts};
pub use stream::Stream;
pub use whole::Whole;
