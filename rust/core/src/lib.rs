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
pub mod error;
pub mod features;
mod files;
pub mod gateway;
pub mod grace;
pub mod headers;
mod held;
mod include_usage;
mod inline;
pub mod jwt;
pub mod ledger;
mod line;
pub mod lines;
pub mod masking;
pub mod metadata;
pub mod metrics;
pub mod models;
pub mod outbox;
pub mod packed;
pub mod prices;
pub mod realtime;
pub mod record;
pub mod rendering;
pub mod route;
pub mod routing;
pub mod secret;
pub mod settings;
pub mod shared;
pub mod snapshot;
mod token_count;
pub mod trace;
mod translation;
pub mod upstream;

pub use penstock_llm::providers::catalogue;
