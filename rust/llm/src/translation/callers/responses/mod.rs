//! Responses, `OpenAI`'s newer dialect, as far as it can be said to who does not speak it.

mod request;
mod stream;
mod whole;

pub use request::read;
pub use stream::Stream;
pub use whole::Whole;
