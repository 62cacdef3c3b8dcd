//! Way from an endpoint to the pipeline, which admits a request and sends it to a provider. The pipeline is in a higher
//! layer, so endpoints get it as a function.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use penstock_net::body::Body;

use crate::{
    error::Error,
    gateway_state::GatewayState,
    ingress::{Request, message::RequestHead},
    response::client_response::ClientResponse,
    state::snapshot::Snapshot,
};

/// Handles a request that goes to a provider. If there is an error, the request is rejected with it and recorded.
type HandleProviderRequest =
    fn(Arc<GatewayState>, Arc<Snapshot>, Request, Option<Error>) -> BoxFuture<'static, ClientResponse>;

/// The pipeline, with the state and the snapshot of the client's request.
#[derive(Clone)]
pub(crate) struct ProviderPipeline {
    pub state: Arc<GatewayState>,
    pub snapshot: Arc<Snapshot>,
    pub handle: HandleProviderRequest,
}

impl ProviderPipeline {
    /// Admits a request, sends it to a provider and returns the response.
    pub async fn send(&self, head: RequestHead, body: Body) -> ClientResponse {
        let request = Request { head, body };
        (self.handle)(Arc::clone(&self.state), Arc::clone(&self.snapshot), request, None).await
    }

    /// Rejects a request with an error and records it.
    pub async fn reject(&self, head: RequestHead, error: Error) -> ClientResponse {
        let request = Request { head, body: Body::empty() };
        (self.handle)(Arc::clone(&self.state), Arc::clone(&self.snapshot), request, Some(error)).await
    }
}
