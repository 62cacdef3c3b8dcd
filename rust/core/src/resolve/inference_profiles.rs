//! Models whose names do not say whose they are: their provider is asked once, and how they are asked follows from what it says.

use std::{pin::pin, time::Duration};

use penstock_llm::{
    catalog::{BEHIND, Nameless},
    operation::Operation,
};

use crate::{
    accounting::record::Facts,
    credentials::Issued,
    error::Result,
    gateway::Gateway,
    request::internal_request::Question,
    resolve::target::Target,
    upstream::{self, Base},
};

/// So long it is known; and so long nobody asks again who was not told.
const LIFE: Duration = Duration::from_hours(1);
const PAUSE: Duration = Duration::from_mins(5);
/// Longest wait for the answer. The request goes on without.
const PATIENCE: Duration = Duration::from_secs(5);
const MOST: usize = 256 * 1024;

/// Learns it and lets the target know, if there is something to learn. Who is not told goes on as if there were nothing.
pub async fn learn(
    gateway: &Gateway,
    operation: Operation,
    target: &mut Target<'_>,
    nameless: Nameless,
    facts: &mut Facts,
) {
    if operation == Operation::Proxy {
        return;
    }
    let base = base_of(target, operation, &nameless);
    let own = std::mem::replace(&mut target.base, base);
    let name = find(gateway, target, &nameless).await;
    target.base = own;
    if let Some(name) = name {
        target.options.put(BEHIND, name.clone());
        facts.paid.behind = Some(name);
    }
}

async fn find(gateway: &Gateway, target: &Target<'_>, nameless: &Nameless) -> Option<String> {
    let Target { credential, authorization, caller, options, provider, base, .. } = target;
    let own = ["aws_access_key_id", "aws_role_arn"].map(|key| options.get(key).map(ToOwned::to_owned));
    let workspace = caller.key.map(|key| (key.id.clone(), key.workspace.clone()));
    let whose = ((provider.slug(), base.origin.clone(), nameless.path.clone()), (own, workspace));
    let whose = (whose, credential.as_deref().map(ToOwned::to_owned), *authorization);
    let asking = gateway.shared.wallet.find(whose, || async {
        let asked = tokio::time::timeout(PATIENCE.min(target.timeout), ask(gateway, target, nameless));
        Ok(match asked.await {
            Ok(Ok(Some(name))) => (Issued::Name(name), LIFE),
            _ => (Issued::Name(String::new()), PAUSE),
        })
    });
    match &*asking.await.ok()? {
        Issued::Name(name) if !name.is_empty() => Some(name.clone()),
        _ => None,
    }
}

async fn ask(gateway: &Gateway, target: &Target<'_>, nameless: &Nameless) -> Result<Option<String>> {
    let outgoing = Question::new("GET", &nameless.path).outgoing(gateway, target, Operation::Proxy).await?;
    let sending = pin!(gateway.upstream.send(&target.base.origin, outgoing));
    let mut incoming = sending.await?;
    let answer = upstream::collect(&mut incoming.body, MOST).await?;
    Ok(answer.filter(|_| incoming.head.status < 300).and_then(|answer| (nameless.read)(&answer)))
}

/// Where that is asked: beside who answers requests, or where both are.
fn base_of(target: &Target<'_>, operation: Operation, nameless: &Nameless) -> Base {
    let usual = target.provider.base(operation, &target.options).ok().flatten();
    let is_usual = usual.and_then(|url| Base::parse(&url).ok()).is_some_and(|usual| usual == target.base);
    let own = is_usual.then(|| Base::parse(&nameless.base).ok()).flatten();
    own.unwrap_or_else(|| target.base.clone())
}
