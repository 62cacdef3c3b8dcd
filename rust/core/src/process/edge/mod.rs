//! Client connections of an edge worker. Inspects the state of accepted connections and closes them.

pub mod disconnect;
pub mod idle_connections;
pub(crate) mod process_sockets;
pub mod sock_diag;
