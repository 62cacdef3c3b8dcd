//! A config as it is being read: the table of its keys, and what becomes of them.

use penstock_llm::catalog::{self, Form};
use serde_json::Value;

use super::{Deployments, Node, Reading};
use crate::{
    features::{
        cache::Cache, circuit_breaker::CircuitBreaker, custom_host::CustomHost, forward_headers::ForwardHeaders,
        inspect_stream::InspectStream, recovery::Recovery, retry::Retry, strict::Strict, timeout::RequestTimeout,
    },
    process::secret::Secret,
    routing::{
        Strategy,
        conditional::{self, Conditional},
        fallback::Fallback,
        hedge::Hedge,
        loadbalance::{LoadBalance, Sticky},
    },
};

/// A target as it is being read, with what becomes its strategy.
pub(crate) struct Draft {
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
    hedge: Option<Hedge>,
    circuit_breaker: CircuitBreaker,
    /// Keys that were there, and the mode that they belong to.
    beside: Vec<(String, Mode)>,
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
pub(crate) struct Field {
    pub key: &'static str,
    pub schema: &'static str,
    read: fn(&mut Draft, &Value, &mut Reading),
}

/// Keys of the schema that this engine does not act on yet. Obeying half of a config would be worse than refusing it.
const NOT_YET: &[&str] = &[
    "prompt_id",
    "before_request_hooks",
    "after_request_hooks",
    "input_guardrails",
    "output_guardrails",
    "input_mutators",
    "output_mutators",
];

/// Every key, in the order of the documentation.
pub(crate) const FIELDS: &[Field] = &[
    Field {
        key: "strategy",
        schema: r##"{"type":"object","description":"how one of several targets is chosen","required":["mode"],"additionalProperties":false,"properties":{
        "mode":{"enum":["single","fallback","loadbalance","conditional"]},
        "on_status_codes":{"$ref":"#/$defs/statuses","description":"fallback: the statuses below 500 after which the next target is tried; default: all but 2xx"},
        "conditions":{"type":"array","items":{"type":"object","required":["query","then"],"additionalProperties":false,"properties":{
            "query":{"$ref":"#/$defs/query"},"then":{"$ref":"#/$defs/text","description":"name of a target"}}}},
        "default":{"$ref":"#/$defs/text","description":"name of the target where no condition holds"},
        "sticky":{"$ref":"#/$defs/sticky"},
        "sticky_session":{"$ref":"#/$defs/sticky","description":"another name of `sticky`"},
        "hedge":{"type":"object","additionalProperties":false,"description":"fallback: the second target is asked too where the first has not answered in this time",
            "anyOf":[{"required":["after_ms"]},{"required":["percentile"]}],"properties":{
            "after_ms":{"type":"integer","minimum":1,"description":"milliseconds; beside `percentile` for as long as too little is known"},
            "percentile":{"type":"number","minimum":50,"maximum":99.9,"description":"of the times in which the first target answered lately"},
            "max_ratio":{"type":"number","minimum":0,"maximum":1,"default":0.1,"description":"share of the requests that may be sent twice"}}},
        "cb_config":{"$ref":"#/$defs/cb_config"}},
        "allOf":[{"if":{"required":["hedge"]},"then":{"properties":{"mode":{"const":"fallback"}}}},
            {"if":{"anyOf":[{"required":["sticky"]},{"required":["sticky_session"]}]},"then":{"properties":{"mode":{"const":"loadbalance"}}}},
            {"if":{"anyOf":[{"required":["conditions"]},{"required":["default"]}]},"then":{"properties":{"mode":{"const":"conditional"}}}}]}"##,
        read: |draft, value, reading| draft.strategy = Some(StrategyDraft::read(value, reading)),
    },
    Field {
        key: "targets",
        schema: r##"{"type":"array","minItems":1,"items":{"$ref":"#/$defs/config"},"description":"each a target, or a config of its own"}"##,
        read: |draft, value, reading| draft.read_targets(value, reading),
    },
    Field {
        key: "name",
        schema: r##"{"$ref":"#/$defs/text","description":"by which conditions name a target"}"##,
        read: |draft, value, reading| draft.target.name = reading.text(value),
    },
    Field {
        key: "provider",
        schema: r##"{"$ref":"#/$defs/provider","description":"a provider, or `@slug` of a saved one"}"##,
        read: |draft, value, reading| draft.target.provider = provider(value, reading),
    },
    Field {
        key: "virtual_key",
        schema: r##"{"$ref":"#/$defs/text","description":"slug of a saved provider"}"##,
        read: |draft, value, reading| draft.virtual_key = reading.text(value),
    },
    Field {
        key: "api_key",
        schema: r##"{"$ref":"#/$defs/text","description":"the provider's credential"}"##,
        read: |draft, value, reading| draft.target.api_key = reading.text(value).map(Secret::new),
    },
    Field {
        key: "passthrough",
        schema: r#"{"type":"boolean","description":"the request names the saved provider: `@slug` in x-gateway-provider, or `@slug/model` as model"}"#,
        read: |draft, value, reading| draft.target.passthrough = reading.boolean(value).unwrap_or_default(),
    },
    Field {
        key: "deployments",
        schema: r##"{"type":"array","maxItems":200,"description":"deployments of an Azure resource by the models that they are asked for by",
        "items":{"type":"object","required":["deployment_id","alias","api_version"],"additionalProperties":false,"properties":{
            "deployment_id":{"$ref":"#/$defs/text"},"alias":{"$ref":"#/$defs/text"},"api_version":{"$ref":"#/$defs/text"},
            "is_default":{"type":"boolean","description":"for models that none has as its alias"}}},
        "contains":{"properties":{"is_default":{"const":true}},"required":["is_default"]},"minContains":0,"maxContains":1}"##,
        read: |draft, value, reading| draft.target.deployments = Deployments::parse(value, reading),
    },
    Field {
        key: "fetch_integrated_models",
        schema: r#"{"type":"boolean","description":"a list of models is that of the catalogue"}"#,
        read: |draft, value, reading| {
            draft.target.fetch_integrated_models = reading.boolean(value).unwrap_or_default();
        },
    },
    Field {
        key: "weight",
        schema: r#"{"type":"number","minimum":0,"default":1,"description":"share among the targets of a loadbalance; 0 is never chosen"}"#,
        read: |draft, value, reading| draft.target.weight = reading.number(value).unwrap_or(1.0),
    },
    Field {
        key: "on_status_codes",
        schema: r##"{"$ref":"#/$defs/statuses","description":"older place of strategy.on_status_codes"}"##,
        read: |draft, value, reading| draft.statuses = reading.statuses(value),
    },
    Field {
        key: "cache",
        schema: r#"{"oneOf":[{"const":"simple"},{"type":"object","required":["mode"],"additionalProperties":false,"properties":{"mode":{"const":"simple"},
        "max_age":{"type":"integer","minimum":60,"maximum":7776000,"default":604800,"description":"seconds"}}}]}"#,
        read: |draft, value, reading| draft.target.features.cache = Cache::parse(value, reading),
    },
    Field {
        key: "cb_config",
        schema: r##"{"$ref":"#/$defs/cb_config"}"##,
        read: |draft, value, reading| draft.target.features.circuit_breaker = CircuitBreaker::parse(value, reading),
    },
    Field {
        key: "custom_host",
        schema: r##"{"$ref":"#/$defs/text","format":"uri","description":"a privately hosted endpoint in the place of the provider's"}"##,
        read: |draft, value, reading| draft.target.features.custom_host = CustomHost::parse(value, reading),
    },
    Field {
        key: "forward_headers",
        schema: r##"{"type":"array","items":{"$ref":"#/$defs/text"},"description":"header fields of the caller that go on to the provider"}"##,
        read: |draft, value, reading| draft.target.features.forward_headers = ForwardHeaders::parse(value, reading),
    },
    Field {
        key: "anthropic_inspect_stream_for_overloaded_error",
        schema: r#"{"type":"boolean","description":"an overloaded error as the first event of a stream becomes status 529"}"#,
        read: |draft, value, reading| draft.target.features.inspect_stream = InspectStream::parse(value, reading),
    },
    Field {
        key: "default_params",
        schema: r#"{"type":"object","description":"fields that are set where the caller did not"}"#,
        read: |draft, value, reading| draft.target.features.parameters.set_defaults(value, reading),
    },
    Field {
        key: "override_params",
        schema: r#"{"type":"object","description":"fields that are set"}"#,
        read: |draft, value, reading| draft.target.features.parameters.set_overrides(value, reading),
    },
    Field {
        key: "drop_params",
        schema: r##"{"type":"array","items":{"$ref":"#/$defs/text"},"description":"paths of what is removed, such as tools[*].function.strict"}"##,
        read: |draft, value, reading| draft.target.features.parameters.set_drops(value, reading),
    },
    Field {
        key: "request_timeout",
        schema: r#"{"type":"integer","minimum":1,"description":"milliseconds until the first byte of an answer"}"#,
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
        key: "recovery",
        schema: r##"{"description":"what becomes of a stream that breaks off: an error event, or it is held until it is whole, or continued by a target that can",
        "default":"off","oneOf":[{"$ref":"#/$defs/recovery"},{"type":"object","required":["mode"],"additionalProperties":false,"properties":{"mode":{"$ref":"#/$defs/recovery"},
        "prefill":{"type":"boolean","description":"whether this target goes on from the beginning of an answer; default: what is known of its model"}}}]}"##,
        read: |draft, value, reading| draft.target.features.recovery = Recovery::parse(value, reading),
    },
    Field {
        key: "strict_open_ai_compliance",
        schema: r#"{"type":"boolean","default":true,"description":"keep strictly to OpenAI's shapes"}"#,
        read: |draft, value, reading| draft.target.features.strict = Strict::parse(value, reading),
    },
];

impl Draft {
    pub fn read(value: &Value, path: String, reading: &mut Reading) -> Node {
        let target = Node { path: path.into(), weight: 1.0, ..Node::default() };
        let mut draft = Self { target, strategy: None, virtual_key: None, statuses: Vec::new() };
        reading.keys(value, |reading, key, value| draft.take(key, value, reading));
        draft.finish(reading)
    }

    fn take(&mut self, key: &str, value: &Value, reading: &mut Reading) -> bool {
        if let Some(field) = FIELDS.iter().find(|field| field.key == key) {
            (field.read)(self, value, reading);
        } else if let Some(option) = catalog::option(key) {
            let text = match option.form() {
                Form::Line => reading.text(value),
                Form::Lines => reading.lines(value),
                Form::Document => reading.document(value),
                Form::Flag => reading.flag(value),
            };
            if let Some(text) = text {
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
            let saved = format!("@{slug}");
            if reading.tells()
                && target.provider.as_ref().is_some_and(|other| other.starts_with('@') && *other != saved)
            {
                let refuse = |reading: &mut Reading| reading.refuse("names another saved provider than `provider`");
                reading.within("virtual_key", refuse);
            }
            target.provider = Some(saved);
        }
        if reading.tells() && target.passthrough && !target.targets.is_empty() {
            let refuse =
                |reading: &mut Reading| reading.refuse("must not stand beside `targets`: each says it for itself");
            reading.within("passthrough", refuse);
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

/// A provider's name. One that nobody has may be known to a later version, but not to who saves it now.
fn provider(value: &Value, reading: &mut Reading) -> Option<String> {
    let name = reading.text(value)?;
    let is_known = || name.strip_prefix('@').map_or_else(|| catalog::find(&name).is_some(), |slug| !slug.is_empty());
    if reading.tells() && !is_known() {
        reading.expected("the name of a provider (docs/providers.md), or `@slug` of a saved one", value);
    }
    Some(name)
}

impl StrategyDraft {
    fn read(value: &Value, reading: &mut Reading) -> Self {
        let mut draft = Self::default();
        reading.keys(value, |reading, key, value| {
            if let Some((_, mode)) = BESIDE.iter().find(|(known, _)| *known == key) {
                draft.beside.push((key.to_owned(), *mode));
            }
            match key {
                "mode" => draft.mode = mode(value, reading),
                "on_status_codes" => draft.statuses = reading.statuses(value),
                "conditions" => draft.conditional.set_conditions(value, reading),
                "default" => draft.conditional.set_default(value, reading),
                "sticky" | "sticky_session" => draft.sticky = Sticky::parse(value, reading),
                "cb_config" => draft.circuit_breaker = CircuitBreaker::parse(value, reading),
                "hedge" => draft.hedge = Hedge::parse(value, reading),
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
        if self.hedge.is_some() && self.mode != Some(Mode::Fallback) {
            let refuse = |reading: &mut Reading| reading.refuse("needs mode `fallback`: it says which target is next");
            reading.within("strategy", |reading| reading.within("hedge", refuse));
        }
        reading.within("strategy", |reading| self.tell_of_idle(reading));
        // Targets take it from their strategy, and that from the ones around it.
        self.circuit_breaker.inherit(&target.features.circuit_breaker);
        target.features.circuit_breaker = self.circuit_breaker;
        if self.statuses.is_empty() {
            self.statuses = statuses;
        }
        target.strategy = match self.mode {
            None | Some(Mode::Single) => Strategy::Single,
            Some(Mode::Fallback) => Strategy::Fallback(Fallback { statuses: self.statuses, hedge: self.hedge }),
            Some(Mode::LoadBalance) => Strategy::LoadBalance(balance(target, self.sticky, reading)),
            Some(Mode::Conditional) => Strategy::Conditional(conditions(&target.targets, self.conditional, reading)),
        };
    }
}

/// Keys of a strategy that mean something beside one mode alone.
const BESIDE: [(&str, Mode); 4] = [
    ("conditions", Mode::Conditional),
    ("default", Mode::Conditional),
    ("sticky", Mode::LoadBalance),
    ("sticky_session", Mode::LoadBalance),
];

impl StrategyDraft {
    /// Says what the mode makes nothing of, and what it lacks.
    fn tell_of_idle(&self, reading: &mut Reading) {
        let Some(own) = self.mode.filter(|_| reading.tells()) else { return };
        for (key, mode) in self.beside.iter().filter(|(_, mode)| *mode != own) {
            let name = if *mode == Mode::LoadBalance { "loadbalance" } else { "conditional" };
            reading.within(key, |reading| reading.refuse(format!("needs mode `{name}`: others make nothing of it")));
        }
        if own == Mode::Conditional && !self.conditional.has_default() {
            reading.refuse("needs `default`, the name of the target where no condition holds");
        }
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

fn balance(group: &Node, sticky: Option<Sticky>, reading: &mut Reading) -> LoadBalance {
    let weights = group.targets.iter().map(|target| (target.name.as_deref(), target.weight));
    let balance = LoadBalance::new(&group.path, weights, sticky);
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
