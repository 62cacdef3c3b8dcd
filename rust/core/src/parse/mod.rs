//! Parsing of JSON documents with paths and of regular expressions, for configs and features.

pub mod bounded_regex;
pub mod document_reader;
pub(crate) mod json_fault;
pub(crate) mod similar_name;
