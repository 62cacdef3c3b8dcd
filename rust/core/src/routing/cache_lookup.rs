//! Answers that serve again: what is asked, whether an answer to it is kept, and how a new one comes to be.

use std::{fmt, sync::Arc, time::Duration};

use penstock_llm::operation::Operation;

use super::decision::CacheStatus;
use crate::routing::executor::Walk;
use crate::{
    config::Node,
    features::cache::{Key, Partition, is_incidental},
    ingress::body::Body,
    resolve::target::Target,
    response::delivery::Served,
    state::shared::response_cache::Filling,
    upstream::Origin,
};

/// What is asked of a target that may have been asked before.
pub struct Question {
    key: Key,
    age: Duration,
}

impl Question {
    /// `None` where its answer is not to be kept.
    pub fn of(walk: &Walk<'_>, node: &Node, target: &Target<'_>, body: &Body) -> Option<Self> {
        let (call, caller) = (walk.call, walk.choice.caller);
        let age = node.features.cache.age(call.route.operation, &call.head.method, call.route.path)?;
        let (Body::Whole(bytes), Some(_)) = (body, walk.carried.json()) else { return None };
        let partition = match call.control.cache_namespace {
            Some(name) => Partition::Namespace(name),
            None => Partition::Headers(&call.head.headers, &walk.choice.settings.header_aliases),
        };
        // Whatever they call the same, callers of different tenants get nothing of each other.
        let tenant = match caller.key {
            Some(key) => key.workspace.as_deref().unwrap_or(&key.id),
            None => target.credential.as_deref().or(target.authorization).unwrap_or_default(),
        };
        let Origin::Network { host, port, .. } = &target.base.origin else { return None };
        // Another model, deployment or version may be asked by these, and none of them need be in the request.
        let options = target.options.said();
        let manner = [u8::from(target.strict), u8::from(target.passthrough)];
        let fields: String = target.fields.iter().map(|(name, value)| [name, ": ", value, "\n"].concat()).collect();
        let said = walk.said_aside(target);
        let parts = [
            tenant.as_bytes(),
            target.provider.slug().as_bytes(),
            host.as_bytes(),
            &port.to_le_bytes(),
            target.base.prefix.as_bytes(),
            call.head.path.as_bytes(),
            call.head.query.as_bytes(),
            options.as_bytes(),
            &manner,
            fields.as_bytes(),
            &said,
            &age.as_secs().to_le_bytes(),
            bytes,
        ];
        Some(Self { key: Key::of(partition, &parts), age })
    }

    /// Whether an answer would serve.
    pub async fn status(&self, walk: &Walk<'_>) -> CacheStatus {
        match walk.gateway.shared.answers.find(&self.key).await {
            _ if refreshes(walk) => CacheStatus::Refresh,
            Some(_) => CacheStatus::Hit,
            None => CacheStatus::Miss,
        }
    }

    /// The answer that is kept, where there is one and no new one is asked for.
    pub async fn kept(&self, walk: &mut Walk<'_>, target: &Target<'_>) -> Option<Served> {
        if refreshes(walk) {
            walk.set_cache(CacheStatus::Refresh);
            return None;
        }
        let Some(kept) = walk.gateway.shared.answers.find(&self.key).await else {
            walk.set_cache(CacheStatus::Miss);
            return None;
        };
        walk.set_cache(CacheStatus::Hit);
        Some(Served::kept(kept, walk.call, target, &walk.gateway.grace))
    }

    /// A good answer is kept once it is complete.
    pub fn keep(self, walk: &mut Walk<'_>, served: &Served) {
        let headers = served.headers();
        let is_plain = headers.text("content-encoding").is_none_or(|coding| coding == "identity");
        if let (200, true, Some(kind)) = (served.status(), is_plain, headers.text("content-type")) {
            let answers = Arc::clone(&walk.gateway.shared.answers);
            walk.facts.filling = Some(Box::new(Filling::new(answers, (self.key, refreshes(walk)), self.age, kind)));
        }
    }
}

impl Walk<'_> {
    /// Header fields that reach the provider and change what it answers, but say nothing of who asks.
    fn said_aside(&self, target: &Target<'_>) -> Vec<u8> {
        // What is passed on may ask so for an image, or for JSON that holds one.
        let is_passed_on = self.call.route.operation == Operation::Proxy;
        let tells = |name: &[u8]| match name {
            b"accept" | b"accept-language" => is_passed_on || target.forward.contains(name),
            name => target.forward.contains(name) && !is_incidental(name),
        };
        let said = self.call.head.headers.iter().filter(|(name, _)| tells(name));
        said.flat_map(|(name, value)| [name, b": ", value, b"\n"].concat()).collect()
    }
}

/// Whether a new answer is asked for.
fn refreshes(walk: &Walk<'_>) -> bool {
    walk.call.control.cache_force_refresh.is_some_and(|value| value != "false")
}

impl fmt::Display for Question {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(formatter)
    }
}
