//! What an edge worker knows of the connections that others opened to it, and how it ends them.

pub mod hangup;
pub mod idle;
pub mod kernel;
mod sockets;
