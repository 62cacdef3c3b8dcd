// Policies as people read them.
import type { Schema } from "./api";
import { formatCompact } from "./format";

export type Policy = ({ kind: "usage" } & Schema["UsageLimitsPolicy"]) | ({ kind: "rate" } & Schema["RateLimitsPolicy"]);

export const KEYS: Record<string, string> = {
  api_key: "API key",
  "metadata._user": "user",
  model: "model",
  provider: "provider",
  config: "config",
  prompt: "prompt",
  workspace_id: "workspace",
  endpoint_type: "operation",
};
const UNITS: Record<string, string> = { rpm: "minute", rph: "hour", rpd: "day", rpw: "week" };

function keyName(key: string): string {
  return KEYS[key] ?? key.replace(/^metadata\./, "metadata ");
}

/** Formats an amount of a policy's unit: cost is in US dollars. */
export function formatAmount(type: string, amount: number): string {
  return type === "cost" ? `$${amount.toLocaleString("en", { maximumFractionDigits: 2 })}` : `${formatCompact(amount)} ${type}`;
}

export function describePolicy(policy: Policy): string {
  if (policy.kind === "rate") return `${formatCompact(policy.value)} ${policy.type} per ${UNITS[policy.unit] ?? policy.unit}`;
  const period = policy.periodic_reset ?? (policy.periodic_reset_days ? `every ${policy.periodic_reset_days} days` : "in total");
  return `${formatAmount(policy.type, policy.credit_limit)} ${period}`;
}

export function describeConditions(conditions: Schema["Condition"][]): string {
  const isAll = conditions.every((one) => one.value === "*" && !one.excludes);
  if (isAll) return "all";
  return conditions.map((one) => `${keyName(one.key)} ${one.excludes ? "is not" : "is"} ${Array.isArray(one.value) ? one.value.join(" or ") : one.value}`).join(" and ");
}

export function describeGroups(groups: { key: string }[]): string {
  return groups.map((one) => keyName(one.key)).join(" and ") || "–";
}
