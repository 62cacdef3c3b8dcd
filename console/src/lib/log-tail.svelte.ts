// Live tail: new logs as the gateway writes them.
import { api, get, type Schema } from "./api";
import { apiUrl } from "./paths";

const MAX_ROWS = 500;
// Rows of a burst are shown together, because each change of the list costs a layout.
const SHOW_INTERVAL_MS = 100;
const RETRY_MS = 2000;

export class LogTail {
  rows = $state.raw<Schema["LogRecord"][]>([]);
  problem = $state("");

  clear(): void {
    this.rows = [];
  }

  /** Follows new logs that match a filter. Returns a function that stops following. */
  follow(filter: Record<string, string>): () => void {
    const query = new URLSearchParams(Object.entries(filter).filter(([, value]) => value));
    let isEnded = false;
    let end = (): void => undefined;
    const start = (): void => {
      end = this.#connect(query, () => void reconnect());
    };
    // A browser does not reopen a stream that the gateway rejected, for example because the session has ended.
    const reconnect = async (): Promise<void> => {
      await get(api.GET("/v1/auth/self")).catch(() => null);
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      if (!isEnded) start();
    };
    start();
    return () => {
      isEnded = true;
      end();
      this.problem = "";
    };
  }

  /** Opens the stream; `onrejected` is called if the gateway rejects it. Returns a function that closes it. */
  #connect(query: URLSearchParams, onrejected: () => void): () => void {
    const source = new EventSource(apiUrl(`v1/logs/tail?${query}`));
    source.addEventListener("connected", () => (this.problem = ""));
    let waiting: Schema["LogRecord"][] = [];
    let timer = 0;
    const show = (): void => {
      timer = 0;
      const newRows = new Map(waiting.slice(-MAX_ROWS).reverse().map((log) => [log.id, log]));
      waiting = [];
      this.rows = [...newRows.values(), ...this.rows.filter((row) => !newRows.has(row.id))].slice(0, MAX_ROWS);
    };
    source.addEventListener("log", (event: MessageEvent<string>) => {
      waiting.push(JSON.parse(event.data) as Schema["LogRecord"]);
      timer ||= window.setTimeout(show, SHOW_INTERVAL_MS);
    });
    source.addEventListener("dropped", () => (this.problem = "There are more new logs than can be shown; refresh to see all."));
    source.addEventListener("error", () => {
      this.problem = "The live tail was interrupted; it connects again by itself.";
      if (source.readyState === EventSource.CLOSED) onrejected();
    });
    return () => {
      source.close();
      clearTimeout(timer);
    };
  }
}
