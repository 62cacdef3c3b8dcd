// Reads one log with a worker, so that bodies of megabytes never block the page.
import { send } from "./api";
import { parseError } from "./errors";
import type { BodyName, LargeBody, LoadedLog, OpenedLog, WorkerReply, WorkerRequest } from "./log-worker";
import { apiUrl } from "./paths";

export type { LargeBody, OpenedLog } from "./log-worker";

export function isLargeBody(value: unknown): value is LargeBody {
  return typeof value === "object" && value !== null && "largeBody" in value && "length" in value && "start" in value;
}

type TaskRequest = { load: string } | { part: BodyName; from: number; to: number };

export class LogReader {
  #worker: Worker | null = null;
  #waiting = new Map<number, { resolve: (reply: WorkerReply) => void; reject: (error: Error) => void }>();
  #count = 0;

  /** Loads a log. Replaces bodies that are too large for the page by their first characters. */
  async open(id: string, query: Record<string, string>, signal: AbortSignal): Promise<OpenedLog> {
    this.close();
    const url = apiUrl(`v1/logs/${encodeURIComponent(id)}?${new URLSearchParams(query)}`);
    let loaded: LoadedLog = { status: 0, requestId: "" };
    // The worker receives the body. `send` sees only the status, so that an expired session is handled as everywhere.
    const response = await send(new Request(url, { signal }), async (request) => {
      // After a sign-in, another log may be open: this one must not load in its worker.
      signal.throwIfAborted();
      loaded = await this.#load(request.url);
      return new Response(null, { status: loaded.status });
    });
    if (!response.ok || !loaded.opened) throw parseError(loaded.status, loaded.error, loaded.requestId);
    return loaded.opened;
  }

  async #load(url: string): Promise<LoadedLog> {
    const { loaded, problem } = await this.#runTask({ load: url });
    if (!loaded) throw new Error(problem ?? "the log cannot be read");
    if (loaded.status === 0) throw new TypeError("the gateway cannot be reached");
    return loaded;
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

  #runTask(task: TaskRequest): Promise<WorkerReply> {
    this.#worker ??= this.#start();
    const id = (this.#count += 1);
    this.#worker.postMessage({ id, ...task } satisfies WorkerRequest);
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
      if (this.#worker === worker) this.#worker = null;
    });
    return worker;
  }
}
