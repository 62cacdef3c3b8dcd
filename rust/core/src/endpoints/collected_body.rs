//! Body of a request that is read before its endpoint is known.

use bytes::Bytes;
use penstock_net::{body::Body, memory_budget::MemoryPermit};

use crate::{error::Result, gateway_state::GatewayState};

/// Collects the body and returns it with its memory permit. A body that arrived complete is not charged to the memory
/// budget yet, so it has no permit.
pub(crate) async fn collect_body(state: &GatewayState, body: Body) -> Result<(Bytes, Option<MemoryPermit>)> {
    let body = match body.with_limits(state.body_limits)? {
        body @ Body::Complete(_) => body,
        body @ Body::Streamed(..) => body.with_memory_budget(&state.shared.body_memory)?,
    };
    Ok(body.collect_with_permit().await?)
}
