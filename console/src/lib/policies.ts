// Texts that describe policies.
import type { Schema } from "./api";
import { formatCompact } from "./format";
import { workspaceName } from "./workspace";

export type Policy = ({ kind: "usage" } & Schema["UsageLimitsPolicy"]) | ({ kind: "rate" } & Schema["RateLimitsPolicy"]);

export const KEYS: Record<string, string> = {
  api_key: "API key",
  "metadata._user": "user",
  model: "model",
  provider: "provider",
  virtual_key: "saved provider",
  config: "config",
  prompt: "prompt",
  workspace_id: "workspace",
  endpoint_type: "operation",
};
const UNITS: Record<string, string> = { rpm: "minute", rph: "hour", rpd: "day", rpw: "week" };

function keyName(key: string): string {
  return KEYS[key] ?? key.replace(/^metadata\./, "metadata ");
}

/** Formats an amount of a policy in its unit. A cost is in US dollars. */
export function formatAmount(type: string, amount: number): string {
  return type === "cost" ? `$${amount.toLocaleString("en", { maximumFractionDigits: 2 })}` : `${formatCompact(amount)} ${type}`;
}

/** Formats how much of an amount is used: "112 of 120 requests". */
export function formatUse(type: string, used: number, limit: number): string {
  return `${type === "cost" ? formatAmount(type, used) : formatCompact(used)} of ${formatAmount(type, limit)}`;
}

/** Formats a value of a condition or group. Shows the name of a workspace instead of its id. */
function formatValue(key: string, value: string): string {
  return key === "workspace_id" ? workspaceName(value) : value;
}

export function describePolicy(policy: Policy): string {
  if (policy.kind === "rate") return `${formatCompact(policy.value)} ${policy.type} per ${UNITS[policy.unit] ?? policy.unit}`;
  const period = policy.periodic_reset ?? (policy.periodic_reset_days ? `every ${policy.periodic_reset_days} days` : "in total");
  return `${formatAmount(policy.type, policy.credit_limit)} ${period}`;
}

export function describeConditions(conditions: Schema["Condition"][]): string {
  const isAll = conditions.every((one) => one.value === "*" && !one.excludes);
  if (isAll) return "all";
  return conditions.map((one) => `${keyName(one.key)} ${one.excludes ? "is not" : "is"} ${[one.value].flat().map((value) => formatValue(one.key, value)).join(" or ")}`).join(" and ");
}

export function describeGroups(groups: { key: string }[]): string {
  return groups.map((one) => keyName(one.key)).join(" and ") || "–";
}
