//! What a request says: route, headers, body, trace context.

pub mod body;
pub mod headers;
pub mod route;
pub mod trace_context;
