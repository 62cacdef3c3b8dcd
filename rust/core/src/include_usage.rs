//! Usage that a stream says only when asked is asked for, so that no stream goes uncounted; who did not ask is not told.

use penstock_llm::stream::include_usage;

use crate::{
    body::Body,
    call::{Call, Target, Telling},
    record::Facts,
};

/// The body as it is sent to who is asked in the caller's own dialect.
pub fn ask(call: &Call<'_>, target: &Target<'_>, body: Body, facts: &mut Facts) -> Body {
    let Body::Whole(bytes) = &body else { return body };
    if !facts.stream
        || target.passthrough
        || target.telling == Telling::AsWritten
        || !says_usage_when_asked(call, target)
    {
        return body;
    }
    let Some(asked) = include_usage::ask(bytes) else { return body };
    facts.hides_usage = true;
    Body::Whole(asked.into())
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
