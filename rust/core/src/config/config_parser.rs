//! Config parser. Holds the table of config keys and builds the config tree from them.

use penstock_llm::catalog::{self, ValueFormat};
use serde_json::Value;

use super::{ConfigReader, Deployments, Node};
use crate::{
    features::{
        cache::CachePolicy, circuit_breaker::CircuitBreaker, custom_host::CustomHost, forward_headers::ForwardHeaders,
        guardrails::GuardrailConfigKey, inspect_stream::InspectStream, recovery::Recovery, retry::Retry,
        strict::StrictCompliance, timeout::RequestTimeout,
    },
    parse::document_reader::to_snake_case,
    process::secret::Secret,
    strategies::{
        Strategy,
        conditional::{self, ConditionalRouting},
        fallback::FallbackPolicy,
        hedge::Hedge,
        loadbalance::{LoadBalancer, StickyPolicy},
    },
};

/// A config node (target, group or root) that is being parsed, with its unfinished strategy.
pub(crate) struct ConfigDraft {
    target: Node,
    strategy: Option<StrategyDraft>,
    virtual_key: Option<String>,
    /// `on_status_codes` at the location that older configs use.
    legacy_statuses: Vec<u16>,
}

#[derive(Default)]
struct StrategyDraft {
    mode: Option<StrategyMode>,
    statuses: Vec<u16>,
    conditional: conditional::ConditionalDraft,
    sticky: Option<StickyPolicy>,
    hedge: Option<Hedge>,
    circuit_breaker: CircuitBreaker,
    /// Keys that the config contained, with the strategy mode to which each belongs.
    present_mode_keys: Vec<(String, StrategyMode)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StrategyMode {
    Single,
    Fallback,
    LoadBalance,
    Conditional,
}

const MODES: &str = "`single`, `fallback`, `loadbalance` or `conditional`";

/// A config key, with its JSON Schema and the function that parses it.
pub(crate) struct ConfigKey {
    pub key: &'static str,
    pub schema: &'static str,
    parse: fn(&mut ConfigDraft, &Value, &mut ConfigReader),
}

/// Keys of the schema that this engine does not support yet. They are rejected, because obeying half of a config would
/// be worse.
const UNSUPPORTED_KEYS: &[&str] = &["prompt_id"];

/// All config keys, in the order of the documentation.
pub(crate) const CONFIG_KEYS: &[ConfigKey] = &[
    ConfigKey {
        key: "strategy",
        schema: r##"{"type":"object","description":"how one of several targets is selected","required":["mode"],"additionalProperties":false,"properties":{
        "mode":{"enum":["single","fallback","loadbalance","conditional"]},
        "on_status_codes":{"$ref":"#/$defs/statuses","description":"fallback: exactly the statuses after which the next target is tried; default: all but 2xx"},
        "conditions":{"type":"array","items":{"type":"object","required":["query","then"],"additionalProperties":false,"properties":{
            "query":{"$ref":"#/$defs/query"},"then":{"$ref":"#/$defs/text","description":"name of a target"}}}},
        "default":{"$ref":"#/$defs/text","description":"name of the target to use if no condition matches"},
        "sticky":{"$ref":"#/$defs/sticky"},
        "sticky_session":{"$ref":"#/$defs/sticky","description":"alias of `sticky`"},
        "hedge":{"type":"object","additionalProperties":false,"description":"fallback: the request is also sent to the second target if the first has not responded within this time",
            "anyOf":[{"required":["after_ms"]},{"required":["percentile"]}],"properties":{
            "after_ms":{"type":"integer","minimum":1,"description":"milliseconds; with `percentile`: used until enough response times are known"},
            "percentile":{"type":"number","minimum":50,"maximum":99.9,"description":"percentile of the recent response times of the first target"},
            "max_ratio":{"type":"number","minimum":0,"maximum":1,"default":0.1,"description":"maximum share of requests that may be sent twice"}}},
        "cb_config":{"$ref":"#/$defs/cb_config"}},
        "allOf":[{"if":{"required":["hedge"]},"then":{"properties":{"mode":{"const":"fallback"}}}},
            {"if":{"anyOf":[{"required":["sticky"]},{"required":["sticky_session"]}]},"then":{"properties":{"mode":{"const":"loadbalance"}}}},
            {"if":{"anyOf":[{"required":["conditions"]},{"required":["default"]}]},"then":{"properties":{"mode":{"const":"conditional"}}}}]}"##,
        parse: |draft, value, reading| draft.strategy = Some(StrategyDraft::parse(value, reading)),
    },
    ConfigKey {
        key: "targets",
        schema: r##"{"type":"array","minItems":1,"items":{"$ref":"#/$defs/config"},"description":"each item is a target or a nested config"}"##,
        parse: |draft, value, reading| draft.parse_targets(value, reading),
    },
    ConfigKey {
        key: "name",
        schema: r##"{"$ref":"#/$defs/text","description":"name by which conditions refer to the target"}"##,
        parse: |draft, value, reading| draft.target.name = reading.read_string(value),
    },
    ConfigKey {
        key: "provider",
        schema: r##"{"$ref":"#/$defs/provider","description":"a provider, or `@slug` of a saved one"}"##,
        parse: |draft, value, reading| draft.target.provider = parse_provider(value, reading),
    },
    ConfigKey {
        key: "virtual_key",
        schema: r##"{"$ref":"#/$defs/text","description":"slug of a saved provider"}"##,
        parse: |draft, value, reading| draft.virtual_key = reading.read_string(value),
    },
    ConfigKey {
        key: "api_key",
        schema: r##"{"$ref":"#/$defs/text","description":"the provider's credential"}"##,
        parse: |draft, value, reading| draft.target.api_key = reading.read_string(value).map(Secret::new),
    },
    ConfigKey {
        key: "passthrough",
        schema: r#"{"type":"boolean","description":"the request names the saved provider: `@slug` in x-gateway-provider, or `@slug/model` as model"}"#,
        parse: |draft, value, reading| draft.target.passthrough = reading.read_boolean(value).unwrap_or_default(),
    },
    ConfigKey {
        key: "deployments",
        schema: r##"{"type":"array","maxItems":200,"description":"deployments of an Azure resource, selected by the model that the request names",
        "items":{"type":"object","required":["deployment_id","alias","api_version"],"additionalProperties":false,"properties":{
            "deployment_id":{"$ref":"#/$defs/text"},"alias":{"$ref":"#/$defs/text"},"api_version":{"$ref":"#/$defs/text"},
            "is_default":{"type":"boolean","description":"used for models that match no alias"}}},
        "contains":{"properties":{"is_default":{"const":true}},"required":["is_default"]},"minContains":0,"maxContains":1}"##,
        parse: |draft, value, reading| draft.target.deployments = Deployments::parse(value, reading),
    },
    ConfigKey {
        key: "fetch_integrated_models",
        schema: r#"{"type":"boolean","description":"model lists come from the gateway's catalogue, not from the provider"}"#,
        parse: |draft, value, reading| {
            draft.target.fetch_integrated_models = reading.read_boolean(value).unwrap_or_default();
        },
    },
    ConfigKey {
        key: "weight",
        schema: r#"{"type":"number","minimum":0,"default":1,"description":"relative weight of the target in mode `loadbalance`; a target with 0 is never selected"}"#,
        parse: |draft, value, reading| draft.target.weight = reading.read_number(value).unwrap_or(1.0),
    },
    ConfigKey {
        key: "on_status_codes",
        schema: r##"{"$ref":"#/$defs/statuses","description":"older location of strategy.on_status_codes"}"##,
        parse: |draft, value, reading| draft.legacy_statuses = reading.read_statuses(value),
    },
    ConfigKey {
        key: "cache",
        schema: r#"{"oneOf":[{"const":"simple"},{"type":"object","required":["mode"],"additionalProperties":false,"properties":{"mode":{"const":"simple"},
        "max_age":{"type":"integer","minimum":60,"maximum":7776000,"default":604800,"description":"seconds"}}}]}"#,
        parse: |draft, value, reading| draft.target.features.cache = CachePolicy::parse(value, reading),
    },
    ConfigKey {
        key: "cb_config",
        schema: r##"{"$ref":"#/$defs/cb_config"}"##,
        parse: |draft, value, reading| draft.target.features.circuit_breaker = CircuitBreaker::parse(value, reading),
    },
    ConfigKey {
        key: "custom_host",
        schema: r##"{"$ref":"#/$defs/text","format":"uri","description":"privately hosted endpoint that replaces the provider's"}"##,
        parse: |draft, value, reading| draft.target.features.custom_host = CustomHost::parse(value, reading),
    },
    ConfigKey {
        key: "forward_headers",
        schema: r##"{"type":"array","items":{"$ref":"#/$defs/text"},"description":"header fields of the client that are forwarded to the provider"}"##,
        parse: |draft, value, reading| draft.target.features.forward_headers = ForwardHeaders::parse(value, reading),
    },
    ConfigKey {
        key: "anthropic_inspect_stream_for_overloaded_error",
        schema: r#"{"type":"boolean","description":"an overloaded error as the first event of a stream becomes status 529"}"#,
        parse: |draft, value, reading| draft.target.features.inspect_stream = InspectStream::parse(value, reading),
    },
    ConfigKey {
        key: "default_params",
        schema: r#"{"type":"object","description":"request fields that are set if the client did not set them"}"#,
        parse: |draft, value, reading| draft.target.features.parameters.set_defaults(value, reading),
    },
    ConfigKey {
        key: "override_params",
        schema: r#"{"type":"object","description":"request fields that are always set"}"#,
        parse: |draft, value, reading| draft.target.features.parameters.set_overrides(value, reading),
    },
    ConfigKey {
        key: "drop_params",
        schema: r##"{"type":"array","items":{"$ref":"#/$defs/text"},"description":"paths of request fields that are removed, such as tools[*].function.strict"}"##,
        parse: |draft, value, reading| draft.target.features.parameters.set_drops(value, reading),
    },
    ConfigKey {
        key: "drop_model_prefix",
        schema: r##"{"$ref":"#/$defs/text","description":"removed from the front of the model name, such as `anthropic/` of `anthropic/claude-sonnet-4-5`; a model without it stays as it is"}"##,
        parse: |draft, value, reading| draft.target.features.parameters.set_model_prefix(value, reading),
    },
    ConfigKey {
        key: "request_timeout",
        schema: r#"{"type":"integer","minimum":1,"description":"milliseconds until the first byte of the response"}"#,
        parse: |draft, value, reading| draft.target.features.request_timeout = RequestTimeout::parse(value, reading),
    },
    ConfigKey {
        key: "retry",
        schema: r##"{"type":"object","required":["attempts"],"additionalProperties":false,"properties":{"attempts":{"type":"integer","minimum":0,"maximum":5},
        "on_status_codes":{"$ref":"#/$defs/statuses","default":[429,500,502,503,504,529]},
        "use_retry_after_header":{"type":"boolean","default":false},"use_retry_after_headers":{"type":"boolean","default":false}}}"##,
        parse: |draft, value, reading| draft.target.features.retry = Retry::parse(value, reading),
    },
    ConfigKey {
        key: "before_request_hooks",
        schema: r##"{"$ref":"#/$defs/hooks","description":"guardrails that run before the request is sent, in the full form"}"##,
        parse: |draft, value, reading| {
            draft.target.features.guardrails.set(GuardrailConfigKey::BeforeRequestHooks, value, reading);
        },
    },
    ConfigKey {
        key: "after_request_hooks",
        schema: r##"{"$ref":"#/$defs/hooks","description":"guardrails that run after a response with status 200, in the full form"}"##,
        parse: |draft, value, reading| {
            draft.target.features.guardrails.set(GuardrailConfigKey::AfterRequestHooks, value, reading);
        },
    },
    ConfigKey {
        key: "input_guardrails",
        schema: r##"{"$ref":"#/$defs/guardrails","description":"guardrails that run before the request is sent"}"##,
        parse: |draft, value, reading| {
            draft.target.features.guardrails.set(GuardrailConfigKey::InputGuardrails, value, reading);
        },
    },
    ConfigKey {
        key: "output_guardrails",
        schema: r##"{"$ref":"#/$defs/guardrails","description":"guardrails that run after a response with status 200"}"##,
        parse: |draft, value, reading| {
            draft.target.features.guardrails.set(GuardrailConfigKey::OutputGuardrails, value, reading);
        },
    },
    ConfigKey {
        key: "input_mutators",
        schema: r##"{"$ref":"#/$defs/guardrails","description":"changes of the request before it is sent"}"##,
        parse: |draft, value, reading| {
            draft.target.features.guardrails.set(GuardrailConfigKey::InputMutators, value, reading);
        },
    },
    ConfigKey {
        key: "output_mutators",
        schema: r##"{"$ref":"#/$defs/guardrails","description":"changes of a response with status 200"}"##,
        parse: |draft, value, reading| {
            draft.target.features.guardrails.set(GuardrailConfigKey::OutputMutators, value, reading);
        },
    },
    ConfigKey {
        key: "recovery",
        schema: r##"{"description":"handling of a stream that breaks off: `off` sends an error event, `hold` buffers the stream until it is complete, `continue` resumes it at a target that supports this",
        "default":"off","oneOf":[{"$ref":"#/$defs/recovery"},{"type":"object","required":["mode"],"additionalProperties":false,"properties":{"mode":{"$ref":"#/$defs/recovery"},
        "prefill":{"type":"boolean","description":"true if this target can continue a partial response; default: known per model"}}}]}"##,
        parse: |draft, value, reading| draft.target.features.recovery = Recovery::parse(value, reading),
    },
    ConfigKey {
        key: "strict_open_ai_compliance",
        schema: r#"{"type":"boolean","default":true,"description":"responses adhere strictly to OpenAI's schema"}"#,
        parse: |draft, value, reading| draft.target.features.strict = StrictCompliance::parse(value, reading),
    },
];

impl ConfigDraft {
    pub fn parse_node(value: &Value, path: String, reading: &mut ConfigReader) -> Node {
        let target = Node { path: path.into(), weight: 1.0, ..Node::default() };
        let mut draft = Self { target, strategy: None, virtual_key: None, legacy_statuses: Vec::new() };
        reading.read_keys(value, |reading, key, value| draft.set_key(key, value, reading));
        draft.finish(reading)
    }

    fn set_key(&mut self, key: &str, value: &Value, reading: &mut ConfigReader) -> bool {
        if let Some(field) = CONFIG_KEYS.iter().find(|field| field.key == key) {
            (field.parse)(self, value, reading);
        } else if let Some(option) = catalog::find_option(key) {
            let text = match option.value_format() {
                ValueFormat::SingleLine => reading.read_string(value),
                ValueFormat::MultiLine => reading.read_multiline_string(value),
                ValueFormat::JsonObject => reading.read_json_document(value),
                ValueFormat::Boolean => reading.read_flag(value),
            };
            if let Some(text) = text {
                self.target.options.insert_if_absent(option, text);
            }
        } else if UNSUPPORTED_KEYS.contains(&key) {
            reading.report_problem("is not available in this version");
        } else if key == "options" {
            reading.report_problem("is no longer supported; use `targets`");
        } else {
            return false;
        }
        true
    }

    fn parse_targets(&mut self, value: &Value, reading: &mut ConfigReader) {
        let mut index = 0;
        self.target.targets = reading.read_items(value, "an array of targets", |reading, item| {
            let path = format!("{}.targets[{index}]", self.target.path);
            index += 1;
            Some(Self::parse_node(item, path, reading))
        });
        if value.as_array().is_some_and(Vec::is_empty) {
            reading.report_problem("must hold at least one target");
        }
    }

    fn finish(self, reading: &mut ConfigReader) -> Node {
        let Self { mut target, strategy, virtual_key, legacy_statuses: statuses } = self;
        if let Some(slug) = virtual_key {
            let saved = format!("@{slug}");
            if reading.should_lint()
                && target.provider.as_ref().is_some_and(|other| other.starts_with('@') && *other != saved)
            {
                let refuse = |reading: &mut ConfigReader| {
                    reading.report_problem("names a different saved provider than `provider`");
                };
                reading.within_key("virtual_key", refuse);
            }
            target.provider = Some(saved);
        }
        if reading.should_lint() && target.passthrough && !target.targets.is_empty() {
            let refuse = |reading: &mut ConfigReader| {
                reading.report_problem("must not be combined with `targets`; set it on each target");
            };
            reading.within_key("passthrough", refuse);
        }
        if target.passthrough && target.provider.is_some() {
            reading.report_problem("must not name a provider together with `passthrough`; the request names it");
        }
        match (strategy, target.targets.len()) {
            (Some(strategy), _) => strategy.apply_to(&mut target, statuses, reading),
            (None, 0 | 1) => (),
            (None, _) => reading.report_problem(format!("needs a `strategy` to select one of its targets: {MODES}")),
        }
        target
    }
}

/// Parses a provider name. An unknown name may belong to a later version, so it is rejected only in a config that is
/// being saved.
fn parse_provider(value: &Value, reading: &mut ConfigReader) -> Option<String> {
    let name = reading.read_string(value)?;
    let is_known =
        || name.strip_prefix('@').map_or_else(|| catalog::find_provider(&name).is_some(), |slug| !slug.is_empty());
    if reading.should_lint() && !is_known() {
        reading.report_expected("the name of a provider (docs/providers.md), or `@slug` of a saved one", value);
    }
    Some(name)
}

impl StrategyDraft {
    fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        let mut draft = Self::default();
        reading.read_keys(value, |reading, key, value| {
            if let Some((_, mode)) = MODE_SPECIFIC_KEYS.iter().find(|(mode_key, _)| *mode_key == key) {
                draft.present_mode_keys.push((key.to_owned(), *mode));
            }
            match key {
                "mode" => draft.mode = parse_mode(value, reading),
                "on_status_codes" => draft.statuses = reading.read_statuses(value),
                "conditions" => draft.conditional.set_conditions(value, reading),
                "default" => draft.conditional.set_default_target(value, reading),
                "sticky" | "sticky_session" => draft.sticky = StickyPolicy::parse(value, reading),
                "cb_config" => draft.circuit_breaker = CircuitBreaker::parse(value, reading),
                "hedge" => draft.hedge = Hedge::parse(value, reading),
                _ => return false,
            }
            true
        });
        if value.is_object() && value.get("mode").is_none() {
            reading.report_problem(format!("needs `mode`: {MODES}"));
        }
        draft
    }

    fn apply_to(mut self, target: &mut Node, statuses: Vec<u16>, reading: &mut ConfigReader) {
        let is_group = !target.targets.is_empty();
        if !is_group && self.mode.is_some_and(|mode| mode != StrategyMode::Single) {
            reading.within_key("strategy", |reading| reading.report_problem("needs `targets`"));
            return;
        }
        if self.hedge.is_some() && self.mode != Some(StrategyMode::Fallback) {
            let refuse = |reading: &mut ConfigReader| {
                reading.report_problem("needs mode `fallback`, which defines the order of the targets");
            };
            reading.within_key("strategy", |reading| reading.within_key("hedge", refuse));
        }
        reading.within_key("strategy", |reading| self.report_unused_keys(reading));
        // Targets inherit the circuit breaker from their strategy, which inherits it from the enclosing configs.
        self.circuit_breaker.inherit(&target.features.circuit_breaker);
        target.features.circuit_breaker = self.circuit_breaker;
        if self.statuses.is_empty() {
            self.statuses = statuses;
        }
        target.strategy = match self.mode {
            None | Some(StrategyMode::Single) => Strategy::Single,
            Some(StrategyMode::Fallback) => {
                Strategy::Fallback(FallbackPolicy { failure_statuses: self.statuses, hedge: self.hedge })
            }
            Some(StrategyMode::LoadBalance) => Strategy::LoadBalance(build_load_balance(target, self.sticky, reading)),
            Some(StrategyMode::Conditional) => {
                Strategy::Conditional(build_conditional(&target.targets, self.conditional, reading))
            }
        };
    }
}

/// Strategy keys that have an effect in one mode only.
const MODE_SPECIFIC_KEYS: [(&str, StrategyMode); 4] = [
    ("conditions", StrategyMode::Conditional),
    ("default", StrategyMode::Conditional),
    ("sticky", StrategyMode::LoadBalance),
    ("sticky_session", StrategyMode::LoadBalance),
];

impl StrategyDraft {
    /// Reports keys that the mode ignores, and keys that the mode requires but the config lacks.
    fn report_unused_keys(&self, reading: &mut ConfigReader) {
        let Some(active_mode) = self.mode.filter(|_| reading.should_lint()) else { return };
        for (key, mode) in self.present_mode_keys.iter().filter(|(_, mode)| *mode != active_mode) {
            let name = if *mode == StrategyMode::LoadBalance { "loadbalance" } else { "conditional" };
            reading.within_key(key, |reading| {
                reading.report_problem(format!("needs mode `{name}`; other modes ignore it"));
            });
        }
        if active_mode == StrategyMode::Conditional && !self.conditional.has_default_target() {
            reading.report_problem("needs `default`, the name of the target to use if no condition matches");
        }
    }
}

fn parse_mode(value: &Value, reading: &mut ConfigReader) -> Option<StrategyMode> {
    let mode = match value.as_str() {
        Some("single") => Some(StrategyMode::Single),
        Some("fallback") => Some(StrategyMode::Fallback),
        Some("loadbalance") => Some(StrategyMode::LoadBalance),
        Some("conditional") => Some(StrategyMode::Conditional),
        _ => None,
    };
    if mode.is_none() {
        reading.report_expected(MODES, value);
    }
    mode
}

fn build_load_balance(group: &Node, sticky: Option<StickyPolicy>, reading: &mut ConfigReader) -> LoadBalancer {
    let weights = group.targets.iter().map(|target| (target.name.as_deref(), target.weight));
    let balance = LoadBalancer::new(&group.path, weights, sticky);
    if balance.total_weight() <= 0.0 {
        reading
            .within_key("targets", |reading| reading.report_problem("needs at least one target with a weight above 0"));
    }
    balance
}

fn build_conditional(
    targets: &[Node],
    draft: conditional::ConditionalDraft,
    reading: &mut ConfigReader,
) -> ConditionalRouting {
    let names = targets.iter().map(|target| target.name.as_deref());
    reading.within_key("strategy", |reading| {
        if draft.is_empty() {
            reading.report_problem("needs `conditions` and `default`");
        }
        draft.resolve_targets(names, reading)
    })
}

/// Keys that cannot be combined with `passthrough`.
const PASSTHROUGH_CONFLICTS: &[&str] = &[
    "targets",
    "strategy",
    "override_params",
    "before_request_hooks",
    "after_request_hooks",
    "input_guardrails",
    "output_guardrails",
    "input_mutators",
    "output_mutators",
];

pub(super) fn reject_passthrough_conflicts(value: &Value, reading: &mut ConfigReader) {
    let keys = || value.as_object().into_iter().flat_map(serde_json::Map::keys);
    for name in PASSTHROUGH_CONFLICTS {
        for key in keys().filter(|key| to_snake_case(key) == *name) {
            reading.within_key(key, |reading| reading.report_problem("cannot be combined with `passthrough`"));
        }
    }
}
