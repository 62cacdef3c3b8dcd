// Rate limits and usage limits of keys and providers: conversion to and from form fields, and to text.
import type { Schema } from "./api";
import { formatCompact } from "./format";
import { link } from "./router.svelte";

type Usage = Schema["UsageLimits"] | null | undefined;
type Rate = Schema["RateLimit"];
export type RateUnit = Rate["unit"];

export interface RateFields {
  type: Rate["type"];
  unit: RateUnit;
  value: string;
}

export interface LimitFields {
  usageType: "" | "cost" | "tokens" | "requests";
  creditLimit: string;
  alertThreshold: string;
  periodicReset: "" | "weekly" | "monthly" | "days";
  resetDays: string;
  /** Time of the next reset, if it was set by hand. Requests send it back unchanged. */
  nextReset: string;
  rates: RateFields[];
}

/** Units of rate limits that all objects can have. */
export const RATE_UNITS: RateUnit[] = ["rpm", "rph", "rpd", "rpw"];
/** Units of rate limits of API keys, which can also have limits per second. */
export const KEY_RATE_UNITS: RateUnit[] = ["rps", ...RATE_UNITS];
const RATE_TYPES: Rate["type"][] = ["requests", "tokens"];

const text = (value: number | null | undefined): string => (value === null || value === undefined ? "" : String(value));

export function limitFields(usage: Usage, rates: Rate[] | null | undefined): LimitFields {
  return {
    usageType: usage ? (usage.type ?? "cost") : "",
    creditLimit: text(usage?.credit_limit),
    alertThreshold: text(usage?.alert_threshold),
    periodicReset: usage?.periodic_reset ?? (usage?.periodic_reset_days ? "days" : ""),
    resetDays: text(usage?.periodic_reset_days),
    nextReset: usage?.next_usage_reset_at ?? "",
    rates: (rates ?? []).map(({ type, unit, value }) => ({ type, unit, value: String(value) })),
  };
}

/** Returns a rate limit with a type and unit that the form does not have yet; undefined if it has all. */
export function nextRate(rates: RateFields[], units: RateUnit[]): RateFields | undefined {
  const free = RATE_TYPES.flatMap((type) => units.filter((unit) => unit !== "rps").map((unit) => ({ type, unit, value: "" })));
  return free.find((one) => !rates.some((rate) => rate.type === one.type && rate.unit === one.unit));
}

/** Returns the usage limits in a form; `null` removes the saved ones. */
export function usageOf(fields: LimitFields): Schema["UsageLimits"] | null {
  if (!fields.usageType) return null;
  return {
    type: fields.usageType,
    ...(fields.creditLimit ? { credit_limit: Number(fields.creditLimit) } : {}),
    ...(fields.alertThreshold ? { alert_threshold: Number(fields.alertThreshold) } : {}),
    ...(fields.periodicReset === "days" ? { periodic_reset_days: Number(fields.resetDays) } : {}),
    ...(fields.periodicReset === "weekly" || fields.periodicReset === "monthly" ? { periodic_reset: fields.periodicReset } : {}),
    ...(fields.nextReset ? { next_usage_reset_at: fields.nextReset } : {}),
  };
}

/** Returns the rate limits in a form; `null` removes the saved ones. */
export function ratesOf(fields: LimitFields): Rate[] | null {
  return fields.rates.length ? fields.rates.map(({ type, unit, value }) => ({ type, unit, value: Number(value) })) : null;
}

/** Returns true if each limit in a form has its amount. */
export function areLimitsComplete(fields: LimitFields): boolean {
  const hasAmount = fields.creditLimit !== "" || fields.alertThreshold !== "";
  const hasPeriod = fields.periodicReset !== "days" || fields.resetDays !== "";
  return (!fields.usageType || (hasAmount && hasPeriod)) && fields.rates.every((rate) => rate.value !== "");
}

interface SentLimits {
  usage_limits?: Schema["UsageLimits"] | null;
  rate_limits?: Rate[] | null;
}

/** Returns the limits that differ from the saved ones. Unchanged limits are not sent. */
export function changedLimits(before: LimitFields, after: LimitFields): SentLimits {
  const differs = <T>(one: (fields: LimitFields) => T): boolean => JSON.stringify(one(before)) !== JSON.stringify(one(after));
  return { ...(differs(usageOf) ? { usage_limits: usageOf(after) } : {}), ...(differs(ratesOf) ? { rate_limits: ratesOf(after) } : {}) };
}

export const UNITS: Record<string, string> = { rps: "second", rpm: "minute", rph: "hour", rpd: "day", rpw: "week" };

export function describeLimits(usage: Usage, rates: Rate[] | null | undefined): string {
  const parts: string[] = [];
  const limit = usage?.credit_limit ?? usage?.alert_threshold;
  if (usage && limit) {
    const amount = usage.type === "cost" || !usage.type ? `$${limit}` : `${formatCompact(limit)} ${usage.type}`;
    const period = usage.periodic_reset ?? (usage.periodic_reset_days ? `every ${usage.periodic_reset_days} days` : "");
    parts.push([usage.credit_limit ? "" : "alert at", amount, period].filter(Boolean).join(" "));
  }
  for (const rate of rates ?? []) parts.push(`${formatCompact(rate.value)} ${rate.type} per ${UNITS[rate.unit] ?? rate.unit}`);
  return parts.join(", ") || "none";
}

/** Display names of the kinds of objects that have limits. */
export const LIMIT_KINDS: Record<string, string> = { policy: "policy", api_key: "API key", provider: "provider", integration: "integration", workspace: "workspace", token: "token" };
/** Pages of these kinds of objects. */
const PAGES: Record<string, string> = { policy: "limits", api_key: "keys", provider: "providers", integration: "providers/integrations", workspace: "workspaces" };

/** Returns the link to the object that has a limit; the list of limits for tokens, which have no page. */
export function limitOwnerLink(row: { kind: string | null; owner_id: string | null }): string {
  const page = PAGES[row.kind ?? ""];
  return link(page ? `${page}/${row.owner_id ?? ""}` : "limits");
}
