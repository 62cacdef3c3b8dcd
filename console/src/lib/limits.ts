// Rate limits and usage limits of keys and providers, as forms have them and as people read them.
import type { Schema } from "./api";
import { formatCompact } from "./format";
import { link } from "./router.svelte";

export interface LimitFields {
  usageType: "" | "cost" | "tokens" | "requests";
  creditLimit: string;
  alertThreshold: string;
  periodicReset: "" | "weekly" | "monthly";
  rateType: "" | "requests" | "tokens";
  rateUnit: "rpm" | "rph" | "rpd";
  rateValue: string;
}

type Usage = Schema["UsageLimits"] | null | undefined;
type Rate = Schema["RateLimit"];

export function limitFields(usage: Usage, rates: Rate[] | null | undefined): LimitFields {
  const rate = rates?.[0];
  return {
    usageType: usage?.credit_limit ? (usage.type ?? "cost") : "",
    creditLimit: usage?.credit_limit ? String(usage.credit_limit) : "",
    alertThreshold: usage?.alert_threshold ? String(usage.alert_threshold) : "",
    periodicReset: usage?.periodic_reset ?? "",
    rateType: rate?.type ?? "",
    rateUnit: (rate?.unit as LimitFields["rateUnit"]) ?? "rpm",
    rateValue: rate ? String(rate.value) : "",
  };
}

/** Returns the usage limits of a form; `null` removes them. */
export function usageOf(fields: LimitFields): Schema["UsageLimits"] | null {
  if (!fields.usageType) return null;
  return {
    type: fields.usageType,
    credit_limit: Number(fields.creditLimit),
    ...(fields.alertThreshold ? { alert_threshold: Number(fields.alertThreshold) } : {}),
    ...(fields.periodicReset ? { periodic_reset: fields.periodicReset } : {}),
  };
}

export function ratesOf(fields: LimitFields): Rate[] | null {
  return fields.rateType ? [{ type: fields.rateType, unit: fields.rateUnit, value: Number(fields.rateValue) }] : null;
}

const UNITS: Record<string, string> = { rps: "second", rpm: "minute", rph: "hour", rpd: "day", rpw: "week" };

export function describeLimits(usage: Usage, rates: Rate[] | null | undefined): string {
  const parts: string[] = [];
  if (usage?.credit_limit) {
    const amount = usage.type === "cost" || !usage.type ? `$${usage.credit_limit}` : `${formatCompact(usage.credit_limit)} ${usage.type}`;
    parts.push(`${amount}${usage.periodic_reset ? ` ${usage.periodic_reset}` : ""}`);
  }
  for (const rate of rates ?? []) parts.push(`${formatCompact(rate.value)} ${rate.type} per ${UNITS[rate.unit] ?? rate.unit}`);
  return parts.join(", ") || "none";
}

/** Kinds of objects with limits, as people call them, and their pages. */
export const LIMIT_KINDS: Record<string, string> = { policy: "policy", api_key: "API key", provider: "provider", integration: "integration", workspace: "workspace" };
const PAGES: Record<string, string> = { policy: "limits", api_key: "keys", provider: "providers", integration: "providers/integrations", workspace: "workspaces" };

/** Returns the link to the object that has a limit. */
export function limitOwnerLink(row: { kind: string | null; owner_id: string | null }): string {
  return link(`${PAGES[row.kind ?? ""] ?? "limits"}/${row.owner_id ?? ""}`);
}
