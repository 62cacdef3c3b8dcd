//! Completions, `OpenAI`'s oldest dialect: a prompt in, its continuation out. Who talks is asked it as what a user says.

mod request;
mod stream;
mod whole;

pub use request::read;
pub use stream::Stream;
pub use whole::Whole;
