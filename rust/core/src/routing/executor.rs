//! The walk through the targets of a config until one answers.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
};

use serde_json::Value;
use tokio::time::Instant;

use super::{
    Strategy,
    decision::{Decision, Step},
    fallback::Fallback,
    hedge::Hedge,
    loadbalance::{LoadBalance, Session},
};
use crate::routing::{condition_input::Asked, replay_body::Carried};
use crate::{
    accounting::record::Facts,
    config::Node,
    error::{Error, Result},
    features::{circuit_breaker::Verdict, timeout},
    gateway::Gateway,
    ingress::body::Body,
    resolve::target_resolver::{Call, Choice, Chosen, Plan},
    response::delivery::Served,
    state::shared::{circuit_breakers::Passage, sticky_sessions::Wanted},
};

/// The way of a request whose config asks for more than one attempt at one target.
pub(crate) async fn route(
    gateway: &Gateway,
    choice: &Choice<'_>,
    plan: &Plan<'_>,
    body: Body,
    facts: &mut Facts,
) -> Result<Served> {
    // Before its body is read: the caller waits meanwhile too.
    let until = choice.call.control.patience.and_then(timeout::until);
    let is_json = is_json(choice.call);
    // JSON is taken whole on every path: it may have to be asked about, changed or sent again.
    let body = if is_json { Body::Whole(body.limited(gateway.body_limits)?.collect().await?) } else { body };
    let body = gateway.read(choice.call, body, facts).await.map_err(|error| match (&plan.config, error) {
        // What cannot be read names nobody.
        (Chosen::None, Error::BodyInvalid { .. }) if !plan.names_provider() => Error::ProviderNeeded,
        (_, error) => error,
    })?;
    facts.metadata.check()?;
    let asked = choice.call.asked_for();
    if let (true, Body::Whole(bytes)) = (asked.is_countable(), &body) {
        facts.asked = Some(gateway.sink.counting.keep(asked, bytes));
    }
    let carried = Carried::new(choice.call, body, is_json, facts).await?;
    Walk { until, ..Walk::new(gateway, choice, plan, facts, carried) }.go().await
}

/// The way of a request whose model may say which provider is meant.
pub(crate) async fn readdress(
    gateway: &Gateway,
    choice: &Choice<'_>,
    plan: &Plan<'_>,
    body: Body,
    facts: &mut Facts,
) -> Result<Served> {
    let carried = Carried::new(choice.call, body, is_json(choice.call), facts).await?;
    Walk::new(gateway, choice, plan, facts, carried).go().await
}

fn is_json(call: &Call<'_>) -> bool {
    call.route.operation.takes_json() || call.head.headers.is_json()
}

/// The way of a request for a WebSocket whose config asks for more than one attempt at one target.
pub(crate) async fn open(gateway: &Gateway, choice: &Choice<'_>, plan: &Plan<'_>, facts: &mut Facts) -> Result<Served> {
    let carried = Carried::new(choice.call, Body::empty(), false, facts).await?;
    Walk { is_socket: true, ..Walk::new(gateway, choice, plan, facts, carried) }.go().await
}

/// A group on the way whose targets are tried one after the other.
struct Level<'w> {
    node: &'w Node,
    fallback: &'w Fallback,
    /// Those before it were tried or passed over.
    place: usize,
    has_tried: bool,
    /// None was open: the breakers are of no help.
    is_desperate: bool,
}

impl<'w> Level<'w> {
    fn new(node: &'w Node, fallback: &'w Fallback) -> Self {
        Self { node, fallback, place: 0, has_tried: false, is_desperate: !node.within.has_breaker }
    }

    fn has_next(&self) -> bool {
        self.place < self.node.targets.len()
    }
}

/// A session, and the place of the target that it was given to where that is remembered.
#[derive(Clone, Copy)]
struct Given {
    session: Session,
    place: Option<usize>,
}

/// What is tried first below a node.
enum First<'w> {
    One(&'w Node),
    /// The second too, which stands at this place, if the first does not answer in time.
    Both((&'w Node, usize), &'w Fallback, &'w Hedge),
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
    /// It asks for a WebSocket.
    pub is_socket: bool,
    /// Another target may still answer instead of the one that is asked.
    pub has_others: bool,
    /// Nothing is sent: it leaves no trace in what is shared.
    pub is_dry: bool,
    /// The right to send to the target that is next, from its breaker.
    pub passage: Option<Passage>,
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
        let until = call.control.patience.and_then(timeout::until);
        facts.decision = Some(Box::new(Decision::new(&plan.config.root)));
        let (passage, family) = (None, OnceLock::new());
        let (is_socket, has_others, is_dry) = (false, false, false);
        Self {
            gateway,
            choice,
            plan,
            call,
            facts,
            carried,
            params,
            until,
            is_socket,
            has_others,
            is_dry,
            passage,
            family,
        }
    }

    /// The same request, on its way at the same time.
    pub fn twin<'t>(&self, facts: &'t mut Facts, carried: Carried) -> Walk<'t>
    where
        'w: 't,
    {
        Walk {
            until: self.until,
            is_socket: self.is_socket,
            has_others: true,
            is_dry: self.is_dry,
            family: self.family.clone(),
            ..Walk::new(self.gateway, self.choice, self.plan, facts, carried)
        }
    }

    /// To whichever target answers.
    pub async fn go(&mut self) -> Result<Served> {
        let plan = self.plan;
        if plan.config.root.targets.is_empty() {
            self.enters(&plan.config.root, true);
        }
        self.go_from(&plan.config.root).await
    }

    /// A target without others below it has been entered.
    pub async fn go_from(&mut self, start: &'w Node) -> Result<Served> {
        let mut node = start;
        let mut levels: Vec<Level<'w>> = Vec::new();
        let races = self.has_others;
        loop {
            let result = match self.descend(node, &mut levels).await {
                Ok(First::One(target)) => {
                    self.has_others = races || levels.iter().any(Level::has_next);
                    self.try_target(target).await
                }
                Ok(First::Both((first, second), fallback, hedge)) => {
                    let Some(level) = levels.last_mut() else { return Err(Error::NoTarget) };
                    let targets = (first, &level.node.targets[second]);
                    let (result, tried) = self.race(targets, fallback, hedge).await;
                    if tried == 2 {
                        level.place = second + 1;
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
    async fn descend(&mut self, mut node: &'w Node, levels: &mut Vec<Level<'w>>) -> Result<First<'w>> {
        while !node.targets.is_empty() {
            let Strategy::Fallback(fallback) = &node.strategy else {
                let given = match self.session(node) {
                    // In a box: few wait there, and all walks would be larger.
                    Some((balance, session)) => Some(Box::pin(self.given(node, balance, session)).await),
                    None => None,
                };
                node = self.choose(node, given)?;
                continue;
            };
            let mut level = Level::new(node, fallback);
            let first = self.next_of(&mut level);
            let second = fallback.hedge.as_ref().and_then(|hedge| Some((hedge, self.peek(&level)?)));
            levels.push(level);
            self.decide(|decision| decision.is_persistent = true);
            node = first.ok_or(Error::NoTarget)?;
            if let Some((hedge, second)) = second {
                return Ok(First::Both((node, second), fallback, hedge));
            }
        }
        Ok(First::One(node))
    }

    /// The target to be tried after this result: the next one of the innermost group that has one and takes it for a failure.
    fn after(&mut self, levels: &mut Vec<Level<'w>>, result: &Result<Served>) -> Option<&'w Node> {
        while let Some(level) = levels.last_mut() {
            if level.fallback.has_failed(result) && level.has_next() {
                let because = self.must_stop();
                if let (None, Some(next)) = (because, self.next_of(level)) {
                    return Some(next);
                }
                if let Some(because) = because {
                    let at = Arc::clone(&level.node.path);
                    self.note(|| Step::Stopped { at, because });
                }
            }
            levels.pop();
        }
        None
    }

    /// The next target of a group to be tried: each is asked whether it is open when its turn comes. Where none is, all are tried.
    fn next_of(&mut self, level: &mut Level<'w>) -> Option<&'w Node> {
        let targets = &level.node.targets;
        if !level.is_desperate {
            let open = (level.place..targets.len()).find(|place| self.may_go(&targets[*place]));
            level.is_desperate = open.is_none() && !level.has_tried;
            if !level.is_desperate {
                let open = open.unwrap_or(targets.len());
                targets[level.place..open].iter().for_each(|target| self.pass_over(target));
                level.place = open;
            }
        }
        let next = targets.get(level.place)?;
        if level.is_desperate && next.targets.is_empty() {
            self.enters(next, true);
        }
        level.place += 1;
        level.has_tried = true;
        Some(next)
    }

    /// The place of the target that would be next.
    fn peek(&self, level: &Level<'w>) -> Option<usize> {
        let targets = &level.node.targets;
        (level.place..targets.len()).find(|place| level.is_desperate || self.is_open(&targets[*place]))
    }

    /// Whether a target, or one below it, is open to this request; a target without others is entered.
    pub fn may_go(&mut self, node: &Node) -> bool {
        if node.targets.is_empty() { self.enters(node, false) } else { self.is_open(node) }
    }

    /// Asks the breaker of a target, where it has one, for the right to send there; `always`: although it is closed off.
    fn enters(&mut self, node: &Node, always: bool) -> bool {
        self.passage = None;
        let Some(policy) = node.features.circuit_breaker.policy() else { return true };
        if self.is_dry {
            return always || self.is_open(node);
        }
        let shared = &self.gateway.shared;
        self.passage = shared.breakers.begin(self.mark(node), policy, shared.now(), always);
        self.passage.is_some()
    }

    pub fn pass_over(&mut self, node: &Node) {
        if !self.is_dry {
            self.gateway.sink.metrics.breaker_skips.add(1);
        }
        let at = node.path.clone();
        self.note(|| Step::Skipped { at, breaker: Verdict::Open.name() });
    }

    /// The one target of a group that the request goes on to.
    fn choose(&mut self, node: &'w Node, given: Option<Given>) -> Result<&'w Node> {
        let (place, condition) = match &node.strategy {
            Strategy::Single | Strategy::Fallback(_) => (0, None),
            Strategy::LoadBalance(balance) => (self.pick(node, balance, given), None),
            Strategy::Conditional(conditional) => match conditional.choose(&self.asked()) {
                Some(chosen) => chosen,
                None => return Err(self.nobody(node)),
            },
        };
        let (at, strategy) = (node.path.clone(), node.strategy.name());
        self.note(|| Step::Chose { at, strategy, target: place, condition });
        let chosen = &node.targets[place];
        if chosen.targets.is_empty() && !matches!(node.strategy, Strategy::LoadBalance(_)) {
            // There is no other.
            self.enters(chosen, true);
        }
        Ok(chosen)
    }

    /// No condition holds, and none is the default.
    fn nobody(&mut self, node: &Node) -> Error {
        let (at, error) = (Arc::clone(&node.path), Error::NoTarget);
        self.note(|| Step::Failed { at, error: error.code() });
        error
    }

    /// The requests that this one belongs to in a group that keeps some together.
    fn session(&self, node: &'w Node) -> Option<(&'w LoadBalance, Session)> {
        let Strategy::LoadBalance(balance) = &node.strategy else { return None };
        Some((balance, balance.session(&self.asked())?))
    }

    /// The target of a session: where workers share, the one that the first of them gave it to.
    async fn given(&self, node: &Node, balance: &LoadBalance, session: Session) -> Given {
        let shared = &self.gateway.shared;
        if shared.redis.is_none() {
            return Given { session, place: None };
        }
        let key = self.key(node, &session);
        let wanted = Wanted { key, target: balance.first_of(&session), ttl: session.ttl };
        let is_there = |target: u64| balance.place_of(target).is_some();
        let target = shared.sessions.give(wanted, shared.now(), is_there).await;
        Given { session, place: target.and_then(|target| balance.place_of(target)) }
    }

    /// The same, as far as this worker knows: for who only wants to know it.
    fn remembered(&self, node: &Node, balance: &LoadBalance, session: Session) -> Given {
        let shared = &self.gateway.shared;
        let target = shared.sessions.look(self.key(node, &session), shared.now());
        Given { session, place: target.and_then(|target| balance.place_of(target)) }
    }

    /// What stands for a session of a group of this config.
    fn key(&self, node: &Node, session: &Session) -> u64 {
        self.gateway.shared.mark((self.family(), &node.path, session.mark))
    }

    /// The place of one of those that are open, by weight; of any where none is.
    fn pick(&mut self, node: &Node, balance: &LoadBalance, given: Option<Given>) -> usize {
        let mut open = self.open(node);
        loop {
            let is_open = |place: usize| open.as_ref().is_some_and(|open| open[place]);
            let is_open: Option<&dyn Fn(usize) -> bool> = if open.is_some() { Some(&is_open) } else { None };
            let place = match given {
                None => balance.pick(fastrand::f64(), is_open),
                Some(Given { place: Some(place), .. }) if is_open.is_none_or(|is_open| is_open(place)) => place,
                Some(Given { session, .. }) => balance.nearest(session.mark, is_open),
            };
            let chosen = &node.targets[place];
            // None with a weight is open where one was chosen that is not.
            let is_last = open.as_ref().is_none_or(|open| !open[place]);
            if !chosen.targets.is_empty() || self.enters(chosen, is_last) {
                return place;
            }
            // Somebody else was let through just now.
            if let Some(open) = &mut open {
                open[place] = false;
            }
        }
    }

    /// Every target that would be tried, in the order in which they would be as long as they fail.
    pub fn order(&mut self, node: &'w Node) -> Result<Vec<&'w Node>> {
        if node.targets.is_empty() {
            return Ok(vec![node]);
        }
        let Strategy::Fallback(fallback) = &node.strategy else {
            let given = self.session(node).map(|(balance, session)| self.remembered(node, balance, session));
            let chosen = self.choose(node, given)?;
            return self.order(chosen);
        };
        let (mut all, mut refused) = (Vec::new(), None);
        let mut level = Level::new(node, fallback);
        while let Some(target) = self.next_of(&mut level) {
            if let (true, Some(hedge), Some(second)) = (all.is_empty(), &fallback.hedge, self.peek(&level)) {
                let (at, after) = (Arc::clone(&node.targets[second].path), hedge.to_string());
                self.note(|| Step::WouldHedge { at, after });
            }
            match self.order(target) {
                Ok(below) => all.extend(below),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if all.is_empty() => Err(error),
            _ => Ok(all),
        }
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
        let open: Vec<_> = node.targets.iter().map(|target| self.is_open(target)).collect();
        if !open.contains(&true) || !open.contains(&false) {
            return None;
        }
        for (target, _) in node.targets.iter().zip(&open).filter(|(_, is_open)| !**is_open) {
            self.pass_over(target);
        }
        Some(open)
    }

    pub fn is_open(&self, node: &Node) -> bool {
        if !node.targets.is_empty() {
            return node.targets.iter().any(|target| self.is_open(target));
        }
        self.verdict(node) != Some(Verdict::Open)
    }

    /// What the breaker of a target says, where it has one.
    pub fn verdict(&self, node: &Node) -> Option<Verdict> {
        let policy = node.features.circuit_breaker.policy()?;
        let (shared, mark) = (&self.gateway.shared, self.mark(node));
        let breakers = &shared.breakers;
        let now = shared.now();
        Some(if self.is_dry { breakers.look(mark, policy, now) } else { breakers.verdict(mark, policy, now) })
    }

    /// What stands for a target of this config.
    pub fn mark(&self, node: &Node) -> u64 {
        // Of a target that names nobody there are as many as there are whom requests name.
        let named = if node.provider.is_none() { self.named() } else { None };
        self.gateway.shared.mark_within(self.plan.slug.is_some(), (self.family(), &node.path, named))
    }

    /// Whom the request itself names.
    fn named(&self) -> Option<&str> {
        let of_model = || self.carried.model.strip_prefix('@')?.split('/').next();
        self.call.control.provider.or(self.call.control.virtual_key).or_else(of_model)
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
