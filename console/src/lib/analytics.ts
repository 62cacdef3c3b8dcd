// Metrics and groups of analytics.
import { api, get } from "./api";
import type { Series } from "./chart";
import { formatAgo, formatCents, formatCompact, formatCost, formatMs, formatNumber, formatPercent } from "./format";

type Query = Record<string, string>;
export type GroupRow = Record<string, string | number | null | undefined> & { label: string };

interface Graph {
  summary: string;
  times: number[];
  series: Series[];
}

interface Answer {
  summary: Record<string, number>;
  data_points: ({ timestamp: string } & Record<string, number | string>)[];
}

export interface Metric {
  title: string;
  format: (value: number) => string;
  load: (query: Query, signal: AbortSignal) => Promise<Graph>;
}

interface Line {
  field: string;
  label: string;
  color: string;
}

type GraphPath = "requests" | "cost" | "tokens" | "latency" | "errors" | "errors/rate" | "cache/hit-rate" | "users" | "feedbacks/weighted";

function define(title: string, path: GraphPath, format: (value: number) => string, lines: Line[], summary: (found: Record<string, number>) => string, isBar = true): Metric {
  return {
    title,
    format,
    load: async (query, signal) => {
      const url = `/v1/analytics/graphs/${path}` as "/v1/analytics/graphs/requests";
      const found = (await get(api.GET(url, { params: { query: query as never }, signal }))) as unknown as Answer;
      return {
        summary: summary(found.summary ?? {}),
        times: found.data_points.map((point) => Date.parse(point.timestamp) / 1000),
        series: lines.map((line) => ({ label: line.label, color: line.color, isBar, values: found.data_points.map((point) => (path === "latency" ? latencyOf(point[line.field]) : Number(point[line.field] ?? 0))) })),
      };
    },
  };
}

/** Returns a latency in milliseconds; null for a time without requests, for which the gateway reports 0. */
export function latencyOf(value: unknown): number | null {
  return Number(value ?? 0) || null;
}

const total = (label: string, color = "accent"): Line[] => [{ field: "total", label, color }];
const LATENCIES: Line[] = [
  { field: "p50", label: "Median", color: "accent" },
  { field: "p90", label: "p90", color: "warn" },
  { field: "p99", label: "p99", color: "bad" },
];

export const METRICS: Record<string, Metric> = {
  requests: define("Requests", "requests", formatCompact, total("Requests"), (found) => formatNumber(found.total)),
  cost: define("Cost", "cost", formatCents, total("Cost"), (found) => formatCost(found.total, found.unpriced, Infinity)),
  tokens: define("Tokens", "tokens", formatCompact, total("Tokens"), (found) => formatCompact(found.total)),
  latency: define("Latency", "latency", formatMs, LATENCIES, (found) => `median ${formatMs(found.p50)}`, false),
  errors: define("Errors", "errors", formatCompact, total("Errors", "bad"), (found) => formatNumber(found.total)),
  "errors-rate": define("Error rate", "errors/rate", formatPercent, [{ field: "rate", label: "Rate", color: "bad" }], (found) => formatPercent(found.rate), false),
  cache: define("Cache hit rate", "cache/hit-rate", formatPercent, [{ field: "rate", label: "Rate", color: "accent" }], (found) => formatPercent(found.rate), false),
  feedback: define("Feedback", "feedbacks/weighted", (value) => formatNumber(value, 1), [{ field: "avg", label: "Rating times weight, mean", color: "accent" }], (found) => `mean ${formatNumber(found.avg, 1)}`, false),
  users: define("Users", "users", formatCompact, total("Users"), (found) => formatNumber(found.total)),
};

/** Widths of the time buckets of a graph, by name, with their lengths in milliseconds. */
export const ROLLUPS: Record<string, { title: string; ms: number }> = {
  "1m": { title: "Minute", ms: 60_000 },
  "5m": { title: "5 minutes", ms: 5 * 60_000 },
  "15m": { title: "15 minutes", ms: 15 * 60_000 },
  "1h": { title: "Hour", ms: 3_600_000 },
  "1d": { title: "Day", ms: 86_400_000 },
  "1w": { title: "Week", ms: 7 * 86_400_000 },
};
/** Maximum number of buckets. The gateway allows 1,500, but its clock may be a little ahead. */
const MAX_BUCKETS = 1490;

/** Returns the names of the bucket widths that split a range of time into 1 to `MAX_BUCKETS` buckets. */
export function rollupsFor(lengthMs: number): string[] {
  return Object.keys(ROLLUPS).filter((name) => {
    const count = lengthMs / (ROLLUPS[name]?.ms ?? lengthMs);
    return count >= 1 && count <= MAX_BUCKETS;
  });
}

export const GROUPS: Record<string, string> = {
  model: "Model",
  provider: "Provider",
  api_key: "API key",
  users: "User",
  config: "Config",
  prompt: "Prompt",
  workspace: "Workspace",
  ai_service: "AI service",
  status_code: "Status",
  guardrail: "Guardrail",
  guardrail_check: "Guardrail check",
};
/** Columns with numbers of verdicts. Only groups by guardrail or by guardrail check have them. */
export const VERDICTS = ["passed", "failed", "denied", "would_deny", "skipped", "errors"];

export const COLUMNS = ["cost", "total_tokens", "avg_latency", "p95_latency", "error_count", "cache_hit_rate", "last_seen"];
const LABELS: Record<string, string> = {
  cost: "Cost",
  total_tokens: "Tokens",
  avg_latency: "Latency, mean",
  p95_latency: "p95",
  error_count: "Errors",
  cache_hit_rate: "Cache hits",
  last_seen: "Last request",
  passed: "Passed",
  failed: "Failed",
  denied: "Denied",
  would_deny: "Would deny",
  skipped: "Skipped",
  errors: "Check errors",
};

export function groupLabel(column: string): string {
  return LABELS[column] ?? column;
}

export function cellText(column: string, row: GroupRow): string {
  const value = row[column];
  if (column === "cost") return formatCost(value, row.unpriced_requests, row.requests);
  if (column.endsWith("latency")) return formatMs(value);
  if (column.endsWith("rate")) return formatPercent(value);
  if (column === "last_seen") return formatAgo(value === null || value === undefined ? null : String(value));
  return formatNumber(value);
}

/** Renders rows as CSV. A cell that a spreadsheet would run as a formula begins with an apostrophe. */
export function toCsv(columns: string[], rows: GroupRow[]): string {
  const escape = (value: string | number | null | undefined): string => {
    const text = String(value ?? "");
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [columns.join(","), ...rows.map((row) => columns.map((column) => escape(row[column])).join(","))].join("\r\n");
}
