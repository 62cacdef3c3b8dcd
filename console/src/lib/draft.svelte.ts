// Edits of one object. Saves only the fields that changed, and never overwrites changes of others.
import type { Loaded } from "./api";
import { changedFields, mergeChanges, type Merge } from "./changes";
import { dialogs } from "./dialogs.svelte";
import { ApiError } from "./errors";
import { guardUnsaved } from "./router.svelte";

const PRECONDITION_FAILED = 412;
const UNSAVED = "The changes on this page are not saved.";

/** Editable fields of an object, and the object itself for what the form only shows. */
export interface Opened<T, D> extends Loaded<T> {
  detail?: D;
}

export interface Source<T, D> {
  /** Reads the editable fields. */
  load: () => Promise<Opened<T, D>>;
  /** Saves changed fields if the object is still in the state of `etag`. */
  save: (changed: Partial<T>, etag: string) => Promise<unknown>;
}

export class Draft<T extends object, D = unknown> {
  value = $state<T | null>(null);
  /** The saved object, if the source returns it. */
  detail = $state.raw<D | null>(null);
  error = $state.raw<unknown>(null);
  isSaving = $state(false);
  /** Version that another user saved in the meantime. Set after a save failed with a conflict. */
  savedByOthers = $state.raw<Opened<T, D> | null>(null);
  #base = $state.raw<T | null>(null);
  #etag = "";
  /** Number of the newest state that was requested or saved. Older responses that arrive later are dropped. */
  #newest = 0;
  #renewal: Promise<void> = Promise.resolve();
  #source: Source<T, D>;

  constructor(source: Source<T, D>) {
    this.#source = source;
    $effect(() => guardUnsaved(() => (this.isDirty ? UNSAVED : "")));
  }

  get changed(): Partial<T> {
    return this.#base && this.value ? changedFields(this.#base, $state.snapshot(this.value) as T) : {};
  }

  get isDirty(): boolean {
    return Object.keys(this.changed).length > 0;
  }

  get base(): T | null {
    return this.#base;
  }

  async open(): Promise<void> {
    try {
      this.#accept(await this.#source.load());
    } catch (error) {
      this.error = error;
    }
  }

  /**
   * Loads the object again after a change of fields that this form does not have. Unsaved edits stay. A save waits for
   * the response, so that it does not take this change for one of somebody else.
   */
  renew(): Promise<void> {
    this.#renewal = this.#loadAgain();
    return this.#renewal;
  }

  async #loadAgain(): Promise<void> {
    const number = (this.#newest += 1);
    const loaded = await this.#source.load().catch(() => null);
    if (!loaded || !this.#base || number !== this.#newest) return;
    this.detail = loaded.detail ?? null;
    if (!this.isDirty) this.#accept(loaded);
    // If others changed fields of this form, the old ETag stays, so that the next save reports a conflict.
    else if (Object.keys(changedFields(this.#base, loaded.data)).length === 0) this.#etag = loaded.etag;
  }

  /** Marks fields as saved, for a source that saves in several requests, of which a later one may fail. */
  markSaved(saved: Partial<T>, etag: string): void {
    this.#newest += 1;
    if (this.#base) this.#base = { ...this.#base, ...saved };
    this.#etag = etag;
  }

  /** Returns true if there are no changes, or if the user agrees to lose them. */
  mayClose = async (): Promise<boolean> => !this.isDirty || dialogs.ask({ title: "Leave without saving?", text: UNSAVED, confirm: "Leave", isDangerous: true });

  reset(): void {
    this.value = this.#base ? structuredClone(this.#base) : null;
    this.error = null;
  }

  /** Saves the changes; returns true if they are saved. */
  async save(): Promise<boolean> {
    if (!this.isDirty || this.isSaving) return false;
    this.isSaving = true;
    try {
      await this.#renewal;
      // The changes may have been discarded meanwhile.
      if (!this.isDirty) return false;
      const sent = $state.snapshot(this.value) as T;
      await this.#source.save(this.changed, this.#etag);
      const saved = await this.#source.load();
      // What was typed while the request was on its way is not saved yet.
      const later = changedFields(sent, $state.snapshot(this.value) as T);
      this.#accept(saved);
      Object.assign(this.value as T, later);
      return true;
    } catch (error) {
      if (error instanceof ApiError && error.status === PRECONDITION_FAILED) await this.#openTheirs();
      else this.error = error;
      return false;
    } finally {
      this.isSaving = false;
    }
  }

  async #openTheirs(): Promise<void> {
    try {
      this.savedByOthers = await this.#source.load();
    } catch (error) {
      this.error = error;
    }
  }

  /** Returns the state that others saved with this user's changes; `null` without a conflict. */
  merge(): Merge<T> | null {
    if (!this.savedByOthers || !this.value || !this.#base) return null;
    return mergeChanges(this.#base, $state.snapshot(this.value) as T, this.savedByOthers.data);
  }

  /** Applies this user's changes to the state that others saved, and saves the result. */
  async keepMine(): Promise<boolean> {
    const [saved, merge] = [this.savedByOthers, this.merge()];
    if (!saved || !merge) return false;
    this.#accept(saved);
    this.value = structuredClone(merge.merged);
    return this.isDirty ? this.save() : true;
  }

  /** Discards this user's changes, and shows the state that others saved. */
  takeTheirs(): void {
    if (this.savedByOthers) this.#accept(this.savedByOthers);
  }

  #accept(loaded: Opened<T, D>): void {
    this.#newest += 1;
    this.detail = loaded.detail ?? null;
    this.#base = loaded.data;
    this.value = structuredClone(loaded.data);
    this.#etag = loaded.etag;
    this.savedByOthers = null;
    this.error = null;
  }
}
