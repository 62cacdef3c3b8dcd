//! Multipart forms, read as they pass.

pub mod batch_lines;
pub mod form;
pub mod form_models;
pub mod upload;
