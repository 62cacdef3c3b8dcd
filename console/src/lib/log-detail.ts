// Parts of a log that the sheet shows.
import type { Schema } from "./api";

/** Characters of a large body that the page shows at once. */
export const PART_CHARS = 64 * 1024;

export interface Attempt {
  provider: string;
  savedProvider: string;
  model: string;
  target: string;
  host: string;
  status: number | null;
  error: string;
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
    start: Number(one.start ?? 0),
    duration: Number(one.duration ?? 0),
  }));
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
  /** Ids of the checks that failed, or why the guardrail was skipped. */
  detail: string;
  isDryRun: boolean;
  milliseconds: number;
}

/** Returns the verdicts of the guardrails of a request. */
export function verdictsOf(log: Schema["Log"]): GuardrailVerdict[] {
  const results = (log.details as Dictionary).hook_results as Dictionary | undefined;
  const stages = [["input", results?.before_request_hooks], ["output", results?.after_request_hooks]] as const;
  return stages.flatMap(([stage, listed]) => {
    if (!Array.isArray(listed)) return [];
    return listed.map((one: Dictionary): GuardrailVerdict => {
      const checks = Array.isArray(one.checks) ? (one.checks as Dictionary[]) : [];
      const failed = checks.filter((check) => check.verdict === false).map((check) => String(check.id));
      const found = one.skipped ? "skipped" : one.verdict === false ? "failed" : "passed";
      const verdict = one.deny ? "denied" : one.would_deny ? "would deny" : found;
      const detail = one.skipped ? String(one.reason ?? "") : failed.join(", ");
      return { id: String(one.id), stage, verdict, detail, isDryRun: one.dry_run === true, milliseconds: Number(one.execution_time ?? 0) };
    });
  });
}

/** Returns a rating of the request, as a line of text. */
export function describeFeedback(one: Dictionary): string {
  const metadata = one.metadata && Object.keys(one.metadata).length ? JSON.stringify(one.metadata) : "";
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
    `curl ${quote(gateway + path)} -X ${log.request.method ?? "POST"}`,
    ...headers.map(([name, value]) => (value === "***" ? `-H "${name}: $PENSTOCK_API_KEY"` : `-H ${quote(`${name}: ${value}`)}`)),
    // A large body is not on the page; it can be downloaded under this name.
    ...(isLarge(log.request.body) ? ["-d @request.json"] : log.request.body ? [`-d ${quote(JSON.stringify(log.request.body))}`] : []),
  ];
  return parts.join(" \\\n  ");
}
