//! Cancels batches at providers that delete a batch instead.

use penstock_llm::translation::Translation;
use penstock_net::body::Body;

use crate::{
    accounting::record::RequestLog,
    error::Result,
    gateway_state::GatewayState,
    ingress::message::RequestHead,
    request::{
        send::{ResponseHandling, send_to_target},
        translate,
    },
    resolve::{target::Target, target_resolver::ClientRequest},
    response::delivery::UpstreamResponse,
};

/// Cancels a batch at a provider that deletes it. Reads the batch first, because its state cannot be read afterwards.
pub(crate) async fn delete_batch(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    translation: Translation,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    let [status_head, delete_head] =
        ["GET", "DELETE"].map(|method| RequestHead { method: method.into(), ..client_request.head.clone() });
    let (mut batch, mut deadline) = send_to_target(
        state,
        &translate::job_status_request(client_request, &status_head),
        target,
        Body::empty(),
        ResponseHandling::Translate(&translation),
        log,
    )
    .await?;
    if batch.head.status < 300 {
        let delete_call = ClientRequest::new(client_request.route, &delete_head, client_request.control);
        let (deleted, _) = deadline
            .enforce(send_to_target(
                state,
                &delete_call,
                target,
                Body::empty(),
                ResponseHandling::Translate(&translation),
                log,
            ))
            .await?;
        batch = if deleted.head.status < 300 { batch } else { deleted };
    }
    let response = translate::translate_response(client_request, translation, batch, &mut deadline, log).await?;
    Ok(UpstreamResponse::new(response, client_request.api_format, deadline))
}
