// Guards the form of a new object, whose text exists only in the page: it asks before edits are lost, and stays open
// while the request is on its way.
import { dialogs } from "./dialogs.svelte";
import { guardUnsaved } from "./router.svelte";
import type { Submission } from "./submission.svelte";

const UNSAVED = "What you entered is not saved.";

export class FormGuard {
  #first: string;
  #fields: () => unknown;
  #submission: Submission;

  /** `fields` returns what the user may edit. */
  constructor(fields: () => unknown, submission: Submission) {
    this.#fields = fields;
    this.#first = JSON.stringify(fields());
    this.#submission = submission;
    // Does not guard while the form is being sent, because success opens another page.
    $effect(() => guardUnsaved(() => (this.#isEdited && !this.#submission.isBusy ? UNSAVED : "")));
  }

  get #isEdited(): boolean {
    return JSON.stringify(this.#fields()) !== this.#first;
  }

  /** Returns true if nothing was edited, or if the user agrees to lose the edits. */
  mayClose = async (): Promise<boolean> => {
    if (this.#submission.isBusy) return false;
    return !this.#isEdited || dialogs.ask({ title: "Close without saving?", text: UNSAVED, confirm: "Discard", isDangerous: true });
  };
}
