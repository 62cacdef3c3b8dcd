//! Delivering the upstream response to the client, whole or streamed.

pub(crate) mod chunk_coalescer;
pub mod client_response;
pub(crate) mod client_rewriter;
pub(crate) mod delivery;
pub(crate) mod gunzip;
pub(crate) mod limit_headers;
pub(crate) mod mask_frames;
pub(crate) mod mask_secrets;
pub(crate) mod normalise;
pub(crate) mod offload;
pub(crate) mod partial_event;
pub(crate) mod pretty_print;
pub(crate) mod response_meter;
pub mod response_stream;
