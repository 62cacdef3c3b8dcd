//! The walk through the targets of a config until one answers.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use super::{
    Strategy,
    asked::Asked,
    carried::Carried,
    decision::{Decision, Step},
    fallback::Fallback,
    hedge::Hedge,
};
use crate::{
    body::Body,
    call::{Call, Choice, Chosen, Plan},
    config::Node,
    delivery::Served,
    error::{Error, Result},
    features::circuit_breaker::Verdict,
    gateway::Gateway,
    headers,
    record::Facts,
};

/// So much of a caller's own time is left for the answer to reach it.
const RESERVE: f64 = 0.05;

/// The way of a request whose config asks for more than one attempt at one target.
pub(crate) async fn route(
    gateway: &Gateway,
    choice: &Choice<'_>,
    plan: &Plan<'_>,
    body: Body,
    facts: &mut Facts,
) -> Result<Served> {
    let operation = choice.call.route.operation;
    let is_json = is_json(choice.call);
    // JSON is taken whole on every path: it may have to be asked about, changed or sent again.
    let body = if is_json { Body::Whole(body.limited(gateway.body_limits)?.collect().await?) } else { body };
    let body = gateway.read(choice.call, body, facts).await.map_err(|error| match (&plan.config, error) {
        // What cannot be read names nobody.
        (Chosen::None, Error::BodyInvalid { .. }) if !plan.names_provider() => Error::ProviderNeeded,
        (_, error) => error,
    })?;
    facts.metadata.check()?;
    if let (true, Body::Whole(bytes)) = (operation.is_countable(), &body) {
        facts.asked = Some(gateway.sink.counting.keep(bytes));
    }
    let carried = Carried::new(choice.call, body, is_json, facts);
    Walk::new(gateway, choice, plan, facts, carried).go().await
}

/// The way of a request whose model may say which provider is meant.
pub(crate) async fn readdress(
    gateway: &Gateway,
    choice: &Choice<'_>,
    plan: &Plan<'_>,
    body: Body,
    facts: &mut Facts,
) -> Result<Served> {
    let carried = Carried::new(choice.call, body, is_json(choice.call), facts);
    Walk::new(gateway, choice, plan, facts, carried).go().await
}

fn is_json(call: &Call<'_>) -> bool {
    call.route.operation.takes_json() || call.head.headers.get("content-type").is_some_and(headers::is_json)
}

/// The paths of the targets of a request without a body, in the order in which they are asked as long as they fail.
pub(crate) fn order(gateway: &Gateway, choice: &Choice<'_>, plan: &Plan<'_>, facts: &mut Facts) -> Result<Vec<String>> {
    let carried = Carried::new(choice.call, Body::empty(), false, facts);
    let nodes = Walk::new(gateway, choice, plan, facts, carried).order(&plan.config.root)?;
    Ok(nodes.into_iter().map(|node| node.path.to_string()).collect())
}

/// A group on the way whose targets are tried one after the other.
struct Level<'w> {
    node: &'w Node,
    fallback: &'w Fallback,
    /// Which of them are open; `None` where all are.
    open: Option<Vec<bool>>,
    /// Those before it were tried or left out.
    place: usize,
}

impl<'w> Level<'w> {
    /// The next target to try.
    fn next(&mut self) -> Option<&'w Node> {
        let found = self.found()?;
        self.place = found + 1;
        Some(&self.node.targets[found])
    }

    fn peek(&self) -> Option<&'w Node> {
        self.found().map(|place| &self.node.targets[place])
    }

    fn found(&self) -> Option<usize> {
        let is_open = |place: &usize| self.open.as_ref().is_none_or(|open| open[*place]);
        (self.place..self.node.targets.len()).find(is_open)
    }
}

/// What is tried first below a node.
enum First<'w> {
    One(&'w Node),
    /// The second too, if the first does not answer in time.
    Both((&'w Node, &'w Node), &'w Fallback, &'w Hedge),
}

/// One request on its way through its config.
pub(crate) struct Walk<'w> {
    pub gateway: &'w Gateway,
    pub choice: &'w Choice<'w>,
    pub plan: &'w Plan<'w>,
    pub call: &'w Call<'w>,
    pub facts: &'w mut Facts,
    pub carried: Carried,
    params: Vec<Option<Value>>,
    /// When the caller no longer waits.
    pub until: Option<Instant>,
    family: OnceLock<u64>,
}

pub(crate) type Going<'g, T = Result<Served>> = Pin<Box<dyn Future<Output = T> + Send + 'g>>;

impl<'w> Walk<'w> {
    pub fn new(
        gateway: &'w Gateway,
        choice: &'w Choice<'w>,
        plan: &'w Plan<'w>,
        facts: &'w mut Facts,
        carried: Carried,
    ) -> Self {
        let params = carried.pick(&plan.config.params);
        let call = choice.call;
        let until = patience(call).map(|patience| Instant::now() + patience.mul_f64(1.0 - RESERVE));
        facts.decision = Some(Box::new(Decision::new(&plan.config.root)));
        Self { gateway, choice, plan, call, facts, carried, params, until, family: OnceLock::new() }
    }

    /// The same request, on its way at the same time.
    pub fn twin<'t>(&self, facts: &'t mut Facts, carried: Carried) -> Walk<'t>
    where
        'w: 't,
    {
        let Self { gateway, choice, plan, call, until, .. } = *self;
        Walk {
            gateway,
            choice,
            plan,
            call,
            facts,
            carried,
            params: self.params.clone(),
            until,
            family: self.family.clone(),
        }
    }

    /// To whichever target answers.
    pub async fn go(&mut self) -> Result<Served> {
        let plan = self.plan;
        self.go_from(&plan.config.root).await
    }

    pub async fn go_from(&mut self, start: &'w Node) -> Result<Served> {
        let mut node = start;
        let mut levels: Vec<Level<'w>> = Vec::new();
        loop {
            let result = match self.descend(node, &mut levels) {
                Ok(First::One(target)) => self.try_target(target).await,
                Ok(First::Both(targets, fallback, hedge)) => {
                    let (result, tried) = self.race(targets, fallback, hedge).await;
                    if tried == 2 {
                        levels.last_mut().and_then(Level::next);
                    }
                    result
                }
                Err(error) => Err(error),
            };
            let Some(next) = self.after(&mut levels, &result) else { return result };
            if let Ok(served) = result {
                // In a box: it would make every walk larger.
                Box::pin(served.discard()).await;
            }
            node = next;
        }
    }

    /// Down to what is tried first: through groups that choose one target, and those that fall from one to the next, which are
    /// levels to come back to.
    fn descend(&mut self, mut node: &'w Node, levels: &mut Vec<Level<'w>>) -> Result<First<'w>> {
        while !node.targets.is_empty() {
            let Strategy::Fallback(fallback) = &node.strategy else {
                node = self.choose(node)?;
                continue;
            };
            let mut level = self.level(node, fallback);
            let (first, second) = (level.next(), level.peek());
            levels.push(level);
            node = first.ok_or(Error::NoTarget)?;
            if let (Some(hedge), Some(second)) = (&fallback.hedge, second) {
                return Ok(First::Both((node, second), fallback, hedge));
            }
        }
        Ok(First::One(node))
    }

    /// The target to be tried after this result: the next one of the innermost group that has one and takes it for a failure.
    fn after(&mut self, levels: &mut Vec<Level<'w>>, result: &Result<Served>) -> Option<&'w Node> {
        while let Some(level) = levels.last_mut() {
            if level.fallback.has_failed(result)
                && let Some(next) = level.next()
            {
                let Some(because) = self.must_stop() else { return Some(next) };
                let at = Arc::clone(&level.node.path);
                self.note(|| Step::Stopped { at, because });
            }
            levels.pop();
        }
        None
    }

    /// The targets of a group that falls from one to the next.
    fn level(&mut self, node: &'w Node, fallback: &'w Fallback) -> Level<'w> {
        Level { node, fallback, open: self.open(node), place: 0 }
    }

    /// The one target of a group that the request goes on to.
    fn choose(&mut self, node: &'w Node) -> Result<&'w Node> {
        let (place, condition) = match &node.strategy {
            Strategy::Single | Strategy::Fallback(_) => (0, None),
            Strategy::LoadBalance(balance) => {
                let open = self.open(node);
                let is_open = |place: usize| open.as_ref().is_some_and(|open| open[place]);
                let is_open: Option<&dyn Fn(usize) -> bool> = if open.is_some() { Some(&is_open) } else { None };
                (balance.choose(&self.asked(), fastrand::f64(), is_open), None)
            }
            Strategy::Conditional(conditional) => conditional.choose(&self.asked()).ok_or(Error::NoTarget)?,
        };
        let (at, strategy) = (node.path.clone(), node.strategy.name());
        self.note(|| Step::Chose { at, strategy, target: place, condition });
        Ok(&node.targets[place])
    }

    /// Every target that would be tried, in the order in which they would be as long as they fail.
    pub fn order(&mut self, node: &'w Node) -> Result<Vec<&'w Node>> {
        if node.targets.is_empty() {
            return Ok(vec![node]);
        }
        let Strategy::Fallback(fallback) = &node.strategy else {
            let chosen = self.choose(node)?;
            return self.order(chosen);
        };
        let mut all = Vec::new();
        let mut level = self.level(node, fallback);
        while let Some(target) = level.next() {
            if let (true, Some(hedge), Some(second)) = (all.is_empty(), &fallback.hedge, level.peek()) {
                let (at, after) = (Arc::clone(&second.path), hedge.to_string());
                self.note(|| Step::WouldHedge { at, after });
            }
            all.extend(self.order(target)?);
        }
        Ok(all)
    }

    /// Why no further target may be tried, if so.
    pub fn must_stop(&self) -> Option<&'static str> {
        if !self.carried.is_there() {
            return Some("the body was sent as it came and is gone");
        }
        self.until.filter(|until| *until <= Instant::now()).map(|_| "the caller waits no longer")
    }

    /// What conditions see of the request.
    fn asked(&self) -> Asked<'_> {
        Asked { metadata: &self.facts.metadata, params: &self.params, path: &self.call.head.path }
    }

    /// Which targets of a node are open; `None` where all are, and where none is: then the breakers are of no help.
    fn open(&mut self, node: &Node) -> Option<Vec<bool>> {
        if !node.within.has_breaker {
            return None;
        }
        let mut states: Vec<bool> = Vec::new();
        for (place, target) in node.targets.iter().enumerate() {
            if !self.is_open(target) {
                states.resize(node.targets.len(), true);
                states[place] = false;
                self.gateway.sink.metrics.breaker_skips.add(1);
                let at = target.path.clone();
                self.note(|| Step::Skipped { at, breaker: Verdict::Open.name() });
            }
        }
        states.contains(&true).then_some(states)
    }

    fn is_open(&self, node: &Node) -> bool {
        if !node.targets.is_empty() {
            return node.targets.iter().any(|target| self.is_open(target));
        }
        self.verdict(node) != Some(Verdict::Open)
    }

    /// What the breaker of a target says, where it has one.
    pub fn verdict(&self, node: &Node) -> Option<Verdict> {
        let policy = node.features.circuit_breaker.policy()?;
        let shared = &self.gateway.shared;
        Some(shared.breakers.verdict(self.mark(node), policy, shared.now()))
    }

    /// What stands for a target of this config.
    pub fn mark(&self, node: &Node) -> u64 {
        self.gateway.shared.mark((self.family(), &node.path))
    }

    /// What stands for the config: for the saved one of this workspace, or for one that this caller sent.
    fn family(&self) -> u64 {
        *self.family.get_or_init(|| {
            let caller = self.choice.caller;
            let text = self.plan.slug.or(self.call.control.config);
            let key = caller.key.map(|key| &*key.id).filter(|_| self.plan.slug.is_none());
            self.gateway.shared.mark((text, caller.workspace(), key))
        })
    }

    pub fn note(&mut self, step: impl FnOnce() -> Step) {
        if let Some(decision) = &mut self.facts.decision {
            decision.add(step());
        }
    }

    pub fn decide(&mut self, change: impl FnOnce(&mut Decision)) {
        if let Some(decision) = &mut self.facts.decision {
            change(decision);
        }
    }
}

/// How long the caller's client waits, where it says so: in seconds, or a word that says nothing.
fn patience(call: &Call<'_>) -> Option<Duration> {
    let said = ["x-stainless-timeout", "x-stainless-read-timeout"].into_iter();
    let seconds = said.filter_map(|name| call.head.headers.text(name)?.trim().parse::<f64>().ok());
    let least = seconds.filter(|seconds| *seconds > 0.0).fold(f64::INFINITY, f64::min);
    Duration::try_from_secs_f64(least).ok()
}
