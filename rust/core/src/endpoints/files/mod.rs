//! Files of providers who keep them in another way than `OpenAI`: asked for and answered in the words of `OpenAI`.

pub(crate) mod batch_results;
pub(crate) mod batch_rows;
mod bucket;
mod datasets;
pub(crate) mod multipart_upload;
pub(crate) mod store_client;
mod upload;

use std::{sync::atomic::AtomicU64, time::Duration};

use penstock_llm::files::FileStore;

use crate::endpoints::files::store_client::{FileStoreClient, FileStoreError};
use crate::{
    accounting::record::RequestLog,
    error::Result,
    gateway::Gateway,
    ingress::body::Body,
    resolve::{target::Target, target_resolver::Call},
    response::delivery::UpstreamResponse,
};

/// As many files as a list has where nobody says.
const DEFAULT_LIST_LIMIT: usize = 100;
/// What is said of many files is far less.
const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;

/// Once per target that keeps files so.
pub async fn handle_file_request(
    gateway: &Gateway,
    call: &Call<'_>,
    (target, keeper): (&Target<'_>, FileStore),
    body: Body,
    facts: &mut RequestLog,
) -> Result<UpstreamResponse> {
    let operation = call.route.operation;
    let talk = FileStoreClient { gateway, target, operation, file_store: keeper, upstream_nanos: AtomicU64::new(0) };
    let answered = match keeper {
        FileStore::Bucket(bucket) => bucket::handle_request(&talk, (call, bucket), body, facts).await,
        FileStore::Datasets(kind) => datasets::handle_request(&talk, (call, kind), body, facts).await,
    };
    facts.upstream_latency = Some(Duration::from_nanos(talk.upstream_nanos.into_inner()));
    match answered {
        Ok(served) => Ok(served),
        Err(FileStoreError::Gateway(error)) => Err(error),
        Err(FileStoreError::Upstream(served)) => Ok(*served),
    }
}

/// A value in the query of a request for a list.
fn query_param<'c>(call: &'c Call<'_>, wanted: &str) -> Option<&'c str> {
    let mut pairs = call.head.query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, value)| *name == wanted && !value.is_empty()).map(|(_, value)| value)
}

/// How many files a list is to have.
fn parse_limit(talk: &FileStoreClient<'_>, call: &Call<'_>, most: usize) -> Result<usize> {
    match query_param(call, "limit").map(str::parse::<usize>) {
        None => Ok(DEFAULT_LIST_LIMIT),
        Some(Ok(limit)) if limit > 0 => Ok(limit.min(most)),
        Some(_) => Err(talk.untranslatable_error("limit", "must be a whole number above 0")),
    }
}
