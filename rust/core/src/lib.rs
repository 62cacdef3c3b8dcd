//! What happens to a request between arriving and being answered. Reading order: `gateway`, `call`, `rendering`, `upstream`, `answer`, `record`.
#![forbid(unsafe_code)]

pub mod answer;
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
pub mod gateway;
pub mod grace;
pub mod headers;
mod held;
mod inline;
pub mod jwt;
pub mod masking;
pub mod metadata;
pub mod metrics;
pub mod models;
pub mod outbox;
pub mod packed;
pub mod record;
pub mod rendering;
pub mod route;
pub mod routing;
pub mod secret;
pub mod settings;
pub mod shared;
pub mod snapshot;
pub mod trace;
mod translation;
pub mod upstream;
