//! What an edge worker knows of the connections that others opened to it, and how it ends them.

pub mod disconnect;
pub mod idle_connections;
pub(crate) mod process_sockets;
pub mod sock_diag;
