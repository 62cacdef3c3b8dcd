//! Files of providers who keep them in another way than `OpenAI`: asked for and answered in the words of `OpenAI`.

pub(crate) mod batch_results;
pub(crate) mod batch_rows;
mod bucket;
mod datasets;
pub(crate) mod multipart_upload;
pub(crate) mod store_client;
mod upload;

use std::{sync::atomic::AtomicU64, time::Duration};

use penstock_llm::files::Keeper;

use crate::endpoints::files::store_client::{Refused, Talk};
use crate::{
    accounting::record::Facts,
    error::Result,
    gateway::Gateway,
    ingress::body::Body,
    resolve::{target::Target, target_resolver::Call},
    response::delivery::Served,
};

/// As many files as a list has where nobody says.
const FEW: usize = 100;
/// What is said of many files is far less.
const LARGEST_LIST: usize = 4 * 1024 * 1024;

/// Once per target that keeps files so.
pub async fn answer(
    gateway: &Gateway,
    call: &Call<'_>,
    (target, keeper): (&Target<'_>, Keeper),
    body: Body,
    facts: &mut Facts,
) -> Result<Served> {
    let operation = call.route.operation;
    let talk = Talk { gateway, target, operation, keeper, waited: AtomicU64::new(0) };
    let answered = match keeper {
        Keeper::Bucket(bucket) => bucket::answer(&talk, (call, bucket), body, facts).await,
        Keeper::Datasets(kind) => datasets::answer(&talk, (call, kind), body, facts).await,
    };
    facts.upstream = Some(Duration::from_nanos(talk.waited.into_inner()));
    match answered {
        Ok(served) => Ok(served),
        Err(Refused::Here(error)) => Err(error),
        Err(Refused::There(served)) => Ok(*served),
    }
}

/// A value in the query of a request for a list.
fn asked<'c>(call: &'c Call<'_>, wanted: &str) -> Option<&'c str> {
    let mut pairs = call.head.query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, value)| *name == wanted && !value.is_empty()).map(|(_, value)| value)
}

/// How many files a list is to have.
fn limit(talk: &Talk<'_>, call: &Call<'_>, most: usize) -> Result<usize> {
    match asked(call, "limit").map(str::parse::<usize>) {
        None => Ok(FEW),
        Some(Ok(limit)) if limit > 0 => Ok(limit.min(most)),
        Some(_) => Err(talk.unsaid("limit", "must be a whole number above 0")),
    }
}
