//! Guardrails: hooks that check, change or deny requests before they are sent and responses before they are delivered.
//! A hook has checks; a check examines texts or the request itself.

pub mod check;
pub mod checks;
pub mod hook;
pub mod host_access;
pub mod inline_image;
pub mod javascript_pattern;
pub mod results;
pub mod saved;
pub mod text_scope;
pub mod window;
