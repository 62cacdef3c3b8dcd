//! Sends requests over pooled connections and reads their responses.

mod http1;
mod http2;
pub mod incoming;
pub mod message;
pub mod metadata_service;
mod pool;
pub mod response_body;
pub mod upstream;
pub mod websocket;
