//! Bedrock's dialect, as Amazon's own clients write and read it: conversations, and the bodies of single vendors.

pub mod counted;
pub mod invoke;
mod request;
mod seals;
mod stream;
mod usage;
mod whole;

pub use request::read;
pub use stream::Stream;
pub use usage::usage;
pub use whole::Whole;
