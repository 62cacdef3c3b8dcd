//! Parsing of JSON documents with paths and of regular expressions, for configs and features.

pub(crate) mod document_reader;
pub mod pattern;
