//! Routing config. It is parsed, validated and compiled in one place for requests, for saving and for `penstock check`.

pub(crate) mod config_parser;
mod deployments;
mod expansion_limits;
pub mod schema;
mod target_features;

use std::sync::Arc;

use penstock_llm::catalog::Options;
use serde_json::Value;

pub use self::target_features::Features;
pub use crate::parse::document_reader::{ConfigReader, Strictness};
use crate::process::settings::TargetLimits;
use crate::{
    config::config_parser::ConfigDraft,
    error::Problem,
    features::parameters::Parameters,
    parse::{bounded_regex::Pattern, json_fault::describe_json_fault},
    process::secret::Secret,
    strategies::{Strategy, condition_input::ValueSource},
};
use deployments::Deployments;

/// Compiled routing config.
#[derive(Debug, Clone)]
pub struct Config {
    pub root: Node,
    /// Fields of the request's JSON that conditions read.
    pub condition_params: Vec<String>,
    /// True for one target, one attempt and no changes: equivalent to having no config.
    pub is_plain: bool,
    /// True if conditions match regular expressions.
    pub has_patterns: bool,
    /// True if a target has guardrails of its own, besides those of the caller.
    pub has_guardrails: bool,
    sizes: ConfigSizes,
}

impl Default for Config {
    fn default() -> Self {
        let root = Node { path: "config".into(), weight: 1.0, ..Node::default() };
        Self {
            root,
            condition_params: Vec::new(),
            is_plain: true,
            has_patterns: false,
            has_guardrails: false,
            sizes: ConfigSizes::default(),
        }
    }
}

/// Target, or group of targets with a strategy. Inherited features are already merged in.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Path in the config, such as `config.targets[0]`.
    pub path: Arc<str>,
    pub name: Option<String>,
    pub provider: Option<String>,
    pub api_key: Option<Secret>,
    /// Config key `passthrough`: the request names the saved provider, and is forwarded without changes.
    pub passthrough: bool,
    /// True if a model list comes from the catalogue.
    pub fetch_integrated_models: bool,
    /// Provider options besides the credential.
    pub options: Options,
    /// Provider options for individual models.
    pub deployments: Deployments,
    pub features: Features,
    pub strategy: Strategy,
    pub targets: Vec<Self>,
    pub subtree: SubtreeFlags,
    weight: f64,
}

/// Properties of a node and its descendants, computed once when the config is parsed.
#[derive(Debug, Clone, Copy, Default)]
pub struct SubtreeFlags {
    pub has_breaker: bool,
}

/// Number of condition parts (queries, operators and values in lists) that a config may have for each target that a
/// conditional strategy may have.
const CONDITION_PARTS_PER_TARGET: usize = 16;

#[derive(Debug, Clone, Copy, Default)]
struct ConfigSizes {
    root_targets: usize,
    is_conditional: bool,
    /// Largest number of descendants of a root target, and the index of that target.
    largest_nested: (usize, usize),
    /// Total number of condition parts.
    condition_parts: usize,
}

impl ConfigSizes {
    fn measure(root: &Node) -> Self {
        let below = root.targets.iter().map(Node::count_descendants).enumerate().map(|(index, count)| (count, index));
        Self {
            root_targets: root.targets.len(),
            is_conditional: matches!(root.strategy, Strategy::Conditional(_)),
            largest_nested: below.max().unwrap_or_default(),
            condition_parts: root.sum_subtree(&Node::count_condition_parts),
        }
    }

    /// Returns a problem for each exceeded limit.
    fn find_excess(self, root: &Node, limits: TargetLimits) -> Vec<Problem> {
        let Self { root_targets: root_count, is_conditional, largest_nested: (nested, index), condition_parts: parts } =
            self;
        let max_targets = if is_conditional { limits.max_conditional } else { limits.max_root };
        let mut problems = Vec::new();
        if root_count > max_targets {
            problems
                .push(Problem::new("$.targets", format!("must hold at most {max_targets} targets, not {root_count}")));
        }
        if nested > limits.max_nested {
            let message = format!("must hold at most {} targets below it, not {nested}", limits.max_nested);
            problems.push(Problem::new(format!("$.targets[{index}]"), message));
        }
        let maximum = limits.max_conditional.saturating_mul(CONDITION_PARTS_PER_TARGET);
        if parts > maximum {
            let path = root.node_with_most_condition_parts().path.replacen("config", "$", 1) + ".strategy.conditions";
            let message = format!(
                "all conditions of a config may have {maximum} queries, operators and values in lists, not {parts}: {CONDITION_PARTS_PER_TARGET} for each target that a conditional strategy may have"
            );
            problems.push(Problem::new(path, message));
        }
        problems
    }
}

impl Config {
    /// Parses and compiles a config; reports all problems at once.
    pub fn parse(json: &[u8], strictness: Strictness) -> Result<Self, Vec<Problem>> {
        Self::parse_with_limits(None, json, strictness)
    }

    /// Parses and compiles a config. Exceeded limits are reported together with all other problems.
    pub fn parse_with_limits(
        limits: Option<TargetLimits>,
        json: &[u8],
        strictness: Strictness,
    ) -> Result<Self, Vec<Problem>> {
        let value: Value = serde_json::from_slice(json)
            .map_err(|error| vec![Problem::new("$", format!("must be valid JSON: {}", describe_json_fault(&error)))])?;
        let mut reading = ConfigReader::new(strictness);
        let mut root = ConfigDraft::parse_node(&value, "config".to_owned(), &mut reading);
        if root.passthrough {
            config_parser::reject_passthrough_conflicts(&value, &mut reading);
        }
        if reading.should_lint()
            && value.as_object().is_some_and(|config| config.keys().all(|key| INERT_KEYS.contains(&&**key)))
        {
            reading.report_problem("has no effect on requests; needs a provider, targets or a feature");
        }
        let sizes = ConfigSizes::measure(&root);
        let mut excess = limits.map(|limits| sizes.find_excess(&root, limits)).unwrap_or_default();
        excess.extend(expansion_limits::find_expansion_excess(&root));
        excess.extend(expansion_limits::find_secrets_excess(&root));
        let params = match reading.finish() {
            Ok(params) if excess.is_empty() => params,
            read => return Err(read.err().into_iter().flatten().chain(excess).collect()),
        };
        root.propagate_features();
        let is_plain =
            root.targets.is_empty() && !root.passthrough && root.deployments.is_empty() && root.features.is_plain();
        let mut has_patterns = false;
        root.visit_patterns(&mut |_, _| has_patterns = true);
        let has_guardrails = root.sum_subtree(&|node| usize::from(!node.features.guardrails.is_empty())) > 0;
        Ok(Self { root, condition_params: params, is_plain, has_patterns, has_guardrails, sizes })
    }

    /// Rejects a config that exceeds these limits.
    pub fn check_limits(&self, limits: TargetLimits) -> Result<(), Vec<Problem>> {
        let problems = self.sizes.find_excess(&self.root, limits);
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Returns the approximate size in bytes, without strings.
    pub fn estimated_bytes(&self) -> usize {
        size_of::<Self>() + self.root.sum_subtree(&Node::estimated_bytes)
    }
}

/// Keys that have no effect on their own.
const INERT_KEYS: [&str; 3] = ["name", "on_status_codes", "weight"];

impl Node {
    /// Passes features down to targets that do not set them.
    fn propagate_features(&mut self) {
        for target in &mut self.targets {
            target.features.inherit(&self.features);
            target.propagate_features();
        }
        let is_below = self.targets.iter().any(|target| target.subtree.has_breaker);
        self.subtree = SubtreeFlags { has_breaker: is_below || self.features.circuit_breaker.policy().is_some() };
    }

    /// Returns the sum of `measure` over this node and all its descendants, each with the parameters that it inherits.
    /// `inherited` is the value of the parent of this node.
    fn sum_expanded_parameters(&self, inherited: usize, measure: &impl Fn(&Parameters) -> usize) -> usize {
        let own = inherited.saturating_add(measure(&self.features.parameters));
        let below = self.targets.iter().map(|target| target.sum_expanded_parameters(own, measure));
        below.fold(own, usize::saturating_add)
    }

    /// Returns the maximum of `measure` over the leaves below this node, each with the parameters that it inherits.
    fn max_inherited_parameters(&self, inherited: usize, measure: &impl Fn(&Parameters) -> usize) -> usize {
        let own = inherited.saturating_add(measure(&self.features.parameters));
        self.targets.iter().map(|target| target.max_inherited_parameters(own, measure)).max().unwrap_or(own)
    }

    /// Passes each pattern in the conditions of this node and its descendants to `visit`.
    pub fn visit_patterns<'n>(&'n self, visit: &mut impl FnMut(&'n Pattern, &'n ValueSource)) {
        if let Strategy::Conditional(conditional) = &self.strategy {
            conditional.visit_patterns(visit);
        }
        self.targets.iter().for_each(|target| target.visit_patterns(visit));
    }

    /// Returns the sum of a value over this node and all its descendants.
    fn sum_subtree(&self, measure: &impl Fn(&Self) -> usize) -> usize {
        measure(self) + self.targets.iter().map(|target| target.sum_subtree(measure)).sum::<usize>()
    }

    fn count_condition_parts(&self) -> usize {
        if let Strategy::Conditional(conditional) = &self.strategy { conditional.part_count() } else { 0 }
    }

    /// Returns the node whose conditions have the most parts, among this node and its descendants.
    fn node_with_most_condition_parts(&self) -> &Self {
        let below = self
            .targets
            .iter()
            .map(Self::node_with_most_condition_parts)
            .max_by_key(|node| node.count_condition_parts());
        below.filter(|below| below.count_condition_parts() > self.count_condition_parts()).unwrap_or(self)
    }

    /// Returns the approximate size in bytes, without descendants.
    fn estimated_bytes(&self) -> usize {
        let conditions =
            if let Strategy::Conditional(conditional) = &self.strategy { conditional.estimated_bytes() } else { 0 };
        size_of::<Self>() + self.path.len() + conditions + self.features.estimated_bytes()
    }

    fn count_descendants(&self) -> usize {
        self.targets.iter().map(|target| 1 + target.count_descendants()).sum()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: &Value) -> Config {
        Config::parse(value.to_string().as_bytes(), Strictness::Strict)
            .unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    fn problems(value: &Value) -> Vec<String> {
        let problems = Config::parse(value.to_string().as_bytes(), Strictness::Strict).unwrap_err();
        problems.into_iter().map(|problem| format!("{} {}", problem.path, problem.message)).collect()
    }

    fn problem_paths(value: &Value) -> Vec<String> {
        problems(value).iter().map(|problem| problem.split(' ').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn parses_a_single_provider() {
        let config =
            Config::parse(br#"{"provider":"openai","api_key":"sk-1","other":1}"#, Strictness::Lenient).unwrap();
        assert_eq!(config.root.provider.as_deref(), Some("openai"));
        assert_eq!(config.root.api_key, Some(Secret::new("sk-1")));
        assert!(config.is_plain && !parse(&json!({"provider": "openai", "retry": {"attempts": 1}})).is_plain);
    }

    #[test]
    fn reports_every_problem_with_its_path_at_any_depth() {
        let problems =
            problem_paths(&json!({"provider": 3, "odd": 1, "strategy": {"mode": "fallback", "x": 1}, "targets": [
            {"provider": "openai", "retry": {"attempts": 9}},
            {"strategy": {"mode": "best"}, "targets": [{"weight": -1}, {"drop_params": ["a["]}]}]}));
        assert_eq!(
            problems,
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
    fn rejects_json_that_is_not_an_object() {
        assert_eq!(Config::parse(b"[]", Strictness::Lenient).unwrap_err()[0].path, "$");
        assert_eq!(Config::parse(b"{", Strictness::Lenient).unwrap_err()[0].path, "$");
    }

    #[test]
    fn inline_configs_accept_camel_case_and_unknown_keys() {
        let text = br#"{"strategy":{"mode":"fallback","onStatusCodes":[429]},"targets":[{"provider":"openai","requestTimeout":5,
            "overrideParams":{"maxTokens":1}, "apiKey":"k"}],"note":1}"#;
        let config = Config::parse(text, Strictness::Lenient).unwrap();
        assert!(matches!(&config.root.strategy, Strategy::Fallback(fallback) if fallback.failure_statuses == [429]));
        assert_eq!(config.root.targets[0].features.parameters.apply(b"{}").unwrap().unwrap(), br#"{"maxTokens":1}"#);
        assert_eq!(Config::parse(text, Strictness::Strict).unwrap_err().len(), 5);
    }

    #[test]
    fn each_target_has_its_path_and_inherited_features() {
        let config = parse(&json!({"strategy": {"mode": "fallback"}, "retry": {"attempts": 2}, "targets": [
            {"provider": "a"},
            {"strategy": {"mode": "single"}, "retry": {"attempts": 1}, "targets": [{"provider": "b"}]}]}));
        let deep = &config.root.targets[1].targets[0];
        assert_eq!(&*deep.path, "config.targets[1].targets[0]");
        assert_eq!((config.root.targets[0].features.retry.max_retries(), deep.features.retry.max_retries()), (2, 1));
    }

    #[test]
    fn a_circuit_breaker_is_inherited_from_the_strategy() {
        let breaker = |threshold| json!({"failure_threshold": threshold, "cooldown_interval": 30_000});
        let config = parse(&json!({"strategy": {"mode": "fallback", "cb_config": breaker(1)}, "targets": [
            {"provider": "a"}, {"provider": "b", "cb_config": breaker(2)}]}));
        let policy = |index: usize| config.root.targets[index].features.circuit_breaker.policy().cloned();
        assert!(policy(0).is_some() && policy(0) != policy(1));
    }

    #[test]
    fn settings_without_effect_are_rejected_only_when_saving() {
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
            let problems = Config::parse(config.to_string().as_bytes(), Strictness::StrictWithLints).unwrap_err();
            assert_eq!(problems.iter().map(|problem| &*problem.path).collect::<Vec<_>>(), [path], "{config}");
            for strictness in [Strictness::Strict, Strictness::Lenient] {
                assert!(Config::parse(config.to_string().as_bytes(), strictness).is_ok(), "{config}");
            }
        }
        let complete = group(json!({"mode": "conditional", "conditions": conditions, "default": "a"}));
        for config in [complete, json!({"retry": {"attempts": 0}}), json!({"provider": "@mine", "virtual_key": "mine"})]
        {
            assert!(Config::parse(config.to_string().as_bytes(), Strictness::StrictWithLints).is_ok(), "{config}");
        }
    }

    #[test]
    fn a_strategy_requires_its_targets_and_conditions() {
        assert_eq!(problem_paths(&json!({"strategy": {"mode": "fallback"}})), ["$.strategy"]);
        assert_eq!(
            problem_paths(&json!({"strategy": {"mode": "fallback"}, "targets": []})),
            ["$.targets", "$.strategy"]
        );
        assert_eq!(problem_paths(&json!({"targets": [{"provider": "a"}, {"provider": "b"}]})), ["$"]);
        assert_eq!(
            problem_paths(&json!({"strategy": {"mode": "loadbalance"}, "targets": [{"provider": "a", "weight": 0}]})),
            ["$.targets"]
        );
        let conditional = json!({"strategy": {"mode": "conditional", "conditions": [{"query": {}, "then": "x"}], "default": "y"},
            "targets": [{"name": "z", "provider": "a"}]});
        assert_eq!(problem_paths(&conditional), ["$.strategy.conditions[0].then", "$.strategy.default"]);
    }

    #[test]
    fn passthrough_stands_alone_at_the_root_and_keeps_target_features_among_targets() {
        let alone =
            json!({"passthrough": true, "strategy": {"mode": "single"}, "override_params": {}, "targets": [{}]});
        assert_eq!(problem_paths(&alone), ["$.targets", "$.strategy", "$.override_params"]);
        assert_eq!(problem_paths(&json!({"passthrough": true, "provider": "openai"})), ["$"]);
        let target = json!({"passthrough": true, "override_params": {"n": 1}, "weight": 2});
        assert!(parse(&json!({"strategy": {"mode": "loadbalance"}, "targets": [target]})).root.targets[0].passthrough);
    }

    #[test]
    fn unavailable_features_are_rejected_not_ignored() {
        let value = json!({"prompt_id": "p"});
        assert!(problems(&value)[0].ends_with("is not available in this version"));
        assert!(Config::parse(value.to_string().as_bytes(), Strictness::Lenient).is_err());
    }

    #[test]
    fn too_many_condition_parts_are_rejected_at_the_node_with_the_most() {
        let limits = TargetLimits { max_conditional: 2, ..TargetLimits::default() };
        let conditional_node = |values: usize| {
            let query = json!({"params.m": {"$in": vec!["x"; values]}});
            json!({"name": "n", "provider": "a", "strategy": {"mode": "conditional", "default": "n",
                "conditions": [{"query": query, "then": "n"}]}, "targets": [{"name": "n", "provider": "a"}]})
        };
        let group = |count: usize| json!({"strategy": {"mode": "fallback"}, "targets": [conditional_node(1), conditional_node(count)]});
        assert_eq!(parse(&group(27)).check_limits(limits), Ok(()));
        let refused = parse(&group(28)).check_limits(limits).unwrap_err();
        assert_eq!(refused[0].path, "$.targets[1].strategy.conditions");
        assert!(refused[0].message.contains("32") && refused[0].message.contains("33"), "{refused:?}");
        assert!(
            Config::parse_with_limits(Some(limits), group(28).to_string().as_bytes(), Strictness::Lenient).is_err()
        );
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
        let large = config(vec!["^a".to_owned(), r"\pL{20}".to_owned(), "b$".to_owned()]);
        assert_eq!(problem_paths(&large), [at(1)]);
        assert!(Config::parse(large.to_string().as_bytes(), Strictness::Lenient).is_err());
        let many = problem_paths(&config((0..400).map(|number| format!(r"\pN+\pL{number}")).collect()));
        assert_eq!(many.len(), 1, "{many:?}");
    }

    #[test]
    fn inherited_parameters_are_bounded() {
        let config = |count: usize, targets: usize| {
            let fields: serde_json::Map<_, _> = (0..count).map(|number| (format!("k{number}"), json!(0))).collect();
            json!({"strategy": {"mode": "fallback"}, "default_params": fields, "targets": vec![json!({}); targets]})
        };
        let messages = problems(&config(4000, 20));
        assert!(messages.len() == 1 && messages[0].contains("50000") && messages[0].contains("84000"), "{messages:?}");
        let inherited = parse(&config(2000, 20)).root.targets[19].features.parameters.count();
        assert_eq!(inherited, 2000);
        let dropped: Vec<_> = (0..129).map(|number| format!("k{number}")).collect();
        assert_eq!(problem_paths(&json!({"provider": "openai", "drop_params": dropped})), ["$.drop_params"]);
    }

    #[test]
    fn limits_are_reported_with_all_other_problems() {
        let limits = TargetLimits { max_root: 1, ..TargetLimits::default() };
        let config =
            json!({"odd": 1, "strategy": {"mode": "fallback"}, "targets": [{"provider": "a"}, {"provider": 3}]});
        let problems =
            Config::parse_with_limits(Some(limits), config.to_string().as_bytes(), Strictness::Strict).unwrap_err();
        let paths: Vec<_> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["$.odd", "$.targets[1].provider", "$.targets"]);
    }

    #[test]
    fn too_many_targets_are_rejected_at_their_path() {
        let limits = TargetLimits { max_root: 2, max_conditional: 3, max_nested: 1 };
        let many = |count: usize| vec![json!({"provider": "a", "name": "n"}); count];
        let group = |mode: &str, count| json!({"strategy": {"mode": mode, "default": "n"}, "targets": many(count)});
        let refused = |value: &Value| parse(value).check_limits(limits).err().map(|problems| problems[0].path.clone());
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
