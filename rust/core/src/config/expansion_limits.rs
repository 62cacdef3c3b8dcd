//! Limits of the size of a config after inheritance. The time to compile it and to mask its secrets grows with this
//! size.

use crate::{config::Node, error::Problem, features::parameters::Parameters};

/// Maximum number of parameters of all targets of a config together, including those that targets inherit.
const MAX_EXPANDED_PARAMETERS: usize = 50_000;

/// Maximum size in bytes of the parameters of all targets of a config together.
const MAX_EXPANDED_BYTES: usize = 16 * 1024 * 1024;

/// Maximum number of secrets in the parameters of one target, including those that it inherits. Each response of the
/// target is searched for them.
const MAX_TARGET_SECRETS: usize = 128;
/// Maximum size in bytes of the secrets in the parameters of one target.
const MAX_TARGET_SECRETS_BYTES: usize = 32 * 1024;

/// Returns a problem if a target has too many secrets to mask.
pub(super) fn find_secrets_excess(root: &Node) -> Option<Problem> {
    let count = root.max_inherited_parameters(0, &Parameters::secret_count);
    let bytes = root.max_inherited_parameters(0, &Parameters::secret_bytes);
    (count > MAX_TARGET_SECRETS || bytes > MAX_TARGET_SECRETS_BYTES).then(|| {
        let message = format!(
            "default_params and override_params of a target may hold {MAX_TARGET_SECRETS} secrets with {MAX_TARGET_SECRETS_BYTES} bytes, counting inherited ones, not {count} with {bytes}; set fewer secrets"
        );
        Problem::new("$", message)
    })
}

/// Returns a problem if inheritance would multiply the parameters beyond the limit.
pub(super) fn find_expansion_excess(root: &Node) -> Option<Problem> {
    let bytes = root.sum_expanded_parameters(0, &Parameters::heap_bytes);
    if bytes > MAX_EXPANDED_BYTES {
        let message = format!(
            "default_params, override_params and drop_params of all targets together may have {MAX_EXPANDED_BYTES} bytes, counting inherited ones at every target, not {bytes}; set smaller values or use fewer targets"
        );
        return Some(Problem::new("$", message));
    }
    let count = root.sum_expanded_parameters(0, &Parameters::count);
    (count > MAX_EXPANDED_PARAMETERS).then(|| {
        let message = format!(
            "all targets together may have {MAX_EXPANDED_PARAMETERS} fields in default_params, override_params and drop_params, counting inherited ones at every target, not {count}; set fewer fields or use fewer targets"
        );
        Problem::new("$", message)
    })
}

#[cfg(test)]
mod tests {
    use proptest::{
        collection::vec,
        prelude::{ProptestConfig, Strategy},
    };
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::{config::Config, parse::document_reader::Strictness};

    /// Returns a config tree, of which each node sets up to `keys` fields.
    fn config_tree(keys: usize) -> impl Strategy<Value = Value> {
        let fields = move |count: usize| (0..count).map(|key| (format!("k{key}"), json!(key))).collect::<Map<_, _>>();
        let leaf = (0..=keys).prop_map(move |count| json!({"provider": "openai", "override_params": fields(count)}));
        leaf.prop_recursive(4, 64, 8, move |inner| {
            (vec(inner, 1..8), 0..=keys).prop_map(move |(targets, count)| {
                json!({"strategy": {"mode": "fallback"}, "default_params": fields(count), "targets": targets})
            })
        })
    }

    proptest::proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        // The work to compile a config, and the memory that it takes, grow with the number of compiled fields.
        #[test]
        fn compiled_fields_of_any_accepted_config_are_bounded(tree in config_tree(2_000)) {
            match Config::parse(tree.to_string().as_bytes(), Strictness::Strict) {
                Ok(config) => {
                    let compiled = config.root.sum_subtree(&|node| node.features.parameters.count());
                    assert!(compiled <= MAX_EXPANDED_PARAMETERS, "{compiled}");
                }
                Err(problems) => {
                    let has_limit = problems.iter().all(|one| one.message.contains("counting inherited ones"));
                    assert!(has_limit, "{problems:?}");
                }
            }
        }
    }
}
