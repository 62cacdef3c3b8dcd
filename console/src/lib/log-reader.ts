// Reads one log with a worker, so that bodies of megabytes never block the page.
import { send } from "./api";
import { parseError } from "./errors";
import type { BodyName, LargeBody, OpenedLog, WorkerReply, WorkerRequest } from "./log-worker";
import { apiUrl } from "./paths";

export type { LargeBody, OpenedLog } from "./log-worker";

export function isLargeBody(value: unknown): value is LargeBody {
  return typeof value === "object" && value !== null && "largeBody" in value && "length" in value && "start" in value;
}

type TaskRequest = { open: ArrayBuffer } | { part: BodyName; from: number; to: number };

export class LogReader {
  #worker: Worker | null = null;
  #waiting = new Map<number, { resolve: (reply: WorkerReply) => void; reject: (error: Error) => void }>();
  #count = 0;

  /** Loads a log. Replaces bodies that are too large for the page by their first characters. */
  async open(id: string, query: Record<string, string>, signal: AbortSignal): Promise<OpenedLog> {
    this.close();
    const response = await send(new Request(apiUrl(`v1/logs/${encodeURIComponent(id)}?${new URLSearchParams(query)}`), { headers: { accept: "application/json" }, signal }));
    if (!response.ok) throw parseError(response.status, await response.json().catch(() => null), response.headers.get("x-request-id") ?? "");
    const buffer = await response.arrayBuffer();
    const reply = await this.#runTask({ open: buffer }, [buffer]);
    if (!reply.opened) throw new Error(reply.problem ?? "the log cannot be read");
    return reply.opened;
  }

  /** Returns a part of the text of a large body. */
  async part(name: BodyName, from: number, to: number): Promise<string> {
    return (await this.#runTask({ part: name, from, to })).text ?? "";
  }

  close(): void {
    this.#worker?.terminate();
    this.#worker = null;
    for (const { reject } of this.#waiting.values()) reject(new Error("the log was closed"));
    this.#waiting.clear();
  }

  #runTask(task: TaskRequest, transfer: Transferable[] = []): Promise<WorkerReply> {
    this.#worker ??= this.#start();
    const id = (this.#count += 1);
    this.#worker.postMessage({ id, ...task } satisfies WorkerRequest, transfer);
    return new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
  }

  #start(): Worker {
    const worker = new Worker(new URL("./log-worker.ts", import.meta.url), { type: "module" });
    worker.addEventListener("message", (event: MessageEvent<WorkerReply>) => {
      this.#waiting.get(event.data.id)?.resolve(event.data);
      this.#waiting.delete(event.data.id);
    });
    worker.addEventListener("error", () => {
      for (const { reject } of this.#waiting.values()) reject(new Error("the log cannot be read by this browser"));
      this.#waiting.clear();
    });
    return worker;
  }
}
