//! What an edge worker knows of the connections that others opened to it.

pub mod idle;
pub mod kernel;
