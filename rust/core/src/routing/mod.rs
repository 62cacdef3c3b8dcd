//! Routing of a request to the targets of its config. Chooses the target, and the next one if a target fails.

mod attempts;
mod batch_lines;
pub(crate) mod cache_lookup;
mod condition_work;
mod continuation;
mod discarded_usage;
pub(crate) mod executor;
mod explain;
mod fallback_level;
mod first_event;
mod hedge;
pub(crate) mod hooks;
pub(crate) mod pattern_jobs;
mod replay_body;
pub(crate) mod upstream_response;

pub(crate) use crate::routing::executor::{needs_executor, open_websocket, resolve_model_prefix, route_request};
pub(crate) use batch_lines::{LineToCheck, check_batch_line};
pub(crate) use continuation::Continuation;
pub(crate) use explain::{describe_route, is_dry_run};
pub use hooks::Trial;
pub(crate) use hooks::route_question;
