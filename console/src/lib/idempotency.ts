// Idempotency keys of requests that create something. If no response arrives, the user submits the form again; with the
// key of the first attempt, the gateway replays the first response instead of creating a second object.
import { randomId } from "./api";

export class IdempotencyKeys {
  /** Keys by what was sent, because the gateway rejects a key that comes with another body. */
  #keys = new Map<string, string>();

  /** Returns the header for a request. Equal bodies have equal headers until `clear`. */
  header(sent: unknown): { "idempotency-key": string } {
    const text = JSON.stringify(sent);
    const key = this.#keys.get(text) ?? randomId();
    this.#keys.set(text, key);
    return { "idempotency-key": key };
  }

  /** Forgets all keys, so that an equal request creates another object. */
  clear(): void {
    this.#keys.clear();
  }
}
