// A request that a form or a button sends: whether it is in progress, and why it failed. On slow networks, people click
// twice. A second submission is ignored while the first one is in progress.
import { messageOf } from "./errors";
import { toasts } from "./toasts.svelte";

export class Submission {
  error = $state.raw<unknown>(null);
  isBusy = $state(false);

  /** Runs an action unless one is running. Returns true if it succeeded. */
  async run(action: () => Promise<unknown>): Promise<boolean> {
    if (this.isBusy) return false;
    this.isBusy = true;
    try {
      await action();
      this.error = null;
      return true;
    } catch (error) {
      this.error = error;
      return false;
    } finally {
      this.isBusy = false;
    }
  }

  /** Runs an action of a button, and shows its outcome as a message. Returns true if it succeeded. */
  async announce(action: () => Promise<unknown>, done: string): Promise<boolean> {
    if (this.isBusy) return false;
    const isDone = await this.run(action);
    if (isDone) toasts.show(done);
    else toasts.show(messageOf(this.error), true);
    return isDone;
  }
}
