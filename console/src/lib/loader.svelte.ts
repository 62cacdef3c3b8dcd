// Loads data for a component, again whenever the state that the request depends on changes.
import { untrack } from "svelte";

export class Loader<T> {
  data = $state.raw<T | null>(null);
  error = $state.raw<unknown>(null);
  isLoading = $state(false);
  #request: (signal: AbortSignal) => Promise<T>;
  #running: AbortController | null = null;
  #newest: Promise<void> = Promise.resolve();

  constructor(request: (signal: AbortSignal) => Promise<T>) {
    this.#request = request;
    $effect(() => {
      this.#newest = this.#run();
      return () => this.#running?.abort();
    });
  }

  reload = (): Promise<void> => untrack(() => (this.#newest = this.#run()));

  /**
   * Returns the data after the requests that are on their way. A change that names the state of the data needs them:
   * with older data, a change that the user made just before would look like one of somebody else.
   */
  async latest(): Promise<T | null> {
    for (let awaited: Promise<void> | undefined; awaited !== this.#newest; ) {
      awaited = this.#newest;
      await awaited;
    }
    return this.data;
  }

  async #run(): Promise<void> {
    this.#running?.abort();
    const running = new AbortController();
    this.#running = running;
    // Svelte tracks the state that the request reads before its first `await`, and loads again when it changes.
    const answer = this.#request(running.signal);
    untrack(() => (this.isLoading = true));
    try {
      const data = await answer;
      if (running.signal.aborted) return;
      this.data = data;
      this.error = null;
    } catch (error) {
      if (!running.signal.aborted) this.error = error;
    } finally {
      if (this.#running === running) this.isLoading = false;
    }
  }
}
