//! Opens connections: which hosts may be called, name resolution, proxies, TLS.

pub(crate) mod address;
pub mod connection;
pub mod dialer;
pub mod origin;
mod proxy;
pub mod resolver;
pub mod tls;
pub mod unix_frames;
