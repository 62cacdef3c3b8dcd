//! Completions, `OpenAI`'s oldest dialect: a prompt in, its continuation out. Who talks is asked it as what a user says.

mod request;
pub(crate) mod response;
mod stream;

pub use crate::chat::clients::openai_completions::response::ResponseBuilder;
pub use request::parse_request;
pub use stream::StreamWriter;
