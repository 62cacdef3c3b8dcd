// Worker that loads one log. Bodies may have megabytes, and receiving and parsing them would block the page. Large bodies
// stay in the worker. The page gets their length and requests parts of their text.
import { chatMessages, PART_CHARS, responseText } from "./log-detail";
import { isReplayable } from "./replay";
import type { Schema } from "./api";

export const BODY_NAMES = ["request", "transformedRequest", "response", "originalResponse"] as const;
export type BodyName = (typeof BODY_NAMES)[number];

/** Replaces a body in a log that is too large for the page. */
export interface LargeBody {
  largeBody: BodyName;
  length: number;
  start: string;
}

export interface OpenedLog {
  log: Schema["Log"];
  messages: { role: string; text: string }[];
  answer: string;
  /** True if the playground can send the request again. */
  isReplayable: boolean;
}

/** What the gateway returned for a log. */
export interface LoadedLog {
  /** HTTP status; 0 if the gateway cannot be reached. */
  status: number;
  requestId: string;
  opened?: OpenedLog;
  /** Body of an error. */
  error?: unknown;
}

export type WorkerRequest = { id: number; load: string } | { id: number; part: BodyName; from: number; to: number };
export type WorkerReply = { id: number; loaded?: LoadedLog; text?: string; problem?: string };

const MAX_BODY_CHARS = 128 * 1024;
const MAX_MESSAGES = 100;
const MAX_MESSAGE_CHARS = 4000;
const MAX_ANSWER_CHARS = 8000;
const texts = new Map<BodyName, string>();

async function load(url: string): Promise<LoadedLog> {
  texts.clear();
  try {
    return await fetchLog(url);
  } catch (error) {
    // The connection failed, perhaps within the body.
    if (error instanceof TypeError) return { status: 0, requestId: "" };
    throw error;
  }
}

async function fetchLog(url: string): Promise<LoadedLog> {
  const response = await fetch(url, { headers: { accept: "application/json" } });
  const head = { status: response.status, requestId: response.headers.get("x-request-id") ?? "" };
  if (!response.ok) return { ...head, error: await response.json().catch(() => null) };
  return { ...head, opened: open((await response.json()) as Schema["Log"]) };
}

function open(log: Schema["Log"]): OpenedLog {
  const messages = chatMessages(log.request.body)
    .slice(-MAX_MESSAGES)
    .map((one) => ({ role: one.role.slice(0, 40), text: one.text.slice(0, MAX_MESSAGE_CHARS) }));
  const answer = responseText(log.response.body).slice(0, MAX_ANSWER_CHARS);
  const canReplay = isReplayable(log.request.body, String((log.details as Record<string, unknown>).operation ?? ""));
  for (const name of BODY_NAMES) {
    const holder = log[name] as { body?: unknown };
    const body = holder.body;
    const text = typeof body === "string" ? body : (JSON.stringify(body, null, 2) ?? "");
    if (text.length <= MAX_BODY_CHARS) continue;
    texts.set(name, text);
    holder.body = { largeBody: name, length: text.length, start: text.slice(0, PART_CHARS) } satisfies LargeBody;
  }
  return { log, messages, answer, isReplayable: canReplay };
}

async function reply(request: WorkerRequest): Promise<WorkerReply> {
  if ("load" in request) return { id: request.id, loaded: await load(request.load) };
  return { id: request.id, text: (texts.get(request.part) ?? "").slice(request.from, request.to) };
}

// Runs in the worker only. Pages import just the types of this file.
if (typeof document === "undefined") {
  addEventListener("message", (event: MessageEvent<WorkerRequest>) => {
    const request = event.data;
    void reply(request)
      .then((done) => postMessage(done))
      .catch((error: unknown) => postMessage({ id: request.id, problem: String(error) } satisfies WorkerReply));
  });
}
