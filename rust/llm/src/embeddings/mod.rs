//! Embeddings in a canonical form.

pub mod embedding_formats;
pub(crate) mod request;
