// Live tail: new logs as the gateway writes them.
import { apiUrl } from "./paths";
import type { Schema } from "./api";

const MAX_ROWS = 500;
// Rows of a burst are shown together, because each change of the list costs a layout.
const SHOW_INTERVAL_MS = 100;

export class LogTail {
  rows = $state.raw<Schema["LogRecord"][]>([]);
  problem = $state("");

  clear(): void {
    this.rows = [];
  }

  /** Follows new logs that match a filter; returns a function that ends it. */
  follow(filter: Record<string, string>): () => void {
    const query = new URLSearchParams(Object.entries(filter).filter(([, value]) => value));
    const source = new EventSource(apiUrl(`v1/logs/tail?${query}`));
    source.addEventListener("connected", () => (this.problem = ""));
    let waiting: Schema["LogRecord"][] = [];
    let timer = 0;
    const show = (): void => {
      timer = 0;
      const fresh = new Map(waiting.slice(-MAX_ROWS).reverse().map((log) => [log.id, log]));
      waiting = [];
      this.rows = [...fresh.values(), ...this.rows.filter((row) => !fresh.has(row.id))].slice(0, MAX_ROWS);
    };
    source.addEventListener("log", (event: MessageEvent<string>) => {
      waiting.push(JSON.parse(event.data) as Schema["LogRecord"]);
      timer ||= window.setTimeout(show, SHOW_INTERVAL_MS);
    });
    source.addEventListener("dropped", () => (this.problem = "There are more new logs than can be shown; refresh to see all."));
    source.addEventListener("error", () => (this.problem = "The live tail was interrupted; it connects again by itself."));
    return () => {
      source.close();
      clearTimeout(timer);
      this.problem = "";
    };
  }
}
