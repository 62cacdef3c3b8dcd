// The routing tree of a config, in the form that RoutingTree.svelte draws.

export interface TreeNode {
  /** Path of the node as in explanations and logs, such as `config.targets[1]`. */
  path: string;
  title: string;
  /** Why the parent selects this node: a weight, a place in an order, or a condition. */
  edge: string;
  /** Properties such as retries, cache and guardrails. */
  notes: string[];
  children: TreeNode[];
}

type Dictionary = Record<string, unknown>;
const MAX_NODES = 200;
const MODES: Record<string, string> = { fallback: "Fallback", loadbalance: "Load balancing", conditional: "Conditions", single: "One target" };

function isObject(value: unknown): value is Dictionary {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function notesOf(config: Dictionary): string[] {
  const retry = isObject(config.retry) ? config.retry : null;
  const cache = config.cache;
  const hooks = ["input_guardrails", "output_guardrails", "before_request_hooks", "after_request_hooks"].reduce((sum, name) => sum + (Array.isArray(config[name]) ? (config[name] as unknown[]).length : 0), 0);
  const parameters = isObject(config.override_params) ? Object.keys(config.override_params) : [];
  const model = isObject(config.override_params) ? config.override_params.model : undefined;
  return [
    typeof model === "string" ? `model ${model}` : "",
    typeof config.drop_model_prefix === "string" ? `drops ${config.drop_model_prefix} from the model` : "",
    retry?.attempts ? `${String(retry.attempts)} ${retry.attempts === 1 ? "retry" : "retries"}` : "",
    cache ? `cache${isObject(cache) && cache.max_age ? ` ${String(cache.max_age)} s` : ""}` : "",
    config.request_timeout ? `timeout ${String(config.request_timeout)} ms` : "",
    config.cb_config ? "circuit breaker" : "",
    hooks ? `${hooks} guardrail${hooks > 1 ? "s" : ""}` : "",
    parameters.filter((name) => name !== "model").length ? `sets ${parameters.filter((name) => name !== "model").join(", ")}` : "",
  ].filter(Boolean);
}

function edgeOf(mode: string, strategy: Dictionary, target: Dictionary, index: number, total: number): string {
  if (mode === "loadbalance") {
    const weight = typeof target.weight === "number" ? target.weight : 1;
    return total > 0 ? `${Math.round((weight / total) * 1000) / 10} %` : "0 %";
  }
  if (mode === "conditional") {
    const named = (Array.isArray(strategy.conditions) ? strategy.conditions : []).filter((one) => isObject(one) && one.then === target.name) as Dictionary[];
    const texts = named.map((one) => `if ${JSON.stringify(one.query)}`);
    if (strategy.default === target.name) texts.push("otherwise");
    return texts.join(" or ") || "never";
  }
  if (mode === "fallback") {
    const statuses = Array.isArray(strategy.on_status_codes) ? ` ${strategy.on_status_codes.join(", ")}` : "";
    return index === 0 ? "first" : `after an error${statuses}`;
  }
  return "";
}

/** Returns the tree of a config; `null` if the text is not a JSON object. */
export function routingTree(text: string): TreeNode | null {
  let config: unknown;
  try {
    config = JSON.parse(text);
  } catch {
    return null;
  }
  let remaining = MAX_NODES;
  const build = (value: Dictionary, path: string, edge: string): TreeNode => {
    remaining -= 1;
    const strategy = isObject(value.strategy) ? value.strategy : {};
    const targets = (Array.isArray(value.targets) ? value.targets : []).filter(isObject);
    const mode = String(strategy.mode ?? "single");
    const total = targets.reduce((sum, one) => sum + (typeof one.weight === "number" ? one.weight : 1), 0);
    const provider = String(value.provider ?? (value.virtual_key ? `@${String(value.virtual_key)}` : "provider of the request"));
    const name = value.name ? `${String(value.name)}: ` : "";
    return {
      path,
      edge,
      title: targets.length ? `${name}${MODES[mode] ?? mode}` : `${name}${provider}`,
      notes: notesOf(value),
      children: targets.flatMap((one, index) => (remaining > 0 ? [build(one, `${path}.targets[${index}]`, edgeOf(mode, strategy, one, index, total))] : [])),
    };
  };
  return isObject(config) ? build(config, "config", "") : null;
}
