// A request that a form or a button sends: whether it is on its way, and why it failed. Slow networks make people click
// twice; a second submission while the first one is on its way is ignored, and one after it creates nothing twice.
import { messageOf } from "./errors";
import { IdempotencyKeys } from "./idempotency";
import { toasts } from "./toasts.svelte";

export class Submission {
  error = $state.raw<unknown>(null);
  isBusy = $state(false);
  #keys = new IdempotencyKeys();

  /** Returns the header with which a request creates once, however often it is submitted until it succeeds. */
  once(sent: unknown): { "idempotency-key": string } {
    return this.#keys.header(sent);
  }

  /** Runs an action unless one is running; returns true if it succeeded. */
  async run(action: () => Promise<unknown>): Promise<boolean> {
    if (this.isBusy) return false;
    this.isBusy = true;
    try {
      await action();
      this.#keys.clear();
      this.error = null;
      return true;
    } catch (error) {
      this.error = error;
      return false;
    } finally {
      this.isBusy = false;
    }
  }

  /** Runs an action of a button, and shows its outcome as a message; returns true if it succeeded. */
  async announce(action: () => Promise<unknown>, done: string): Promise<boolean> {
    if (this.isBusy) return false;
    const isDone = await this.run(action);
    if (isDone) toasts.show(done);
    else toasts.show(messageOf(this.error), true);
    return isDone;
  }
}
