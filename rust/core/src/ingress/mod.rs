//! Parsing of a client request: base path, route, headers, body, trace context.

pub mod base_path;
pub mod client_sdk;
pub mod control_headers;
pub mod head_validation;
pub mod lenient_path;
pub mod message;
pub mod route;
pub mod trace_context;

use message::RequestHead;
use penstock_net::body::Body;

/// Request as received from the client.
#[derive(Debug)]
pub struct Request {
    pub head: RequestHead,
    pub body: Body,
}
