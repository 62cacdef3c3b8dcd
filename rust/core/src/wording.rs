//! Requests for chats and completions in the words of a provider that speaks `OpenAI`'s dialect with words of its own. Who has
//! none of its own is not looked at.

use penstock_llm::{operation::Operation, providers::Wording, translation::Unsaid};

use crate::{
    body::Body,
    call::{Call, Target},
    error::{Error, Result},
    record::Facts,
};

/// Bodies up to this size take far less than a millisecond to look through.
const SAID_HERE: usize = 128 * 1024;

/// What is said otherwise to this target; `None` where the request goes as it came.
pub fn of(call: &Call<'_>, target: &Target<'_>) -> Option<&'static Wording> {
    let operation = call.route.operation;
    let is_worded = matches!(operation, Operation::ChatComplete | Operation::Complete) && !target.passthrough;
    is_worded.then(|| target.provider.wording(operation)).filter(|wording| !wording.is_same())
}

/// The body in these words; what it says no longer is named to the caller.
pub async fn put(wording: &'static Wording, body: Body, facts: &mut Facts) -> Result<Body> {
    let Body::Whole(bytes) = &body else { return Ok(body) };
    let told = if bytes.len() > SAID_HERE {
        let bytes = bytes.clone();
        // Saying neither panics nor is cancelled, unless the process ends.
        tokio::task::spawn_blocking(move || wording.say(&bytes)).await.map_err(|_| Error::Draining)?
    } else {
        wording.say(bytes)
    };
    let Some((told, lost)) = told else { return Ok(body) };
    if !lost.is_empty() {
        (facts.lost, facts.unsaid) = (lost, Some(Unsaid::default()));
    }
    Ok(Body::Whole(told.into()))
}
