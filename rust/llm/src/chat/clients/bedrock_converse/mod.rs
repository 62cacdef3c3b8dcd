//! Bedrock's client formats, as the AWS SDKs use them: Converse, and `InvokeModel` bodies of single vendors.

pub mod count_tokens;
pub mod invoke;
mod request;
pub(crate) mod response;
pub(crate) mod signature_blocks;
mod stream;
mod usage;

pub use crate::chat::clients::bedrock_converse::response::ResponseBuilder;
pub use request::parse_request;
pub use stream::StreamWriter;
pub use usage::encode_usage;
