//! Usage that a stream says only when asked is asked for, so that no stream goes uncounted; who did not ask is not told.

use penstock_llm::stream::include_usage;

use crate::{
    accounting::record::Facts,
    ingress::body::Body,
    resolve::{
        target::{Target, Telling},
        target_resolver::Call,
    },
};

/// The body as it is sent to who is asked in the caller's own dialect.
pub fn ask(call: &Call<'_>, target: &Target<'_>, body: Body, facts: &mut Facts) -> Body {
    match &body {
        Body::Whole(bytes) if is_to_be_asked(call, target, facts) => with(include_usage::ask(bytes), body, facts),
        _ => body,
    }
}

/// The same for a large body: looking through it here would make others wait.
pub async fn ask_elsewhere(call: &Call<'_>, target: &Target<'_>, body: Body, facts: &mut Facts) -> Body {
    let bytes = match &body {
        Body::Whole(bytes) if is_to_be_asked(call, target, facts) => bytes.clone(),
        _ => return body,
    };
    let asked = tokio::task::spawn_blocking(move || include_usage::ask(&bytes)).await;
    with(asked.ok().flatten(), body, facts)
}

fn with(asked: Option<Vec<u8>>, body: Body, facts: &mut Facts) -> Body {
    let Some(asked) = asked else { return body };
    facts.hides_usage = true;
    Body::Whole(asked.into())
}

fn is_to_be_asked(call: &Call<'_>, target: &Target<'_>, facts: &Facts) -> bool {
    facts.stream && !target.passthrough && target.telling != Telling::AsWritten && says_usage_when_asked(call, target)
}

fn says_usage_when_asked(call: &Call<'_>, target: &Target<'_>) -> bool {
    let version = call.route.stated.version.or_else(|| version(&call.head.query));
    include_usage::is_said_when_asked(target.provider, call.route.operation, version, &target.options)
        // What comes compressed cannot be taken apart.
        && !target.forward.contains(b"accept-encoding")
}

fn version(query: &str) -> Option<&str> {
    query.split('&').find_map(|pair| pair.strip_prefix("api-version="))
}
