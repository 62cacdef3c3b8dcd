//! Mock provider and load client. The server imitates the providers' wire formats and all known faults.

mod behaviour;
mod client_socket;
mod clock;
mod connection;
mod faults;
mod framing;
mod gzip;
mod ledger;
pub mod load;
mod plans;
mod precise_timer;
mod request;
mod response;
mod server;
mod session;
mod shapes;
mod steps;

pub use faults::Fault;
pub use ledger::{Entry, Outcome};
pub use server::{Server, ServerOptions, serve};
