//! Mock provider and load client. The server imitates the providers' wire formats and all known faults.

mod alarm;
mod behaviour;
mod clock;
mod connection;
mod faults;
mod framing;
mod gzip;
mod ledger;
pub mod load;
mod plans;
mod request;
mod response;
mod server;
mod session;
mod shapes;
mod steps;
mod wire;

pub use faults::Fault;
pub use ledger::{Entry, Outcome};
pub use server::{Server, ServerOptions, serve};
