//! Prompts: templates of chat and text completion requests, which callers run by name.

pub mod comparison_request;
pub mod prompt;
pub mod prompt_request;
pub mod saved;
pub mod template;
pub mod variable_names;
