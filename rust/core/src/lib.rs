//! Gateway core: handles a request from its arrival to the delivered response. Reading order: `gateway`,
//! `endpoints::client_endpoint`, `resolve::target_resolver`, `endpoints::target_endpoint`, `request::send`,
//! `response::delivery`, `accounting::record`. The HTTP client is the crate `penstock-net`.
#![forbid(unsafe_code)]

pub mod accounting;
pub mod auth;
pub mod config;
pub mod credentials;
pub mod endpoints;
pub mod error;
pub mod features;
pub mod gateway;
pub mod gateway_state;
pub mod guardrails;
pub mod ingress;
mod jose;
pub mod limits;
pub mod parse;
pub mod process;
pub mod prompts;
pub mod request;
pub mod resolve;
pub mod response;
pub mod routing;
pub mod state;
pub mod strategies;

pub use penstock_llm::catalog::providers_json;
