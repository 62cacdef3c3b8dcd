// Live tail: new logs as the gateway writes them.
import { apiUrl } from "./paths";
import type { Schema } from "./api";

const MAX_ROWS = 500;

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
    source.addEventListener("log", (event: MessageEvent<string>) => {
      const log = JSON.parse(event.data) as Schema["LogRecord"];
      this.rows = [log, ...this.rows.filter((row) => row.id !== log.id)].slice(0, MAX_ROWS);
    });
    source.addEventListener("dropped", () => (this.problem = "There are more new logs than can be shown; refresh to see all."));
    source.addEventListener("error", () => (this.problem = "The live tail was interrupted; it connects again by itself."));
    return () => {
      source.close();
      this.problem = "";
    };
  }
}
