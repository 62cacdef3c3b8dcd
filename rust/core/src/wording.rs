//! Requests for chats, completions and vectors in the words of a provider that speaks `OpenAI`'s dialect with words of its own. Who has
//! none of its own is not looked at.

use penstock_llm::{
    dialect::{edit, form},
    operation::Operation,
    providers::Wording,
    translation::Unsaid,
};

use crate::{
    body::Body,
    call::{Call, Target},
    error::{Error, Result},
    record::Facts,
};

/// Bodies up to this size take far less than a millisecond to look through.
const SAID_HERE: usize = 128 * 1024;

/// What is said otherwise to this target; `None` where the request goes as it came.
pub fn of(call: &Call<'_>, target: &Target<'_>, model: &str) -> Option<&'static Wording> {
    let operation = call.route.operation;
    let is_worded =
        matches!(operation, Operation::ChatComplete | Operation::Complete | Operation::Embed) && !target.passthrough;
    is_worded.then(|| target.provider.wording_of(operation, model)).filter(|wording| !wording.is_same())
}

/// The body with the model or deployment that is asked, where nothing but the body says it.
pub fn named(call: &Call<'_>, target: &Target<'_>, mut body: Body) -> Body {
    let operation = call.route.operation;
    let spliced = target.provider.spliced(operation, &target.options, call.route.stated);
    let Some(model) = spliced.filter(|_| !target.passthrough) else { return body };
    match call.head.headers.text("content-type").filter(|_| operation.takes_model_in_form()) {
        Some(kind) => body.change(|bytes| form::rename(kind, bytes, &model)),
        None => body.change(|bytes| edit::set(bytes, &[], &[edit::field("model", &model.as_ref().into())]).ok()),
    }
    body
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
