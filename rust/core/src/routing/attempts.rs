//! The attempts at one target: an old answer where one serves, else as many requests as its config allows.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use super::{
    Place,
    decision::{CacheStatus, Step, milliseconds},
    explain,
};
use crate::routing::{cache_lookup::Question, executor::Walk, replay_body::Prepared};
use crate::{
    config::Node,
    endpoints::{count_tokens, realtime},
    error::{Error, Origin, Result},
    features::{
        circuit_breaker::{Policy, Verdict},
        parameters::Parameters,
        recovery::Mode,
        retry::{Retry, Waits},
    },
    gateway::{self, Gateway},
    ingress::body::Body,
    resolve::{
        inference_profiles,
        target::{Coding, Target, Telling},
    },
    response::delivery::{Pieces, Served},
    state::shared::circuit_breakers::Passage,
};

/// Of a node that sets nothing and is asked once.
static UNSET: LazyLock<(Parameters, Retry)> = LazyLock::new(Default::default);

/// What is decided after an attempt.
enum Next {
    /// Its answer is the one.
    Answer,
    /// No further one is to be made, though one was wanted.
    Stop(&'static str),
    /// Another one after this time.
    Again(Duration),
}

/// The attempts at one target so far.
struct Tries {
    retries: i32,
    waits: Waits,
    /// What stands for the account at the provider, where there may be another attempt.
    account: u64,
    is_replayable: bool,
    /// It tries for all others whether the target is well again: once.
    is_probe: bool,
}

impl Tries {
    fn begin(gateway: &Gateway, retry: &Retry, target: &Target<'_>, is_probe: bool) -> Self {
        let waits = Waits::new(Duration::from_millis(gateway.settings.retry_backoff_ms));
        let mut account = 0;
        if retry.attempts() > 0 {
            let (credential, options) = (target.credential.as_deref(), target.options.said());
            account = gateway.shared.mark_within(false, (&target.base.origin, credential, options));
            gateway.shared.budgets.request(account, gateway.shared.now());
        }
        Self { retries: 0, waits, account, is_replayable: false, is_probe }
    }

    fn judge(&mut self, walk: &Walk<'_>, retry: &Retry, guard: Option<&Guard<'_>>, result: &Result<Served>) -> Next {
        let (is_wanted, asked) = match result {
            Ok(served) => (retry.is_on(served.status()), retry.asked(served.status(), served.headers())),
            // What is refused here would be once more.
            Err(error) => (error.is_of_network() || is_theirs(error) && retry.is_on(error.status()), None),
        };
        if !is_wanted || retry.attempts() == 0 {
            return Next::Answer;
        }
        if self.is_probe {
            return Next::Stop("the breaker lets it try once");
        }
        if i64::from(self.retries) >= i64::from(retry.attempts()) {
            return Next::Stop("all retries are spent");
        }
        if !self.is_replayable {
            return Next::Stop("the body was sent as it came and is gone");
        }
        if guard.is_some_and(|guard| guard.is_closed_off(walk.gateway)) {
            return Next::Stop(OPENED);
        }
        let Some(wait) = self.waits.next(asked, fastrand::f64()) else {
            return Next::Stop("the wait would be too long");
        };
        if walk.left().is_some_and(|left| left <= wait) {
            return Next::Stop("the caller waits no longer");
        }
        let shared = &walk.gateway.shared;
        let is_within = shared.budgets.admit(self.account, shared.now());
        if !is_within {
            walk.gateway.sink.metrics.retries_refused.add(1);
            return Next::Stop("the retry budget is spent");
        }
        Next::Again(wait)
    }
}

const OPENED: &str = "the breaker opened";

/// The breaker of a target, and this request's right to send there.
struct Guard<'w> {
    policy: &'w Policy,
    passage: Passage,
}

impl Guard<'_> {
    /// How an attempt ended.
    fn tell(&mut self, gateway: &Gateway, target: &Target<'_>, result: &Result<Served>) {
        let failed = match result {
            Ok(served) => self.policy.is_failure(Some(served.status())),
            // It says nothing of the target: as if it had never been sent.
            Err(error) if !is_targets(error, target) => return,
            Err(_) => self.policy.is_failure(None),
        };
        if self.passage.count(self.policy, gateway.shared.now(), failed) {
            gateway.sink.metrics.breakers_opened.add(1);
        }
    }

    fn is_closed_off(&self, gateway: &Gateway) -> bool {
        self.passage.is_closed_off(self.policy, gateway.shared.now())
    }
}

/// Whether an error is the target's: not the caller's, who may have been in more of a hurry than the config is.
fn is_targets(error: &Error, target: &Target<'_>) -> bool {
    let is_hurried =
        matches!(error, Error::Timeout { milliseconds } if u128::from(*milliseconds) < target.patience.as_millis());
    is_theirs(error) && !is_hurried
}

fn is_theirs(error: &Error) -> bool {
    error.origin() == Origin::Upstream
}

impl<'w> Walk<'w> {
    /// A node without further targets, which was entered.
    pub async fn try_target(&mut self, node: &'w Node) -> Result<Served> {
        let passage = self.passage.take();
        self.decide(|decision| {
            decision.option.clone_from(&node.path);
            // What was so of another target says nothing of this one.
            (decision.retries, decision.cache) = (0, CacheStatus::Disabled);
            decision.is_persistent |= node.features.retry.is_said();
        });
        let failed = |walk: &mut Self, error: Error| {
            let (at, code) = (node.path.clone(), error.code());
            walk.note(|| Step::Failed { at, error: code });
            error
        };
        let mut prepared = match self.carried.prepare(self.parameters(node)).await {
            Ok(prepared) => prepared,
            Err(error) => return Err(failed(self, error)),
        };
        let mut target = match self.aim(node, &mut prepared).await {
            Ok(target) => target,
            Err(error) => {
                self.carried.give_back(prepared.body);
                return Err(failed(self, error));
            }
        };
        let question = Question::of(self, node, &target, &prepared.body);
        if self.call.control.is_to_be_explained() {
            let breaker = passage.as_ref().filter(|passage| passage.is_probe()).map(|_| Verdict::HalfOpen);
            let breaker = breaker.or_else(|| self.verdict(node));
            let mut told = Box::pin(explain::briefly(self, node, (&target, &prepared), question.as_ref())).await;
            told["breaker"] = breaker.map(Verdict::name).into();
            self.decide(|decision| decision.target = Some(told));
        }
        if let Some(question) = &question
            && let Some(served) = question.kept(self, &target).await
        {
            let at = node.path.clone();
            self.note(|| Step::Kept { at });
            self.facts.forget_target();
            return Ok(served);
        }
        let mut served = self.send(node, &mut target, prepared.into_body(self.call).await?, passage).await?;
        served.place = Place::of(self, node, &served);
        if let Some(question) = question {
            question.keep(self, &served);
        }
        Ok(served)
    }

    /// What is set in bodies for a node, unless the caller wants its own to stay as it is.
    pub fn parameters(&self, node: &'w Node) -> &'w Parameters {
        if self.call.control.is_nitro() { &UNSET.0 } else { &node.features.parameters }
    }

    /// How often a node is asked again.
    pub fn retry(&self, node: &'w Node) -> &'w Retry {
        if self.call.control.is_nitro() { &UNSET.1 } else { &node.features.retry }
    }

    /// Where this goes, and the body as it goes there.
    pub async fn aim(&mut self, node: &'w Node, prepared: &mut Prepared) -> Result<Target<'w>> {
        if let Some(model) = self.named_without_json(node) {
            prepared.name_model(self.call, &model).await?;
        }
        let model = std::mem::take(&mut prepared.model);
        let (mut target, named) = self.choice.target(self.plan, node, &model)?;
        let operation = self.call.route.operation;
        self.facts.provider = target.provider.slug();
        count_tokens::refuse_unserved(operation, &target)?;
        match named {
            Some(model) => prepared.name_model(self.call, model).await?,
            None => prepared.model = model,
        }
        self.facts.model.clone_from(&prepared.model);
        self.facts.stream = prepared.stream;
        target.adopt(self.call, &self.facts.model, prepared.body.whole())?;
        if let (false, Some(nameless)) = (self.is_dry, target.provider.nameless(&target.options, &self.facts.model)) {
            Box::pin(inference_profiles::learn(self.gateway, operation, &mut target, nameless, self.facts)).await;
        }
        gateway::refuse_other_words(self.call, &target, &self.facts.model)?;
        if self.parameters(node).decides("stream_options") {
            target.telling = Telling::AsWritten;
        }
        if node.features.read(self.call.route, &self.call.head.method) {
            target.coding = Coding::Plain;
        }
        Ok(target)
    }

    /// The model that a target has for what names it elsewhere than in JSON: in a form, or in a WebSocket's query.
    fn named_without_json(&self, node: &Node) -> Option<String> {
        let is_named = self.is_socket || self.call.route.operation.takes_model_in_form();
        if is_named && self.carried.json().is_none() { self.parameters(node).model() } else { None }
    }

    /// As often as its config allows, and no more once the target's breaker, which let this request through, has opened.
    pub async fn send(
        &mut self,
        node: &'w Node,
        target: &mut Target<'w>,
        mut body: Body,
        passage: Option<Passage>,
    ) -> Result<Served> {
        let gateway = self.gateway;
        let (timeout, retry) = (target.timeout, self.retry(node));
        let policy = node.features.circuit_breaker.policy();
        let mut guard = policy.zip(passage).map(|(policy, passage)| Guard { policy, passage });
        let is_probe = guard.as_ref().is_some_and(|guard| guard.passage.is_probe());
        let mut tries = Tries::begin(gateway, retry, target, is_probe);
        loop {
            target.timeout = self.left().map_or(timeout, |left| left.min(timeout));
            let next = body.again();
            let lent = self.carried.lend(body);
            let result = self.send_once(node, target, lent).await;
            if let Some(guard) = &mut guard {
                guard.tell(gateway, target, &result);
            }
            tries.is_replayable = next.is_some() || self.carried.is_there();
            let wait = match tries.judge(self, retry, guard.as_ref(), &result) {
                Next::Answer => {
                    self.decide(|decision| decision.retries = tries.retries);
                    return result;
                }
                Next::Stop(because) => return self.stopped(node, because, result),
                Next::Again(wait) => wait,
            };
            tokio::time::sleep(wait).await;
            // Others may have closed the target off meanwhile: then this was the last word.
            if guard.as_ref().is_some_and(|guard| guard.is_closed_off(gateway)) {
                return self.stopped(node, OPENED, result);
            }
            // Judged: there is one.
            body = next.or_else(|| self.carried.take_back()).unwrap_or_else(Body::empty);
            if let Ok(served) = result {
                Box::pin(served.discard()).await;
            }
            gateway.sink.metrics.retries.add(1);
            tries.retries += 1;
        }
    }

    /// What came last, though another attempt was wanted.
    fn stopped(&mut self, node: &Node, because: &'static str, result: Result<Served>) -> Result<Served> {
        self.decide(|decision| decision.retries = -1);
        let at = node.path.clone();
        self.note(|| Step::Stopped { at, because });
        result
    }

    /// One request. What breaks off before anything of its answer could be passed on has failed.
    async fn send_once(&mut self, node: &Node, target: &Target<'_>, body: Body) -> Result<Served> {
        let began = Instant::now();
        let attempted = if self.is_socket {
            Box::pin(realtime::ask(self.gateway, self.call, target, &self.carried.model, self.facts)).await
        } else {
            self.gateway.attempt(self.call, target, body, self.facts).await
        };
        let result = match attempted {
            Ok(mut served) => self.begin(node, &mut served).await.map(|()| served),
            Err(error) => Err(error),
        };
        let (status, error) = match &result {
            Ok(served) => (Some(served.status()), None),
            Err(error) => (None, Some(error.code())),
        };
        let (at, provider) = (node.path.clone(), target.provider.slug());
        self.note(|| Step::Tried { at, provider, status, error, milliseconds: milliseconds(began) });
        result
    }

    /// Once there is something to pass on: a first piece, or all of it where streams are held.
    async fn begin(&mut self, node: &Node, served: &mut Served) -> Result<()> {
        if node.features.recovery.mode() == Mode::Hold
            && let Some(pieces) = served.pieces(self.call.asked_for())
        {
            return Box::pin(self.hold(node, served, pieces)).await;
        }
        // While others may answer instead, or nothing is said meanwhile, it has begun with its first byte alone.
        let patience = match self.gateway.settings.heartbeat_ms {
            0 => Duration::MAX,
            _ if self.has_others => Duration::MAX,
            beat => Duration::from_millis(beat),
        };
        served.begin(self.call.asked_for(), patience).await
    }

    /// Until all of a stream is there, if there is room for it.
    async fn hold(&mut self, node: &Node, served: &mut Served, pieces: Pieces) -> Result<()> {
        let asked = self.call.asked_for();
        let share = self.gateway.shared.recovery.share();
        // Nothing is heard meanwhile: its first piece has all of its time.
        let holding = async {
            served.begin(asked, Duration::MAX).await?;
            served.hold(pieces, asked, share).await
        };
        let is_held = match self.left() {
            Some(left) => {
                let late = |_| Error::Timeout { milliseconds: left.as_millis() as u64 };
                tokio::time::timeout(left, holding).await.map_err(late)??
            }
            None => holding.await?,
        };
        let metrics = &self.gateway.sink.metrics;
        if is_held {
            metrics.held.add(1);
        } else {
            metrics.unheld.add(1);
            let at = node.path.clone();
            self.note(|| Step::Unheld { at });
        }
        Ok(())
    }

    /// How long the caller still waits, where that is known.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(tokio::time::Instant::now()))
    }

    pub fn set_cache(&mut self, status: CacheStatus) {
        let metrics = &self.gateway.sink.metrics;
        match status {
            CacheStatus::Hit => metrics.cache_hits.add(1),
            CacheStatus::Miss => metrics.cache_misses.add(1),
            CacheStatus::Refresh => metrics.cache_refreshes.add(1),
            CacheStatus::Disabled => (),
        }
        self.decide(|decision| decision.cache = status);
    }
}
