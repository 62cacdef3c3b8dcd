//! Provider APIs: operations, API formats, the provider catalog, files, streams, translation, usage and tokens. All of
//! it is pure and does no I/O.

pub mod api_format;
pub mod avro;
pub mod catalog;
pub mod chat;
pub(crate) mod citations;
pub mod embeddings;
pub(crate) mod error_details;
pub(crate) mod error_response;
pub(crate) mod errors;
pub(crate) mod fields;
pub mod files;
pub mod http_form;
pub mod images;
pub mod jobs;
pub mod json;
pub mod model_list;
pub mod operation;
pub mod provider_format;
pub(crate) mod reports;
pub mod rerank;
pub mod stream;
pub mod texts;
pub mod timestamp;
pub mod tokens;
pub mod translation;
pub mod translation_input;
pub mod usage;
pub mod xml;
