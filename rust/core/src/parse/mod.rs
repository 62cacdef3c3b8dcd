//! Parsing of JSON documents with paths and of regular expressions, for configs and features.

pub mod document_reader;
pub(crate) mod json_fault;
pub mod pattern;
pub(crate) mod similar_name;
