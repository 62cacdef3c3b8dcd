//! JSON in bytes: scanning, editing and splitting without building a tree.

mod container_stack;
pub mod edit;
pub(crate) mod keys;
pub(crate) mod lenient;
pub(crate) mod lines;
pub mod object;
pub(crate) mod peek;
pub(crate) mod scan;
pub(crate) mod string_literal;

/// Key under which a visitor receives a fraction or a long integer as text, because `serde_json` keeps all digits.
pub const NUMBER_KEY: &str = "$serde_json::private::Number";
