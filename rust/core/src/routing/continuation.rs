//! A stream that broke off is continued by another target, from what the caller got of it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use penstock_llm::{
    operation::Operation,
    stream::{
        splice::{Seam, Spent},
        transcript::{Again, Form, Said},
    },
    tokens,
    usage::Usage,
};

use super::{Strategy, decision::Step};
use crate::routing::{executor::Walk, replay_body::Carried};
use crate::{
    accounting::record::{Facts, Record},
    auth::caller,
    config::Node,
    error::Error,
    features::recovery::Mode,
    gateway::Gateway,
    ingress::{
        body::Body,
        headers::{Control, Head},
        route::Route,
    },
    resolve::{target::Target, target_resolver::Call},
    response::{
        delivery::{self, Served},
        outgoing::{Answer, Contents},
    },
    state::{shared::memory_budget::Share, snapshot::Snapshot},
    upstream::AnswerBody,
};

/// So often one answer goes on elsewhere.
const MOST_SEAMS: u8 = 5;

/// What is asked, and the target that answers it.
pub struct Place {
    body: Bytes,
    model: String,
    at: Arc<str>,
    /// How it says its text, where that can be the beginning of another answer.
    form: Option<Form>,
}

impl Place {
    /// Of a stream that may be continued; `None` for any other answer.
    pub fn of(walk: &Walk<'_>, node: &Node, served: &Served) -> Option<Box<Self>> {
        if node.features.recovery.mode() != Mode::Continue || !is_readable(served) {
            return None;
        }
        let (body, model) = (walk.carried.json()?.clone(), walk.carried.model.clone());
        let form = Form::of(walk.call.asked_for(), served.dialect);
        Some(Box::new(Self { body, model, at: node.path.clone(), form }))
    }
}

fn is_readable(served: &Served) -> bool {
    served.is_stream() && delivery::is_plain(served.headers())
}

/// All that it takes to ask somebody else, long after the walk.
pub struct Continuation {
    gateway: Arc<Gateway>,
    snapshot: Arc<Snapshot>,
    head: Arc<Head>,
    place: Box<Place>,
    /// `None` where nobody can go on.
    said: Option<Said>,
    share: Share,
    spent: Spent,
    seams: u8,
}

impl Continuation {
    /// Stands by an answer that is a stream.
    pub fn follow(
        (gateway, snapshot, head): (&Arc<Gateway>, Arc<Snapshot>, Arc<Head>),
        place: Option<Box<Place>>,
        mut answer: Answer,
    ) -> Answer {
        if let (Some(place), Contents::Stream(stream)) = (place, &mut answer.body) {
            stream.follow(Box::new(Self {
                gateway: Arc::clone(gateway),
                snapshot,
                head,
                said: place.form.map(Said::new),
                place,
                share: gateway.shared.recovery.share(),
                spent: Spent::default(),
                seams: 0,
            }));
        }
        answer
    }

    /// Hears what the caller gets. Whether there is room to remember it.
    pub fn hear(&mut self, events: &Bytes) -> bool {
        let Some(said) = &mut self.said else { return true };
        let before = said.held();
        said.take(events.clone());
        self.share.grow(said.held() - before)
    }

    /// The silence after which its caller hears something.
    pub fn heartbeat(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.gateway.settings.heartbeat_ms)).filter(|every| !every.is_zero())
    }

    /// What another target says after what was said; `None` where there is none that could.
    pub async fn resume(&mut self, error: &'static str, record: &mut Record) -> Option<AnswerBody> {
        let facts = &mut record.facts;
        if let Some(because) = self.refusal() {
            if let Some(decision) = &mut facts.decision {
                decision.add(Step::Broke { at: self.place.at.clone(), error });
                decision.add(Step::Stopped { at: self.place.at.clone(), because });
            }
            return None;
        }
        // What one target begins and another ends is no answer to be given again.
        facts.filling = None;
        self.seams += 1;
        let searched = facts.own_searches();
        let Rest { served, asked, at, repeated } = self.found(error, facts).await?;
        self.count(facts.model.clone()).await;
        let Spent { input, output } = self.spent;
        facts.paid.spent = Some(Usage { input, output, estimated: true, ..Usage::default() });
        facts.paid.searched += searched;
        let operation = Route::of(&self.head.method, &self.head.path)?.asked_for(&self.head.method);
        facts.asked = Some(self.gateway.sink.counting.keep(operation, &asked));
        self.gateway.sink.metrics.continued.add(1);
        self.place.at = at;
        let mut seam = Seam::after(self.said.as_ref()?, self.spent, repeated);
        Some(served.incoming.body.through(move |piece| seam.push(piece)))
    }

    /// Why nobody is asked to go on, if so.
    fn refusal(&self) -> Option<&'static str> {
        let Some(said) = &self.said else { return Some("answers on this path are not continued") };
        said.obstacle().or((self.seams == MOST_SEAMS).then_some("it went on as often as an answer may"))
    }

    /// The answer of a target that goes on.
    async fn found(&self, broke: &'static str, facts: &mut Facts) -> Option<Rest> {
        let Self { gateway, snapshot, head, place, said, .. } = self;
        let said = said.as_ref()?;
        let control = Control::read(&head.headers, &gateway.settings.header_aliases);
        let call = Call { route: Route::of(&head.method, &head.path)?, head, control };
        // A token may have run out since the request came.
        let mut refused = |error: Error| {
            if let Some(decision) = &mut facts.decision {
                decision.add(Step::Broke { at: place.at.clone(), error: broke });
                decision.add(Step::Failed { at: place.at.clone(), error: error.code() });
            }
        };
        let require = gateway.settings.require_key;
        let passport = caller::passport(snapshot, &head.headers, &call.control).map_err(&mut refused).ok()?;
        let admitted = caller::admit(passport.as_ref(), snapshot, require, &head.headers, &call.control);
        let caller = admitted.map_err(&mut refused).ok()?;
        let choice = gateway.choice(snapshot, &call, &caller);
        let plan = choice.plan().map_err(&mut refused).ok()?;
        let mut carried = Carried::new(&call, Body::Whole(place.body.clone()), true, facts).await.ok()?;
        (carried.model, carried.stream) = (place.model.clone(), true);
        let (known, decision) = (facts.twin(), facts.decision.take());
        let mut walk = Walk::new(gateway, &choice, &plan, facts, carried);
        // How long a client waits counts for each of its reads, and it reads: what bounds an answer is the gateway's own time.
        (walk.facts.decision, walk.until) = (decision, None);
        let at = place.at.clone();
        walk.note(|| Step::Broke { at, error: broke });
        // Whom to ask is only thought over: each is asked for a passage when its turn comes.
        walk.is_dry = true;
        let successors = successors(&mut walk, &plan.config.root, &place.at);
        walk.is_dry = false;
        for node in successors {
            if let Some(rest) = walk.go_on_at(node, said).await {
                return Some(rest);
            }
        }
        facts.adopt(known);
        None
    }

    /// What the streams before have cost: what they were asked, and all that was said.
    async fn count(&mut self, model: String) {
        let text = self.said.as_ref().map_or_else(String::new, |said| said.text().to_owned());
        let body = self.place.body.clone();
        let counting = tokio::task::spawn_blocking(move || {
            let encoding = tokens::encoding_for(&model);
            (tokens::count_messages(encoding, &body).unwrap_or_default(), tokens::count(encoding, &text))
        });
        let (input, output) = counting.await.unwrap_or_default();
        // Who went on was asked with all that had been said before.
        self.spent = Spent { input: self.spent.input + self.spent.output + input as u64, output: output as u64 };
    }
}

/// An answer that goes on.
struct Rest {
    served: Served,
    /// What was asked for it.
    asked: Bytes,
    /// Who answers.
    at: Arc<str>,
    /// What of the text before it may be in it again.
    repeated: String,
}

/// Whom to ask after the target at this path: it itself where it is to be asked again or there is nobody else, then those
/// that would be next if it had not answered.
fn successors<'w>(walk: &mut Walk<'w>, root: &'w Node, path: &str) -> Vec<&'w Node> {
    let mut after = Vec::new();
    let Some(broken) = descend(walk, root, path, &mut after) else { return after };
    if after.is_empty() || walk.retry(broken).attempts() > 0 {
        after.insert(0, broken);
    }
    after
}

/// Goes down to the node at a path, and gathers on the way back what stands behind it.
fn descend<'w>(walk: &mut Walk<'w>, node: &'w Node, path: &str, after: &mut Vec<&'w Node>) -> Option<&'w Node> {
    if *node.path == *path {
        return Some(node);
    }
    let is_on_way =
        |target: &Node| path.strip_prefix(&*target.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let place = node.targets.iter().position(is_on_way)?;
    let found = descend(walk, &node.targets[place], path, after)?;
    if matches!(node.strategy, Strategy::Fallback(_)) {
        for later in &node.targets[place + 1..] {
            after.extend(walk.order(later).unwrap_or_default());
        }
    }
    Some(found)
}

impl<'w> Walk<'w> {
    /// Asks one target to go on, where it can.
    async fn go_on_at(&mut self, node: &'w Node, said: &Said) -> Option<Rest> {
        let at = node.path.clone();
        let aimed = match self.carried.prepare(self.parameters(node)).await {
            Ok(mut prepared) => self.aim(node, &mut prepared).await.map(|target| (target, prepared)),
            Err(error) => Err(error),
        };
        let (mut target, prepared) = match aimed {
            Ok(aimed) => aimed,
            Err(error) => {
                self.note(|| Step::Failed { at, error: error.code() });
                return None;
            }
        };
        let Body::Whole(body) = &prepared.body else { return None };
        let Again { body: asked, beginning } = match self.asked_again(node, &target, (said, body)) {
            Ok(again) => again,
            Err(because) => {
                self.note(|| Step::Unable { at, because });
                return None;
            }
        };
        if !self.may_go(node) {
            self.pass_over(node);
            return None;
        }
        let passage = self.passage.take();
        let asked = Bytes::from(asked);
        target.goes_on = Some(target.provider.continuing()).filter(|_| !beginning.is_empty());
        let repeated = if target.goes_on.is_some_and(|how| how.repeats) { beginning } else { String::new() };
        let served = self.send(node, &mut target, Body::Whole(asked.clone()), passage).await.ok()?;
        if !is_readable(&served) {
            served.discard().await;
            self.note(|| Step::Unable { at, because: "it did not answer with a stream that can be read" });
            return None;
        }
        let length = said.text().len();
        self.note(|| Step::Continued { at: at.clone(), said: length });
        self.decide(|decision| decision.option.clone_from(&node.path));
        Some(Rest { served, asked, at, repeated })
    }

    /// What a target is asked; an error says why it is not.
    fn asked_again(
        &self,
        node: &Node,
        target: &Target<'_>,
        (said, body): (&Said, &[u8]),
    ) -> Result<Again, &'static str> {
        match self.refusal_to_go_on(node, target) {
            Some(because) if !said.is_silent() => Err(because),
            _ => said.ask_again(body).ok_or("the request has nothing that could be gone on from"),
        }
    }

    /// Why a target does not go on from a given beginning, if so. Where that is a prompt every model does.
    pub fn refusal_to_go_on(&self, node: &Node, target: &Target<'_>) -> Option<&'static str> {
        let (provider, model) = (target.provider, &self.facts.model);
        let is_its_own = target.wire(self.call.route.operation, model).is_none();
        let known = match self.call.asked_for() {
            Operation::Complete if is_its_own => None,
            asked => provider.continuing().refusal(model, is_its_own && asked == Operation::CreateModelResponse),
        };
        node.features.recovery.refusal(known)
    }
}
