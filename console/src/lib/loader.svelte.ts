// Loads data for a component, again whenever the state that the request depends on changes.
import { untrack } from "svelte";

export class Loader<T> {
  data = $state.raw<T | null>(null);
  error = $state.raw<unknown>(null);
  isLoading = $state(false);
  #request: (signal: AbortSignal) => Promise<T>;
  #running: AbortController | null = null;

  constructor(request: (signal: AbortSignal) => Promise<T>) {
    this.#request = request;
    $effect(() => {
      void this.#run();
      return () => this.#running?.abort();
    });
  }

  reload = (): Promise<void> => untrack(() => this.#run());

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
