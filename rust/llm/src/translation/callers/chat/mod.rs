//! Chat completions, `OpenAI`'s dialect, with the few fields more that a gateway to all providers needs.

mod request;
mod stream;
mod usage;
mod whole;

pub use request::read;
pub use stream::Stream;
pub use usage::usage;
pub use whole::Whole;
