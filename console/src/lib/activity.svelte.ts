// Counts requests to the API that wait for their response. The console shows progress while there are any.
import { untrack } from "svelte";

class Activity {
  #open = $state(0);

  get isWaiting(): boolean {
    return this.#open > 0;
  }

  /** Counts a request as waiting until its response arrives. */
  async track<T>(response: Promise<T>): Promise<T> {
    // Loaders send requests from effects, which must not depend on this count.
    untrack(() => (this.#open += 1));
    try {
      return await response;
    } finally {
      this.#open -= 1;
    }
  }
}

export const activity = new Activity();
