// Parts of a log that the sheet shows.
import type { Schema } from "./api";

/** Number of characters of a large body that the page shows at once. */
export const PART_CHARS = 64 * 1024;

const FIRST_ERROR_STATUS = 400;
/** Maximum length of a plain-text body that is shown unchanged as the error message. */
const MAX_PLAIN_ERROR_CHARS = 1000;

export interface Attempt {
  provider: string;
  savedProvider: string;
  model: string;
  target: string;
  host: string;
  status: number | null;
  error: string;
  /** Details of a network error. */
  reason: string;
  start: number;
  duration: number;
}

type Dictionary = Record<string, unknown>;

/** Returns the attempts of a request, in milliseconds since it arrived. */
export function attemptsOf(log: Schema["Log"]): Attempt[] {
  const listed = (log.details as Dictionary).attempts;
  if (!Array.isArray(listed)) return [];
  return listed.map((one: Dictionary) => ({
    provider: String(one.provider ?? ""),
    savedProvider: String(one.virtual_key ?? ""),
    model: String(one.model ?? ""),
    target: String(one.target ?? ""),
    host: String(one.host ?? ""),
    status: typeof one.status === "number" ? one.status : null,
    error: String(one.error ?? ""),
    reason: String(one.reason ?? ""),
    start: Number(one.start ?? 0),
    duration: Number(one.duration ?? 0),
  }));
}

/** Why a request failed. */
export interface Failure {
  status: string;
  code: string;
  message: string;
  /** Host of the last provider that was called, even if it did not respond; empty if none was called. */
  host: string;
  provider: string;
}

/** Returns why a request failed; `null` if it did not. */
export function failureOf(log: Schema["Log"]): Failure | null {
  const metrics = log.metrics as Dictionary;
  const status = Number(metrics.response_status_code ?? 0);
  const code = String((log.details as Dictionary).error ?? "");
  if (status < FIRST_ERROR_STATUS && !code) return null;
  const responseError = errorIn(log.response.body) ?? errorIn(log.originalResponse.body);
  const last = attemptsOf(log).findLast((one) => one.error || one.status === null || one.status >= FIRST_ERROR_STATUS);
  return {
    status: String(metrics.response_status_code ?? "none"),
    code: code || last?.error || responseError?.code || "",
    message: responseError?.message || last?.reason || "",
    host: last?.host ?? "",
    provider: last ? (last.savedProvider ? `@${last.savedProvider}` : last.provider) : "",
  };
}

interface ParsedError {
  code: string;
  message: string;
}

/** Returns the error in a body of any usual API format, complete or at the end of a stream. */
function errorIn(body: unknown): ParsedError | null {
  if (isLarge(body)) return null;
  if (typeof body === "string") return errorInText(body);
  const found = body as Dictionary | null;
  if (!found || typeof found !== "object") return null;
  const inner = (Array.isArray(found) ? (found[0] as Dictionary | undefined)?.error : found.error) ?? found;
  if (typeof inner === "string") return { code: "", message: inner };
  const { message, detail, code, type } = inner as Dictionary;
  const text = message ?? detail;
  if (text === undefined || text === null) return null;
  return { code: String(code ?? type ?? ""), message: typeof text === "string" ? text : JSON.stringify(text) };
}

function errorInText(body: string): ParsedError | null {
  const lines = body.split("\n").map((line) => line.replace(/^data:\s*/, ""));
  for (const part of [body, ...lines.reverse()]) {
    if (!part.startsWith("{") && !part.startsWith("[")) continue;
    try {
      const parsed = JSON.parse(part) as unknown;
      // Takes only events with an error, because other events of a stream may have a message, too.
      if (part === body || (parsed as Dictionary).error) return errorIn(parsed);
    } catch {
      // Not JSON; the next part may be.
    }
  }
  return body.trim() && body.length <= MAX_PLAIN_ERROR_CHARS ? { code: "", message: body.trim() } : null;
}

export function decisionsOf(log: Schema["Log"]): Dictionary[] {
  const listed = (log.details as Dictionary).decisions;
  return Array.isArray(listed) ? (listed as Dictionary[]) : [];
}

/** Verdict of a guardrail in a log. */
export interface GuardrailVerdict {
  id: string;
  stage: "input" | "output";
  verdict: "passed" | "failed" | "denied" | "would deny" | "skipped";
  /** Checks that failed, with their explanations, or why the guardrail was skipped. */
  detail: string;
  isDryRun: boolean;
  milliseconds: number;
}

/** Returns the id of a check that failed, and why it failed. */
function describeFailedCheck(check: Dictionary): string {
  const { explanation } = (check.data ?? {}) as Dictionary;
  return `${String(check.id)}${typeof explanation === "string" && explanation ? `: ${explanation}` : ""}`;
}

/** Returns the verdicts of the guardrails of a request. */
export function verdictsOf(log: Schema["Log"]): GuardrailVerdict[] {
  const results = (log.details as Dictionary).hook_results as Dictionary | undefined;
  const stages = [["input", results?.before_request_hooks], ["output", results?.after_request_hooks]] as const;
  return stages.flatMap(([stage, listed]) => {
    if (!Array.isArray(listed)) return [];
    return listed.map((one: Dictionary): GuardrailVerdict => {
      const checks = Array.isArray(one.checks) ? (one.checks as Dictionary[]) : [];
      const failed = checks.filter((check) => check.verdict === false).map(describeFailedCheck);
      const found = one.skipped ? "skipped" : one.verdict === false ? "failed" : "passed";
      const verdict = one.deny ? "denied" : one.would_deny ? "would deny" : found;
      const detail = one.skipped ? String(one.reason ?? "") : failed.join(", ");
      return { id: String(one.id), stage, verdict, detail, isDryRun: one.dry_run === true, milliseconds: Number(one.execution_time ?? 0) };
    });
  });
}

/** Returns the metadata of a request as text: "team: search, user: ann". */
export function metadataOf(metrics: Dictionary): string {
  const [names, values] = [metrics["metadata.key"], metrics["metadata.value"]];
  if (!Array.isArray(names) || !Array.isArray(values)) return "";
  return names.map((name, at) => `${String(name)}: ${String(values[at] ?? "")}`).join(", ");
}

/** Returns a rating of the request as a line of text. */
export function describeFeedback(one: Dictionary): string {
  const pairs = Object.entries((one.metadata ?? {}) as Dictionary).filter(([, value]) => value !== "");
  const metadata = pairs.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
  const weight = Number(one.weight ?? 1) === 1 ? "" : `weight ${String(one.weight)}`;
  return [`Rated ${String(one.value ?? "–")}`, weight, metadata].filter(Boolean).join(" · ");
}

/** Returns the text of a response in any of the usual API formats; empty if there is none. */
export function responseText(body: unknown): string {
  const found = body as Dictionary | null;
  if (!found || typeof found !== "object") return "";
  const choice = (found.choices as Dictionary[] | undefined)?.[0];
  const message = (choice?.message ?? {}) as Dictionary;
  if (typeof message.content === "string") return message.content;
  const blocks = (found.content ?? []) as Dictionary[];
  if (Array.isArray(blocks)) return blocks.map((block) => (typeof block.text === "string" ? block.text : "")).join("");
  return "";
}

export interface ChatMessage {
  role: string;
  text: string;
}

/** Returns the messages of a chat request; content other than text stays JSON. */
export function chatMessages(body: unknown): ChatMessage[] {
  const found = (body as Dictionary | null)?.messages;
  if (!Array.isArray(found)) return [];
  return found.map((message: Dictionary) => ({
    role: String(message.role ?? ""),
    text: typeof message.content === "string" ? message.content : JSON.stringify(message.content, null, 2),
  }));
}

function isLarge(body: unknown): boolean {
  return typeof body === "object" && body !== null && "largeBody" in body;
}

const SHELL_QUOTE = /'/g;

/** Returns the request as a curl command. The API key is a variable of the shell, because logs have no credentials. */
export function curlCommand(log: Schema["Log"], gateway: string): string {
  const quote = (text: string): string => `'${text.replace(SHELL_QUOTE, `'\\''`)}'`;
  const skipped = /^(content-length|host|user-agent|accept-encoding|connection|accept|traceparent|x-forwarded-.*|authorization|x-api-key|cookie)$/;
  const headers = Object.entries(log.request.headers as Record<string, string>).filter(([name]) => !skipped.test(name));
  const path = (log.request.url ?? "/").replace(/^\//, "");
  const parts = [
    `curl ${quote(gateway + path)} -X ${quote(log.request.method ?? "POST")}`,
    ...headers.map(([name, value]) => (value === "***" ? `-H ${quote(`${name}: `)}"$PENSTOCK_API_KEY"` : `-H ${quote(`${name}: ${value}`)}`)),
    // A large body is not on the page; it can be downloaded under this name.
    ...(isLarge(log.request.body) ? ["-d @request.json"] : log.request.body ? [`-d ${quote(JSON.stringify(log.request.body))}`] : []),
  ];
  return parts.join(" \\\n  ");
}
