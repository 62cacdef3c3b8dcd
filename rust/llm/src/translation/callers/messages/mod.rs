//! Messages, Anthropic's dialect.

mod request;
mod stream;
mod usage;
mod whole;

pub use request::read;
pub use stream::Stream;
pub use usage::usage;
pub use whole::Whole;
