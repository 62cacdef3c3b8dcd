//! A routing config: parsed, checked and compiled in one place, for requests, for saving and for `penstock check`.

pub(crate) mod config_parser;
mod deployments;
pub(crate) mod document_reader;
pub mod schema;

use std::sync::Arc;

use penstock_llm::catalog::Options;
use serde_json::Value;

use crate::config::config_parser::Draft;
pub use crate::config::document_reader::{Reading, Unknown};
use deployments::Deployments;

use crate::{
    error::Problem,
    features::{
        cache::{self, Cache},
        circuit_breaker::CircuitBreaker,
        custom_host::CustomHost,
        forward_headers::ForwardHeaders,
        inspect_stream::InspectStream,
        parameters::Parameters,
        recovery::{self, Recovery},
        retry::Retry,
        strict::Strict,
        timeout::RequestTimeout,
    },
    ingress::route::Route,
    process::secret::Secret,
    routing::Strategy,
};

/// A config, ready to be walked.
#[derive(Debug, Clone)]
pub struct Config {
    pub root: Node,
    /// Fields of a request's JSON that its conditions ask about.
    pub params: Vec<String>,
    /// One target, one attempt, nothing changed: as good as no config.
    pub is_plain: bool,
    sizes: Sizes,
}

impl Default for Config {
    fn default() -> Self {
        let root = Node { path: "config".into(), weight: 1.0, ..Node::default() };
        Self { root, params: Vec::new(), is_plain: true, sizes: Sizes::default() }
    }
}

/// A target, or a group of targets with a strategy between them. What it inherits is already in it.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Such as `config.targets[0]`.
    pub path: Arc<str>,
    pub name: Option<String>,
    pub provider: Option<String>,
    pub api_key: Option<Secret>,
    /// The request itself says which saved provider is meant.
    pub passthrough: bool,
    /// A list of models is that of the catalogue.
    pub fetch_integrated_models: bool,
    /// What the provider is told besides a credential.
    pub options: Options,
    /// What it is told of single models.
    pub deployments: Deployments,
    pub features: Features,
    pub strategy: Strategy,
    pub targets: Vec<Self>,
    pub within: Within,
    weight: f64,
}

/// What is so of a node itself or somewhere below it: found once, when it is read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Within {
    pub has_breaker: bool,
}

/// What a target inherits from those around it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Features {
    pub cache: Cache,
    pub circuit_breaker: CircuitBreaker,
    pub custom_host: CustomHost,
    pub forward_headers: ForwardHeaders,
    pub inspect_stream: InspectStream,
    pub parameters: Parameters,
    pub recovery: Recovery,
    pub request_timeout: RequestTimeout,
    pub retry: Retry,
    pub strict: Strict,
}

impl Features {
    fn inherit(&mut self, parent: &Self) {
        // A new feature is named here or this does not compile.
        let Self {
            cache,
            circuit_breaker,
            custom_host,
            forward_headers,
            inspect_stream,
            parameters,
            recovery,
            request_timeout,
            retry,
            strict,
        } = self;
        cache.inherit(&parent.cache);
        circuit_breaker.inherit(&parent.circuit_breaker);
        custom_host.inherit(&parent.custom_host);
        forward_headers.inherit(&parent.forward_headers);
        inspect_stream.inherit(&parent.inspect_stream);
        parameters.inherit(&parent.parameters);
        recovery.inherit(&parent.recovery);
        request_timeout.inherit(&parent.request_timeout);
        retry.inherit(&parent.retry);
        strict.inherit(&parent.strict);
    }

    /// What was inherited is there once more.
    fn held(&self) -> usize {
        let Self { circuit_breaker, custom_host, forward_headers, parameters, retry, .. } = self;
        circuit_breaker.held() + custom_host.held() + forward_headers.held() + parameters.held() + retry.held()
    }

    /// Whether answers to this request are looked into: they are kept, held or gone on from. Those must not come compressed.
    pub fn read(&self, route: Route<'_>, method: &str) -> bool {
        let Self { cache, recovery, .. } = self;
        let is_wanted = *cache != Cache::default() || recovery.mode() != recovery::Mode::Off;
        is_wanted && cache::asks(route.operation, method, route.path)
    }

    /// Whether the one attempt at a target is all there is to it.
    fn is_plain(&self) -> bool {
        let Self { cache, circuit_breaker, parameters, recovery, retry, .. } = self;
        *cache == Cache::default()
            && circuit_breaker.policy().is_none()
            && parameters.is_none()
            && recovery.mode() == recovery::Mode::Off
            && !retry.is_said()
    }
}

/// How many targets a config may have.
#[derive(Debug, Clone, Copy)]
pub struct TargetLimits {
    pub root: usize,
    /// At the root of a conditional strategy.
    pub conditional: usize,
    /// Below each target of the root.
    pub nested: usize,
}

impl Default for TargetLimits {
    fn default() -> Self {
        Self { root: 100, conditional: 1000, nested: 50 }
    }
}

/// Parts of conditions that a config may have for each target that a conditional strategy may have.
const PARTS: usize = 16;

#[derive(Debug, Clone, Copy, Default)]
struct Sizes {
    root: usize,
    is_conditional: bool,
    /// The most below one target of the root, and which that is.
    nested: (usize, usize),
    /// Parts of conditions, in all.
    parts: usize,
}

impl Sizes {
    fn of(root: &Node) -> Self {
        let below = root.targets.iter().map(Node::count_below).enumerate().map(|(index, count)| (count, index));
        Self {
            root: root.targets.len(),
            is_conditional: matches!(root.strategy, Strategy::Conditional(_)),
            nested: below.max().unwrap_or_default(),
            parts: root.sum(&Node::parts),
        }
    }

    /// What is more than is allowed.
    fn excess(self, root: &Node, limits: TargetLimits) -> Vec<Problem> {
        let Self { root: own, is_conditional, nested: (nested, index), parts } = self;
        let most = if is_conditional { limits.conditional } else { limits.root };
        let mut problems = Vec::new();
        if own > most {
            problems.push(Problem::new("$.targets", format!("must hold at most {most} targets, not {own}")));
        }
        if nested > limits.nested {
            let message = format!("must hold at most {} targets below it, not {nested}", limits.nested);
            problems.push(Problem::new(format!("$.targets[{index}]"), message));
        }
        let most = limits.conditional.saturating_mul(PARTS);
        if parts > most {
            let path = root.richest().path.replacen("config", "$", 1) + ".strategy.conditions";
            let message = format!(
                "all conditions of a config may have {most} queries, operators and values in lists, not {parts}: {PARTS} for each target that a conditional strategy may have"
            );
            problems.push(Problem::new(path, message));
        }
        problems
    }
}

impl Config {
    /// Parses and compiles a config; every problem at once.
    pub fn parse(json: &[u8], unknown: Unknown) -> Result<Self, Vec<Problem>> {
        Self::within(None, json, unknown)
    }

    /// The same; where there are limits, what is more than they allow is told with everything else that is wrong.
    pub fn within(limits: Option<TargetLimits>, json: &[u8], unknown: Unknown) -> Result<Self, Vec<Problem>> {
        let value: Value = serde_json::from_slice(json)
            .map_err(|error| vec![Problem::new("$", format!("must be valid JSON: {error}"))])?;
        let mut reading = Reading::new(unknown);
        let mut root = Draft::read(&value, "config".to_owned(), &mut reading);
        if root.passthrough {
            refuse_beside_passthrough(&value, &mut reading);
        }
        if reading.tells() && value.as_object().is_some_and(|config| config.keys().all(|key| IDLE.contains(&&**key))) {
            reading.refuse("says nothing of what becomes of a request: needs a provider, targets or a feature");
        }
        let sizes = Sizes::of(&root);
        let excess = limits.map(|limits| sizes.excess(&root, limits)).unwrap_or_default();
        let params = match reading.end() {
            Ok(params) if excess.is_empty() => params,
            read => return Err(read.err().into_iter().flatten().chain(excess).collect()),
        };
        root.bequeath();
        let is_plain =
            root.targets.is_empty() && !root.passthrough && root.deployments.is_empty() && root.features.is_plain();
        Ok(Self { root, params, is_plain, sizes })
    }

    /// Refuses more than is allowed here.
    pub fn check(&self, limits: TargetLimits) -> Result<(), Vec<Problem>> {
        let problems = self.sizes.excess(&self.root, limits);
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// About so many bytes it holds, but for its texts.
    pub fn held(&self) -> usize {
        size_of::<Self>() + self.root.sum(&Node::held)
    }
}

/// Keys that do nothing by themselves.
const IDLE: [&str; 3] = ["name", "on_status_codes", "weight"];

fn refuse_beside_passthrough(value: &Value, reading: &mut Reading) {
    for key in ["targets", "strategy", "override_params", "overrideParams"] {
        if value.get(key).is_some() {
            reading.within(key, |reading| reading.refuse("must not stand beside `passthrough`"));
        }
    }
}

impl Node {
    /// Hands down what those below do not say themselves.
    fn bequeath(&mut self) {
        for target in &mut self.targets {
            target.features.inherit(&self.features);
            target.bequeath();
        }
        let is_below = self.targets.iter().any(|target| target.within.has_breaker);
        self.within = Within { has_breaker: is_below || self.features.circuit_breaker.policy().is_some() };
    }

    /// Of it and all below it.
    fn sum(&self, of: &impl Fn(&Self) -> usize) -> usize {
        of(self) + self.targets.iter().map(|target| target.sum(of)).sum::<usize>()
    }

    fn parts(&self) -> usize {
        if let Strategy::Conditional(conditional) = &self.strategy { conditional.parts() } else { 0 }
    }

    /// The one whose conditions have the most parts, of it and all below it.
    fn richest(&self) -> &Self {
        let below = self.targets.iter().map(Self::richest).max_by_key(|node| node.parts());
        below.filter(|below| below.parts() > self.parts()).unwrap_or(self)
    }

    /// Without those below it.
    fn held(&self) -> usize {
        let conditions = if let Strategy::Conditional(conditional) = &self.strategy { conditional.held() } else { 0 };
        size_of::<Self>() + self.path.len() + conditions + self.features.held()
    }

    fn count_below(&self) -> usize {
        self.targets.iter().map(|target| 1 + target.count_below()).sum()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: &Value) -> Config {
        Config::parse(value.to_string().as_bytes(), Unknown::Refused).unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    fn problems(value: &Value) -> Vec<String> {
        let problems = Config::parse(value.to_string().as_bytes(), Unknown::Refused).unwrap_err();
        problems.into_iter().map(|problem| format!("{} {}", problem.path, problem.message)).collect()
    }

    fn paths(value: &Value) -> Vec<String> {
        problems(value).iter().map(|problem| problem.split(' ').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn reads_one_provider() {
        let config = Config::parse(br#"{"provider":"openai","api_key":"sk-1","other":1}"#, Unknown::Ignored).unwrap();
        assert_eq!(config.root.provider.as_deref(), Some("openai"));
        assert_eq!(config.root.api_key, Some(Secret::new("sk-1")));
        assert!(config.is_plain && !parse(&json!({"provider": "openai", "retry": {"attempts": 1}})).is_plain);
    }

    #[test]
    fn tells_every_problem_with_its_path_in_any_nesting() {
        let found = paths(&json!({"provider": 3, "odd": 1, "strategy": {"mode": "fallback", "x": 1}, "targets": [
            {"provider": "openai", "retry": {"attempts": 9}},
            {"strategy": {"mode": "best"}, "targets": [{"weight": -1}, {"drop_params": ["a["]}]}]}));
        assert_eq!(
            found,
            [
                "$.provider",
                "$.odd",
                "$.strategy.x",
                "$.targets[0].retry.attempts",
                "$.targets[1].strategy.mode",
                "$.targets[1].targets[0].weight",
                "$.targets[1].targets[1].drop_params[0]"
            ]
        );
    }

    #[test]
    fn refuses_what_is_no_object() {
        assert_eq!(Config::parse(b"[]", Unknown::Ignored).unwrap_err()[0].path, "$");
        assert_eq!(Config::parse(b"{", Unknown::Ignored).unwrap_err()[0].path, "$");
    }

    #[test]
    fn camel_case_and_unknown_keys_are_for_inline_configs() {
        let text = br#"{"strategy":{"mode":"fallback","onStatusCodes":[429]},"targets":[{"provider":"openai","requestTimeout":5,
            "overrideParams":{"maxTokens":1}, "apiKey":"k"}],"note":1}"#;
        let config = Config::parse(text, Unknown::Ignored).unwrap();
        assert!(matches!(&config.root.strategy, Strategy::Fallback(fallback) if fallback.statuses == [429]));
        assert_eq!(config.root.targets[0].features.parameters.applied(b"{}").unwrap().unwrap(), br#"{"maxTokens":1}"#);
        assert_eq!(Config::parse(text, Unknown::Refused).unwrap_err().len(), 5);
    }

    #[test]
    fn each_target_knows_its_place_and_what_it_inherits() {
        let config = parse(&json!({"strategy": {"mode": "fallback"}, "retry": {"attempts": 2}, "targets": [
            {"provider": "a"},
            {"strategy": {"mode": "single"}, "retry": {"attempts": 1}, "targets": [{"provider": "b"}]}]}));
        let deep = &config.root.targets[1].targets[0];
        assert_eq!(&*deep.path, "config.targets[1].targets[0]");
        assert_eq!((config.root.targets[0].features.retry.attempts(), deep.features.retry.attempts()), (2, 1));
    }

    #[test]
    fn a_breaker_is_inherited_from_the_strategy() {
        let breaker = |threshold| json!({"failure_threshold": threshold, "cooldown_interval": 30_000});
        let config = parse(&json!({"strategy": {"mode": "fallback", "cb_config": breaker(1)}, "targets": [
            {"provider": "a"}, {"provider": "b", "cb_config": breaker(2)}]}));
        let policy = |index: usize| config.root.targets[index].features.circuit_breaker.policy().cloned();
        assert!(policy(0).is_some() && policy(0) != policy(1));
    }

    #[test]
    fn what_would_do_nothing_is_told_to_who_saves_it_and_to_nobody_else() {
        let group = |strategy: Value| json!({"strategy": strategy, "targets": [{"provider": "mock", "name": "a"}]});
        let sticky = json!({"hash_fields": ["metadata.user"]});
        let conditions = json!([{"query": {"metadata.a": 1}, "then": "a"}]);
        for (config, path) in [
            (json!({}), "$"),
            (json!({"name": "x", "weight": 2}), "$"),
            (group(json!({"mode": "conditional", "conditions": conditions})), "$.strategy"),
            (group(json!({"mode": "fallback", "sticky": sticky})), "$.strategy.sticky"),
            (group(json!({"mode": "single", "sticky_session": sticky})), "$.strategy.sticky_session"),
            (group(json!({"mode": "loadbalance", "conditions": conditions})), "$.strategy.conditions"),
            (group(json!({"mode": "loadbalance", "default": "a"})), "$.strategy.default"),
            (json!({"provider": "opnai"}), "$.provider"),
            (json!({"provider": "@"}), "$.provider"),
            (json!({"provider": "@one", "virtual_key": "two"}), "$.virtual_key"),
            (
                json!({"targets": [{"passthrough": true, "targets": [{"provider": "mock"}]}]}),
                "$.targets[0].passthrough",
            ),
        ] {
            let found = Config::parse(config.to_string().as_bytes(), Unknown::Told).unwrap_err();
            assert_eq!(found.iter().map(|problem| &*problem.path).collect::<Vec<_>>(), [path], "{config}");
            for unknown in [Unknown::Refused, Unknown::Ignored] {
                assert!(Config::parse(config.to_string().as_bytes(), unknown).is_ok(), "{config}");
            }
        }
        let whole = group(json!({"mode": "conditional", "conditions": conditions, "default": "a"}));
        for config in [whole, json!({"retry": {"attempts": 0}}), json!({"provider": "@mine", "virtual_key": "mine"})] {
            assert!(Config::parse(config.to_string().as_bytes(), Unknown::Told).is_ok(), "{config}");
        }
    }

    #[test]
    fn a_strategy_needs_what_it_chooses_from() {
        assert_eq!(paths(&json!({"strategy": {"mode": "fallback"}})), ["$.strategy"]);
        assert_eq!(paths(&json!({"strategy": {"mode": "fallback"}, "targets": []})), ["$.targets", "$.strategy"]);
        assert_eq!(paths(&json!({"targets": [{"provider": "a"}, {"provider": "b"}]})), ["$"]);
        assert_eq!(
            paths(&json!({"strategy": {"mode": "loadbalance"}, "targets": [{"provider": "a", "weight": 0}]})),
            ["$.targets"]
        );
        let conditional = json!({"strategy": {"mode": "conditional", "conditions": [{"query": {}, "then": "x"}], "default": "y"},
            "targets": [{"name": "z", "provider": "a"}]});
        assert_eq!(paths(&conditional), ["$.strategy.conditions[0].then", "$.strategy.default"]);
    }

    #[test]
    fn passthrough_stands_alone_at_the_root_and_among_targets_beside_what_a_target_has() {
        let alone =
            json!({"passthrough": true, "strategy": {"mode": "single"}, "override_params": {}, "targets": [{}]});
        assert_eq!(paths(&alone), ["$.targets", "$.strategy", "$.override_params"]);
        assert_eq!(paths(&json!({"passthrough": true, "provider": "openai"})), ["$"]);
        let target = json!({"passthrough": true, "override_params": {"n": 1}, "weight": 2});
        assert!(parse(&json!({"strategy": {"mode": "loadbalance"}, "targets": [target]})).root.targets[0].passthrough);
    }

    #[test]
    fn what_is_not_there_yet_is_refused_not_ignored() {
        for value in [json!({"input_guardrails": []}), json!({"prompt_id": "p"})] {
            assert!(problems(&value)[0].ends_with("is not available in this version"), "{value}");
            assert!(Config::parse(value.to_string().as_bytes(), Unknown::Ignored).is_err());
        }
    }

    #[test]
    fn too_many_parts_of_conditions_are_refused_where_most_of_them_stand() {
        let limits = TargetLimits { conditional: 2, ..TargetLimits::default() };
        let asking = |values: usize| {
            let query = json!({"params.m": {"$in": vec!["x"; values]}});
            json!({"name": "n", "provider": "a", "strategy": {"mode": "conditional", "default": "n",
                "conditions": [{"query": query, "then": "n"}]}, "targets": [{"name": "n", "provider": "a"}]})
        };
        let group = |most: usize| json!({"strategy": {"mode": "fallback"}, "targets": [asking(1), asking(most)]});
        assert_eq!(parse(&group(27)).check(limits), Ok(()));
        let refused = parse(&group(28)).check(limits).unwrap_err();
        assert_eq!(refused[0].path, "$.targets[1].strategy.conditions");
        assert!(refused[0].message.contains("32") && refused[0].message.contains("33"), "{refused:?}");
        assert!(Config::within(Some(limits), group(28).to_string().as_bytes(), Unknown::Ignored).is_err());
    }

    #[test]
    fn regular_expressions_are_bounded_in_every_config() {
        let conditions = |patterns: Vec<String>| -> Value {
            let queries = patterns.iter().map(|pattern| json!({"params.m": {"$regex": pattern}}));
            queries.map(|query| json!({"query": query, "then": "n"})).collect()
        };
        let config = |patterns| {
            json!({"strategy": {"mode": "conditional", "default": "n", "conditions": conditions(patterns)},
                "targets": [{"name": "n", "provider": "a"}]})
        };
        let at = |index: usize| format!("$.strategy.conditions[{index}].query.params.m.$regex");
        let large = config(vec!["^a".to_owned(), r"\w{20}".to_owned(), "b$".to_owned()]);
        assert_eq!(paths(&large), [at(1)]);
        assert!(Config::parse(large.to_string().as_bytes(), Unknown::Ignored).is_err());
        let many = paths(&config((0..400).map(|number| format!(r"\w+\pL{number}")).collect()));
        assert_eq!(many.len(), 1, "{many:?}");
    }

    #[test]
    fn limits_are_told_with_everything_else_that_is_wrong() {
        let limits = TargetLimits { root: 1, ..TargetLimits::default() };
        let config =
            json!({"odd": 1, "strategy": {"mode": "fallback"}, "targets": [{"provider": "a"}, {"provider": 3}]});
        let found = Config::within(Some(limits), config.to_string().as_bytes(), Unknown::Refused).unwrap_err();
        let paths: Vec<_> = found.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["$.odd", "$.targets[1].provider", "$.targets"]);
    }

    #[test]
    fn more_targets_than_allowed_are_refused_where_they_stand() {
        let limits = TargetLimits { root: 2, conditional: 3, nested: 1 };
        let many = |count: usize| vec![json!({"provider": "a", "name": "n"}); count];
        let group = |mode: &str, count| json!({"strategy": {"mode": mode, "default": "n"}, "targets": many(count)});
        let refused = |value: &Value| parse(value).check(limits).err().map(|found| found[0].path.clone());
        assert_eq!(
            (refused(&group("fallback", 2)), refused(&group("fallback", 3)).as_deref()),
            (None, Some("$.targets"))
        );
        assert_eq!(
            (refused(&group("conditional", 3)), refused(&group("conditional", 4)).as_deref()),
            (None, Some("$.targets"))
        );
        let nested =
            |count| json!({"strategy": {"mode": "fallback"}, "targets": [{"provider": "a"}, group("fallback", count)]});
        assert_eq!((refused(&nested(1)), refused(&nested(2)).as_deref()), (None, Some("$.targets[1]")));
    }
}
