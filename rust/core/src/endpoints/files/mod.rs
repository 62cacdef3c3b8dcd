//! File API for providers whose file storage differs from `OpenAI`'s. Clients use `OpenAI`'s API; requests and
//! responses are translated.

pub(crate) mod batch_results;
pub(crate) mod batch_rows;
mod bucket;
mod datasets;
pub(crate) mod multipart_upload;
pub(crate) mod store_client;
mod upload;

use std::{sync::atomic::AtomicU64, time::Duration};

use penstock_llm::files::FileStore;
use penstock_net::body::Body;

use crate::{
    accounting::record::RequestLog,
    endpoints::files::store_client::{FileStoreClient, FileStoreError},
    error::Result,
    gateway_state::GatewayState,
    resolve::{target::Target, target_resolver::ClientRequest},
    response::delivery::UpstreamResponse,
};

/// Default number of files in a list.
const DEFAULT_LIST_LIMIT: usize = 100;
/// Maximum size of a provider's list response; real ones are far smaller.
const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;

/// Handles a file request for one target that stores files in a bucket or in datasets.
pub async fn handle_file_request(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    file_store: FileStore,
    body: Body,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    let operation = client_request.route.operation;
    let client = FileStoreClient { state, target, operation, file_store, upstream_nanos: AtomicU64::new(0) };
    let outcome = match file_store {
        FileStore::Bucket(bucket) => bucket::handle_request(&client, client_request, bucket, body, log).await,
        FileStore::Datasets(kind) => datasets::handle_request(&client, client_request, kind, body, log).await,
    };
    log.upstream_latency = Some(Duration::from_nanos(client.upstream_nanos.into_inner()));
    match outcome {
        Ok(response) => Ok(response),
        Err(FileStoreError::Gateway(error)) => Err(error),
        Err(FileStoreError::Upstream(response)) => Ok(*response),
    }
}

/// Returns a non-empty query parameter of a list request.
fn query_param<'c>(client_request: &'c ClientRequest<'_>, searched_name: &str) -> Option<&'c str> {
    let mut pairs = client_request.head.query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, value)| *name == searched_name && !value.is_empty()).map(|(_, value)| value)
}

/// Parses how many files a list may have, capped at `max_count`.
fn parse_limit(client: &FileStoreClient<'_>, client_request: &ClientRequest<'_>, max_count: usize) -> Result<usize> {
    match query_param(client_request, "limit").map(str::parse::<usize>) {
        None => Ok(DEFAULT_LIST_LIMIT),
        Some(Ok(limit)) if limit > 0 => Ok(limit.min(max_count)),
        Some(_) => Err(client.untranslatable_error("limit", "must be a whole number above 0")),
    }
}
