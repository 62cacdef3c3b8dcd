//! Prompts: templates of chat and text completion requests, which callers run by name.

pub mod comparison_request;
mod compressed_json;
mod messages;
pub mod prompt;
pub mod prompt_request;
pub mod saved;
pub mod template;
mod unknown_variables;
pub mod variable_names;
