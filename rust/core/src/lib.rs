//! What happens to a request between arriving and being answered. Reading order: `gateway`, `call`, `rendering`, `upstream`, `answer`, `record`.
#![forbid(unsafe_code)]

pub mod answer;
pub mod batches;
pub mod body;
pub mod call;
pub mod caller;
pub mod config;
pub mod control;
pub mod counting;
pub mod credentials;
pub mod deadline;
mod delivery;
pub mod edge;
pub mod error;
pub mod features;
mod files;
pub mod gateway;
pub mod headers;
mod include_usage;
mod inline;
pub mod jwt;
pub mod metrics;
pub mod models;
mod place;
pub mod prices;
mod profiles;
pub mod realtime;
pub mod record;
pub mod rendering;
pub mod route;
pub mod routing;
pub mod secret;
pub mod settings;
pub mod shared;
pub mod snapshot;
pub mod target;
pub mod trace;
mod translation;
pub mod turns;
pub mod upstream;
mod wording;

pub use penstock_llm::providers::catalogue;
