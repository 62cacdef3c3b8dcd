//! Parsers of multipart forms, which read a form while it is forwarded.

pub mod batch_lines;
pub mod form;
pub mod form_models;
pub mod upload;
