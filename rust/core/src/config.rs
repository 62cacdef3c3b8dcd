//! A routing config: parsed, checked and compiled in one place, for requests, for saving and for `penstock check`.

mod reading;
pub mod schema;

use penstock_llm::providers::{self, Options};
use serde_json::Value;

pub use reading::{Reading, Unknown};

use crate::{
    error::Problem,
    features::{
        cache::Cache, circuit_breaker::CircuitBreaker, custom_host::CustomHost, forward_headers::ForwardHeaders,
        inspect_stream::InspectStream, parameters::Parameters, retry::Retry, strict::Strict, timeout::RequestTimeout,
    },
    routing::{
        Strategy,
        conditional::{self, Conditional},
        fallback::Fallback,
        loadbalance::{LoadBalance, Sticky},
    },
    secret::Secret,
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
        let root = Node { path: "config".to_owned(), weight: 1.0, ..Node::default() };
        Self { root, params: Vec::new(), is_plain: true, sizes: Sizes::default() }
    }
}

/// A target, or a group of targets with a strategy between them. What it inherits is already in it.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Such as `config.targets[0]`.
    pub path: String,
    pub name: Option<String>,
    pub provider: Option<String>,
    pub api_key: Option<Secret>,
    /// The request itself says which saved provider is meant.
    pub passthrough: bool,
    /// What the provider is told besides a credential.
    pub options: Options,
    pub features: Features,
    pub strategy: Strategy,
    pub targets: Vec<Self>,
    weight: f64,
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
        request_timeout.inherit(&parent.request_timeout);
        retry.inherit(&parent.retry);
        strict.inherit(&parent.strict);
    }

    /// Whether the one attempt at a target is all there is to it.
    fn is_plain(&self) -> bool {
        let Self { cache, circuit_breaker, parameters, retry, .. } = self;
        *cache == Cache::default()
            && circuit_breaker.policy().is_none()
            && parameters.is_none()
            && retry.attempts() == 0
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

#[derive(Debug, Clone, Copy, Default)]
struct Sizes {
    root: usize,
    is_conditional: bool,
    /// The most below one target of the root, and which that is.
    nested: (usize, usize),
}

impl Config {
    /// Parses, checks and compiles a config; every problem at once.
    pub fn parse(json: &[u8], unknown: Unknown) -> Result<Self, Vec<Problem>> {
        let value: Value = serde_json::from_slice(json)
            .map_err(|error| vec![Problem::new("$", format!("must be valid JSON: {error}"))])?;
        let mut reading = Reading::new(unknown);
        let mut root = Draft::read(&value, "config".to_owned(), &mut reading);
        if root.passthrough {
            refuse_beside_passthrough(&value, &mut reading);
        }
        let params = reading.end()?;
        root.bequeath();
        let is_plain = root.targets.is_empty() && !root.passthrough && root.features.is_plain();
        let below = root.targets.iter().map(Node::count_below).enumerate().map(|(index, count)| (count, index));
        let sizes = Sizes {
            root: root.targets.len(),
            is_conditional: matches!(root.strategy, Strategy::Conditional(_)),
            nested: below.max().unwrap_or_default(),
        };
        Ok(Self { root, params, is_plain, sizes })
    }

    /// Refuses more targets than are allowed here.
    pub fn check(&self, limits: TargetLimits) -> Result<(), Vec<Problem>> {
        let Sizes { root, is_conditional, nested: (nested, index) } = self.sizes;
        let most = if is_conditional { limits.conditional } else { limits.root };
        let mut problems = Vec::new();
        if root > most {
            problems.push(Problem::new("$.targets", format!("must hold at most {most} targets, not {root}")));
        }
        if nested > limits.nested {
            let message = format!("must hold at most {} targets below it, not {nested}", limits.nested);
            problems.push(Problem::new(format!("$.targets[{index}]"), message));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

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
    }

    fn count_below(&self) -> usize {
        self.targets.iter().map(|target| 1 + target.count_below()).sum()
    }
}

/// A target as it is being read, with what becomes its strategy.
struct Draft {
    target: Node,
    strategy: Option<StrategyDraft>,
    virtual_key: Option<String>,
    /// The place of statuses in older configs.
    statuses: Vec<u16>,
}

#[derive(Default)]
struct StrategyDraft {
    mode: Option<Mode>,
    statuses: Vec<u16>,
    conditional: conditional::Draft,
    sticky: Option<Sticky>,
    circuit_breaker: CircuitBreaker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Single,
    Fallback,
    LoadBalance,
    Conditional,
}

const MODES: &str = "`single`, `fallback`, `loadbalance` or `conditional`";

/// A key of a config: what it may hold, as JSON Schema, and what reads it.
struct Field {
    key: &'static str,
    schema: &'static str,
    read: fn(&mut Draft, &Value, &mut Reading),
}

/// Keys of the schema that this engine does not act on yet. Obeying half of a config would be worse than refusing it.
const NOT_YET: &[&str] = &[
    "deployments",
    "prompt_id",
    "before_request_hooks",
    "after_request_hooks",
    "input_guardrails",
    "output_guardrails",
    "input_mutators",
    "output_mutators",
    "fetch_integrated_models",
    "recovery",
];

/// Every key, in the order of the documentation.
const FIELDS: &[Field] = &[
    Field {
        key: "strategy",
        schema: r##"{"type":"object","description":"how one of several targets is chosen","required":["mode"],"additionalProperties":false,"properties":{
        "mode":{"enum":["single","fallback","loadbalance","conditional"]},
        "on_status_codes":{"$ref":"#/$defs/statuses","description":"fallback: the statuses below 500 after which the next target is tried; default: all but 2xx"},
        "conditions":{"type":"array","items":{"type":"object","required":["query","then"],"additionalProperties":false,"properties":{
            "query":{"$ref":"#/$defs/query"},"then":{"type":"string","description":"name of a target"}}}},
        "default":{"type":"string","description":"name of the target where no condition holds"},
        "sticky":{"type":"object","required":["hash_fields"],"additionalProperties":false,"properties":{"enabled":{"type":"boolean","default":true},
            "hash_fields":{"type":"array","items":{"type":"string"},"description":"such as metadata.user_id: requests that agree in them go to the same target"},
            "ttl":{"type":"integer","minimum":1,"default":3600,"description":"seconds for which that holds at least"}}},
        "cb_config":{"$ref":"#/$defs/cb_config"}}}"##,
        read: |draft, value, reading| draft.strategy = Some(StrategyDraft::read(value, reading)),
    },
    Field {
        key: "targets",
        schema: r##"{"type":"array","minItems":1,"items":{"$ref":"#/$defs/config"},"description":"each a target, or a config of its own"}"##,
        read: |draft, value, reading| draft.read_targets(value, reading),
    },
    Field {
        key: "name",
        schema: r##"{"type":"string","description":"by which conditions name a target"}"##,
        read: |draft, value, reading| draft.target.name = reading.text(value),
    },
    Field {
        key: "provider",
        schema: r##"{"type":"string","description":"a provider, or `@slug` of a saved one"}"##,
        read: |draft, value, reading| draft.target.provider = reading.text(value),
    },
    Field {
        key: "virtual_key",
        schema: r##"{"type":"string","description":"slug of a saved provider"}"##,
        read: |draft, value, reading| draft.virtual_key = reading.text(value),
    },
    Field {
        key: "api_key",
        schema: r##"{"type":"string","description":"the provider's credential"}"##,
        read: |draft, value, reading| draft.target.api_key = reading.text(value).map(Secret::new),
    },
    Field {
        key: "passthrough",
        schema: r##"{"type":"boolean","description":"the request names the saved provider: `@slug` in x-gateway-provider, or `@slug/model` as model"}"##,
        read: |draft, value, reading| draft.target.passthrough = reading.boolean(value).unwrap_or_default(),
    },
    Field {
        key: "weight",
        schema: r##"{"type":"number","minimum":0,"default":1,"description":"share among the targets of a loadbalance; 0 is never chosen"}"##,
        read: |draft, value, reading| draft.target.weight = reading.number(value).unwrap_or(1.0),
    },
    Field {
        key: "on_status_codes",
        schema: r##"{"$ref":"#/$defs/statuses","description":"older place of strategy.on_status_codes"}"##,
        read: |draft, value, reading| draft.statuses = reading.statuses(value),
    },
    Field {
        key: "cache",
        schema: r##"{"oneOf":[{"const":"simple"},{"type":"object","required":["mode"],"additionalProperties":false,"properties":{"mode":{"const":"simple"},
        "max_age":{"type":"integer","minimum":60,"maximum":7776000,"default":604800,"description":"seconds"}}}]}"##,
        read: |draft, value, reading| draft.target.features.cache = Cache::parse(value, reading),
    },
    Field {
        key: "cb_config",
        schema: r##"{"$ref":"#/$defs/cb_config"}"##,
        read: |draft, value, reading| draft.target.features.circuit_breaker = CircuitBreaker::parse(value, reading),
    },
    Field {
        key: "custom_host",
        schema: r##"{"type":"string","format":"uri","description":"a privately hosted endpoint in the place of the provider's"}"##,
        read: |draft, value, reading| draft.target.features.custom_host = CustomHost::parse(value, reading),
    },
    Field {
        key: "forward_headers",
        schema: r##"{"type":"array","items":{"type":"string"},"description":"header fields of the caller that go on to the provider"}"##,
        read: |draft, value, reading| draft.target.features.forward_headers = ForwardHeaders::parse(value, reading),
    },
    Field {
        key: "anthropic_inspect_stream_for_overloaded_error",
        schema: r##"{"type":"boolean","description":"an overloaded error as the first event of a stream becomes status 529"}"##,
        read: |draft, value, reading| draft.target.features.inspect_stream = InspectStream::parse(value, reading),
    },
    Field {
        key: "default_params",
        schema: r##"{"type":"object","description":"fields that are set where the caller did not"}"##,
        read: |draft, value, reading| draft.target.features.parameters.set_defaults(value, reading),
    },
    Field {
        key: "override_params",
        schema: r##"{"type":"object","description":"fields that are set"}"##,
        read: |draft, value, reading| draft.target.features.parameters.set_overrides(value, reading),
    },
    Field {
        key: "drop_params",
        schema: r##"{"type":"array","items":{"type":"string"},"description":"paths of what is removed, such as tools[*].function.strict"}"##,
        read: |draft, value, reading| draft.target.features.parameters.set_drops(value, reading),
    },
    Field {
        key: "request_timeout",
        schema: r##"{"type":"integer","minimum":1,"description":"milliseconds until the first byte of an answer"}"##,
        read: |draft, value, reading| draft.target.features.request_timeout = RequestTimeout::parse(value, reading),
    },
    Field {
        key: "retry",
        schema: r##"{"type":"object","required":["attempts"],"additionalProperties":false,"properties":{"attempts":{"type":"integer","minimum":0,"maximum":5},
        "on_status_codes":{"$ref":"#/$defs/statuses","default":[429,500,502,503,504,529]},
        "use_retry_after_header":{"type":"boolean","default":false},"use_retry_after_headers":{"type":"boolean","default":false}}}"##,
        read: |draft, value, reading| draft.target.features.retry = Retry::parse(value, reading),
    },
    Field {
        key: "strict_open_ai_compliance",
        schema: r##"{"type":"boolean","default":true,"description":"keep strictly to OpenAI's shapes"}"##,
        read: |draft, value, reading| draft.target.features.strict = Strict::parse(value, reading),
    },
];

impl Draft {
    fn read(value: &Value, path: String, reading: &mut Reading) -> Node {
        let target = Node { path, weight: 1.0, ..Node::default() };
        let mut draft = Self { target, strategy: None, virtual_key: None, statuses: Vec::new() };
        reading.keys(value, |reading, key, value| draft.take(key, value, reading));
        draft.finish(reading)
    }

    fn take(&mut self, key: &str, value: &Value, reading: &mut Reading) -> bool {
        if let Some(field) = FIELDS.iter().find(|field| field.key == key) {
            (field.read)(self, value, reading);
        } else if let Some(option) = providers::option(key) {
            if let Some(text) = reading.text(value) {
                self.target.options.put(option, text);
            }
        } else if NOT_YET.contains(&key) {
            reading.refuse("is not available in this version");
        } else if key == "options" {
            reading.refuse("belongs to a version that is no longer read: use targets");
        } else {
            return false;
        }
        true
    }

    fn read_targets(&mut self, value: &Value, reading: &mut Reading) {
        let mut index = 0;
        self.target.targets = reading.items(value, "an array of targets", |reading, item| {
            let path = format!("{}.targets[{index}]", self.target.path);
            index += 1;
            Some(Self::read(item, path, reading))
        });
        if value.as_array().is_some_and(Vec::is_empty) {
            reading.refuse("must hold at least one target");
        }
    }

    fn finish(self, reading: &mut Reading) -> Node {
        let Self { mut target, strategy, virtual_key, statuses } = self;
        if let Some(slug) = virtual_key {
            target.provider = Some(format!("@{slug}"));
        }
        if target.passthrough && target.provider.is_some() {
            reading.refuse("must not name a provider beside `passthrough`: the request does");
        }
        match (strategy, target.targets.len()) {
            (Some(strategy), _) => strategy.finish(&mut target, statuses, reading),
            (None, 0 | 1) => (),
            (None, _) => reading.refuse(format!("needs a `strategy` between its targets: {MODES}")),
        }
        target
    }
}

impl StrategyDraft {
    fn read(value: &Value, reading: &mut Reading) -> Self {
        let mut draft = Self::default();
        reading.keys(value, |reading, key, value| {
            match key {
                "mode" => draft.mode = mode(value, reading),
                "on_status_codes" => draft.statuses = reading.statuses(value),
                "conditions" => draft.conditional.set_conditions(value, reading),
                "default" => draft.conditional.set_default(value, reading),
                "sticky" | "sticky_session" => draft.sticky = Sticky::parse(value, reading),
                "cb_config" => draft.circuit_breaker = CircuitBreaker::parse(value, reading),
                "hedge" => reading.refuse("is not available in this version"),
                _ => return false,
            }
            true
        });
        if value.is_object() && value.get("mode").is_none() {
            reading.refuse(format!("needs `mode`: {MODES}"));
        }
        draft
    }

    fn finish(mut self, target: &mut Node, statuses: Vec<u16>, reading: &mut Reading) {
        let is_group = !target.targets.is_empty();
        if !is_group && self.mode.is_some_and(|mode| mode != Mode::Single) {
            reading.within("strategy", |reading| reading.refuse("needs `targets` beside it"));
            return;
        }
        // Targets take it from their strategy, and that from the ones around it.
        self.circuit_breaker.inherit(&target.features.circuit_breaker);
        target.features.circuit_breaker = self.circuit_breaker;
        if self.statuses.is_empty() {
            self.statuses = statuses;
        }
        target.strategy = match self.mode {
            None | Some(Mode::Single) => Strategy::Single,
            Some(Mode::Fallback) => Strategy::Fallback(Fallback { statuses: self.statuses }),
            Some(Mode::LoadBalance) => Strategy::LoadBalance(balance(&target.targets, self.sticky, reading)),
            Some(Mode::Conditional) => Strategy::Conditional(conditions(&target.targets, self.conditional, reading)),
        };
    }
}

fn mode(value: &Value, reading: &mut Reading) -> Option<Mode> {
    let mode = match value.as_str() {
        Some("single") => Some(Mode::Single),
        Some("fallback") => Some(Mode::Fallback),
        Some("loadbalance") => Some(Mode::LoadBalance),
        Some("conditional") => Some(Mode::Conditional),
        _ => None,
    };
    if mode.is_none() {
        reading.expected(MODES, value);
    }
    mode
}

fn balance(targets: &[Node], sticky: Option<Sticky>, reading: &mut Reading) -> LoadBalance {
    let weights = targets.iter().map(|target| (target.name.as_deref(), target.weight));
    let balance = LoadBalance::new(weights, sticky);
    if balance.total() <= 0.0 {
        reading.within("targets", |reading| reading.refuse("needs one target with a weight above 0"));
    }
    balance
}

fn conditions(targets: &[Node], draft: conditional::Draft, reading: &mut Reading) -> Conditional {
    let names = targets.iter().map(|target| target.name.as_deref());
    reading.within("strategy", |reading| {
        if draft.is_empty() {
            reading.refuse("needs `conditions` and `default`");
        }
        draft.resolve(names, reading)
    })
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
        assert_eq!(deep.path, "config.targets[1].targets[0]");
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
        for value in [
            json!({"input_guardrails": []}),
            json!({"recovery": "hold"}),
            json!({"strategy": {"mode": "single", "hedge": {}}}),
        ] {
            assert!(problems(&value)[0].ends_with("is not available in this version"), "{value}");
            assert!(Config::parse(value.to_string().as_bytes(), Unknown::Ignored).is_err());
        }
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
