//! What a request says: route, headers, body, trace context.

pub mod body;
pub mod control_headers;
pub mod head_validation;
pub mod headers;
pub mod route;
pub mod trace_context;

use body::Body;
use headers::RequestHead;

/// Request as received from the client.
#[derive(Debug)]
pub struct Request {
    pub head: RequestHead,
    pub body: Body,
}
