//! Model list of a provider with another API format. Fetches all pages and translates them into one list.

use bytes::Bytes;
use penstock_llm::{
    operation::Operation,
    translation::{self, Translation},
};
use penstock_net::{Deadline, IncomingResponse, ResponseBody, body::Body};

use crate::{
    accounting::record::RequestLog,
    error::Result,
    gateway_state::GatewayState,
    request::{
        send::{ResponseHandling, send_to_target},
        translate,
    },
    resolve::{target::Target, target_resolver::ClientRequest},
    response::{
        delivery::{self, UpstreamResponse},
        normalise::MAX_LIST_BYTES,
        offload::{run_offloaded, with_content_type},
    },
};

/// Maximum number of pages, in case a list never ends.
const MAX_PAGES: usize = 50;

/// Returns the complete list in the client's format. If a page fails, returns its error as the response.
pub async fn fetch_model_list(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    mut translation: Translation,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    let (mut pages, mut remaining): (Vec<Bytes>, _) = (Vec::new(), MAX_LIST_BYTES);
    let mut first: Option<Deadline> = None;
    loop {
        let request = send_to_target(
            state,
            client_request,
            target,
            Body::empty(),
            ResponseHandling::Translate(&translation),
            log,
        );
        // All pages share the deadline of one response, because they are one response to the client.
        let (incoming, mut deadline) = match first {
            Some(mut deadline) => (deadline.enforce(request).await?.0, deadline),
            None => request.await?,
        };
        if translation.is_passthrough()
            || incoming.head.status != 200
            || !delivery::is_uncompressed(&incoming.head.headers)
        {
            let incoming =
                translate::translate_response(client_request, translation, incoming, &mut deadline, log).await?;
            return Ok(UpstreamResponse::new(incoming, client_request.api_format, deadline));
        }
        let IncomingResponse { mut head, mut body } = incoming;
        let read = deadline.enforce(penstock_net::collect(&mut body, remaining)).await?;
        let read = read.ok_or_else(|| translate::unreadable_response_error("the model list is too large"))?;
        if let Some(status) = translation::hidden_error_status(Operation::Models, &read) {
            head.status = status;
            let failure = IncomingResponse { head, body: ResponseBody::from_bytes(read) };
            let failure =
                translate::translate_response(client_request, translation, failure, &mut deadline, log).await?;
            return Ok(UpstreamResponse::new(failure, client_request.api_format, deadline));
        }
        remaining = remaining.saturating_sub(read.len());
        let (page, has_next_page);
        (translation, page, has_next_page) = run_offloaded(read.len(), move || {
            let has_next_page = translation.advance_page(&read);
            (translation, read, has_next_page)
        })
        .await?;
        pages.push(page);
        if has_next_page && pages.len() == MAX_PAGES {
            return Err(translate::unreadable_response_error("the model list has too many pages"));
        }
        if !has_next_page {
            let merged =
                run_offloaded(MAX_LIST_BYTES - remaining, move || translation.merge_model_pages(&pages)).await?;
            let merged = merged.map_err(|broken| translate::unreadable_response_error(&broken.0))?;
            head.headers = with_content_type(head.headers, b"application/json");
            let incoming = IncomingResponse { head, body: ResponseBody::from_bytes(merged.into()) };
            return Ok(UpstreamResponse::new(incoming, client_request.api_format, deadline));
        }
        first = Some(deadline);
    }
}
