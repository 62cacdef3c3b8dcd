//! How many tokens a request has, counted here where its provider cannot be asked.

use bytes::Bytes;
use penstock_llm::{
    operation::Operation,
    tokens,
    translation::{self, Lost, Refusal, Unsaid},
};

use crate::{
    accounting::record::Facts,
    error::{Error, Result},
    ingress::body::Body,
    process::coarse_timer::Grace,
    resolve::{target::Target, target_resolver::Call},
    response::delivery::Served,
    upstream::Incoming,
};

/// What a provider does not offer is refused, but for what is done for it here.
pub fn refuse_unserved(operation: Operation, target: &Target<'_>) -> Result<()> {
    if target.provider.serves(operation) || operation.counts_tokens() {
        return Ok(());
    }
    Err(Error::Unsupported { operation: operation.id(), provider: target.provider.slug() })
}

/// Whether nobody else can say it. For models that a provider counts in another dialect there is a wire.
pub fn is_ours(call: &Call<'_>, target: &Target<'_>) -> bool {
    let operation = call.route.operation;
    operation.counts_tokens() && !target.passthrough && !target.provider.offers_itself(operation)
}

/// The request, where it may be refused as one to count and answered all the same: not every model counts.
pub fn kept(call: &Call<'_>, target: &Target<'_>, body: &Body) -> Option<Bytes> {
    let may_be_refused = call.route.operation.counts_tokens() && !target.provider.counts_with_every_model();
    match body {
        Body::Whole(body) if may_be_refused && !target.passthrough => Some(body.clone()),
        _ => None,
    }
}

/// Whether that happened.
pub fn is_refused(incoming: &Incoming) -> bool {
    incoming.head.status == 400
}

/// Counted here, which is named: its provider did not count it.
pub async fn estimate(
    call: &Call<'_>,
    body: Bytes,
    refused: Served,
    (facts, grace): (&mut Facts, &Grace),
) -> Result<Served> {
    refused.discard().await;
    let served = answer(call, Body::Whole(body), &facts.model, grace).await?;
    if facts.unsaid.is_none() {
        (facts.lost, facts.unsaid) = (Lost::default(), Some(Unsaid::default()));
    }
    facts.lost.add(call.route.operation.id());
    Ok(served)
}

/// Roughly, in the vocabulary of the model where that is known.
pub async fn answer(call: &Call<'_>, body: Body, model: &str, grace: &Grace) -> Result<Served> {
    let body = body.collect().await?;
    let (dialect, encoding) = (call.dialect(), tokens::encoding_for(model));
    // The first of an encoding unpacks its vocabulary. Counting neither panics nor is cancelled, unless the process ends.
    let counting = tokio::task::spawn_blocking(move || tokens::count_request(dialect, encoding, &body));
    let count = counting.await.map_err(|_| Error::Draining)?;
    let count = count.map_err(|Refusal { path, message }| Error::Uncountable { path, message })?;
    let told = translation::counted(call.route.operation, count as u64);
    Ok(Served::ours(told.into(), dialect, grace))
}
