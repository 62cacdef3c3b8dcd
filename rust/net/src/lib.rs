//! HTTP client for providers and the control process, and the message types that it shares with the gateway: header
//! fields, request bodies, deadlines. Knows nothing of providers or of the gateway. Reading order: `client::upstream`,
//! `connect::dialer`, `client::http1`, `client::pool`, `client::response_body`.
#![forbid(unsafe_code)]

pub mod body;
mod client;
pub mod coarse_timer;
mod connect;
pub mod deadline;
pub mod error;
pub mod headers;
pub mod memory_budget;
mod settings;
pub mod uri;

pub use client::{
    incoming::{IncomingResponse, collect},
    message::{BodyFraming, BufferedResponse, OutgoingRequest, ResponseHead},
    metadata_service::MetadataService,
    response_body::{DeferredBody, ResponseBody},
    upstream::Upstream,
    websocket::{Handshake, MAX_MESSAGE_BYTES, ProviderWebSocket, UpgradeResult, UpstreamWebSocket},
};
pub use connect::{
    address::check_destination,
    origin::{BaseUrl, Origin},
    resolver::LookupFn,
    tls::trusted_roots_pem,
    unix_frames::exchange_frames,
};
pub use deadline::Deadline;
pub use error::{Error, Result, SettingError};
pub use settings::{KnownHosts, Settings};
