//! Chat in a canonical form: read from any client format, written to any provider format, and back.

pub(crate) mod block_citations;
pub(crate) mod call_ids;
pub(crate) mod claude_version;
pub(crate) mod client_tools;
pub(crate) mod clients;
pub(crate) mod event;
pub(crate) mod field_scope;
pub(crate) mod file_types;
pub(crate) mod finish_reason;
pub(crate) mod foreign_history;
pub(crate) mod generated_text;
pub mod providers;
pub(crate) mod request;
pub(crate) mod response_context;
pub(crate) mod response_writer;
pub(crate) mod sequential_tool_calls;
pub(crate) mod thinking_param;
pub(crate) mod tool_call_signatures;
pub(crate) mod tool_names;
pub(crate) mod tool_schema;
pub(crate) mod transcoder;
pub(crate) mod unsigned_thinking;
