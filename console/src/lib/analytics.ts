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

type Point = { timestamp: string } & Record<string, unknown>;

interface Answer {
  summary: Record<string, number>;
  data_points: Point[];
}

export interface Metric {
  title: string;
  format: (value: number) => string;
  load: (query: Query, signal: AbortSignal) => Promise<Graph>;
}

interface Line {
  label: string;
  color: string;
  value: (point: Point) => number | null;
}

interface Definition {
  title: string;
  path: GraphPath;
  format: (value: number) => string;
  lines: Line[] | ((points: Point[]) => Line[]);
  summary: (found: Record<string, number>) => string;
  /** True for lines; otherwise the values are stacked bars. */
  isLine?: boolean;
}

type GraphPath =
  | ("requests" | "requests/rescued" | "cost" | "tokens" | "latency" | "errors" | "errors/rate" | "errors/stacks" | "cache/hit-rate" | "cache/latency" | "users")
  | ("feedbacks/weighted" | "guardrails");

function define({ title, path, format, lines, summary, isLine = false }: Definition): Metric {
  return {
    title,
    format,
    load: async (query, signal) => {
      const url = `/v1/analytics/graphs/${path}` as "/v1/analytics/graphs/requests";
      const found = (await get(api.GET(url, { params: { query: query as never }, signal }))) as unknown as Answer;
      const shown = typeof lines === "function" ? lines(found.data_points) : lines;
      return {
        summary: summary(found.summary ?? {}),
        times: found.data_points.map((point) => Date.parse(point.timestamp) / 1000),
        series: shown.map(({ label, color, value }) => ({ label, color, isBar: !isLine, values: found.data_points.map(value) })),
      };
    },
  };
}

/** Returns a latency in milliseconds; null for a time without requests, for which the gateway reports 0. */
export function latencyOf(value: unknown): number | null {
  return Number(value ?? 0) || null;
}

const line = (field: string, label: string, color = "accent"): Line => ({ label, color, value: (point) => Number(point[field] ?? 0) });
const latencyLine = (field: string, label: string, color = "accent"): Line => ({ label, color, value: (point) => latencyOf(point[field]) });
const STATUS_COLORS = ["bad", "warn", "accent", "good", "muted"];
const listOf = (value: unknown): Record<string, number>[] => (Array.isArray(value) ? (value as Record<string, number>[]) : []);
const total = (counts: Record<string, number>[]): number => counts.reduce((sum, one) => sum + (one.count ?? 0), 0);

/** Returns a line for each of the most common status codes of errors, and one for all others. */
export function statusLines(points: Point[]): Line[] {
  const counts = new Map<number, number>();
  for (const { response_status_code: code = 0, count = 0 } of points.flatMap((point) => listOf(point.stats))) counts.set(code, (counts.get(code) ?? 0) + count);
  const codes = [...counts].sort((one, other) => other[1] - one[1]).map(([code]) => code);
  const shown = codes.slice(0, STATUS_COLORS.length);
  const countOf = (point: Point, isCounted: (code: number) => boolean): number => total(listOf(point.stats).filter((one) => isCounted(one.response_status_code ?? 0)));
  const lines = shown.map((code, index): Line => ({ label: String(code), color: STATUS_COLORS[index] ?? "muted", value: (point) => countOf(point, (one) => one === code) }));
  return codes.length > shown.length ? [...lines, { label: "Others", color: "text", value: (point) => countOf(point, (one) => !shown.includes(one)) }] : lines;
}

const RESCUES: Line[] = [line("fallback", "Fallback", "warn"), { label: "Retry", color: "accent", value: (point) => total(listOf(point.retry)) }];
const VERDICT_LINES = [line("denied", "Denied", "bad"), line("would_deny", "Would deny", "warn"), line("failed", "Failed", "accent"), line("skipped", "Skipped", "muted"), line("passed", "Passed", "good")];

export const METRICS: Record<string, Metric> = {
  requests: define({ title: "Requests", path: "requests", format: formatCompact, lines: [line("total", "Requests")], summary: (found) => formatNumber(found.total) }),
  cost: define({ title: "Cost", path: "cost", format: formatCents, lines: [line("total", "Cost")], summary: (found) => formatCost(found.total, found.unpriced, Infinity) }),
  tokens: define({ title: "Tokens", path: "tokens", format: formatCompact, lines: [line("total", "Tokens")], summary: (found) => formatCompact(found.total) }),
  latency: define({ title: "Latency", path: "latency", format: formatMs, lines: [latencyLine("p50", "Median"), latencyLine("p90", "p90", "warn"), latencyLine("p99", "p99", "bad")], summary: (found) => `median ${formatMs(found.p50)}`, isLine: true }),
  errors: define({ title: "Errors", path: "errors", format: formatCompact, lines: [line("total", "Errors", "bad")], summary: (found) => formatNumber(found.total) }),
  "errors-rate": define({ title: "Error rate", path: "errors/rate", format: formatPercent, lines: [line("rate", "Rate", "bad")], summary: (found) => formatPercent(found.rate), isLine: true }),
  "status-codes": define({ title: "Status codes", path: "errors/stacks", format: formatCompact, lines: statusLines, summary: (found) => `${formatNumber(found.total_errors ?? found.total)} errors` }),
  rescued: define({ title: "Rescued", path: "requests/rescued", format: formatCompact, lines: RESCUES, summary: (found) => `${formatNumber(found.retry)} by retry, ${formatNumber(found.fallback)} by fallback` }),
  cache: define({ title: "Cache hit rate", path: "cache/hit-rate", format: formatPercent, lines: [line("rate", "Rate")], summary: (found) => formatPercent(found.rate), isLine: true }),
  "cache-latency": define({ title: "Cache latency", path: "cache/latency", format: formatMs, lines: [latencyLine("avg", "Mean of hits")], summary: () => "", isLine: true }),
  guardrails: define({ title: "Guardrails", path: "guardrails", format: formatCompact, lines: VERDICT_LINES, summary: (found) => `${formatNumber(found.denied)} of ${formatNumber(found.total)} denied` }),
  feedback: define({ title: "Feedback", path: "feedbacks/weighted", format: (value) => formatNumber(value, 1), lines: [line("avg", "Rating times weight, mean")], summary: (found) => `mean ${formatNumber(found.avg, 1)}`, isLine: true }),
  users: define({ title: "Users", path: "users", format: formatCompact, lines: [line("total", "Users")], summary: (found) => formatNumber(found.total) }),
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
