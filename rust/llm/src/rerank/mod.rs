//! Reranking in a canonical form.

pub(crate) mod request;
pub mod rerank_formats;
