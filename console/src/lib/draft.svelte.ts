// Edits of one object. Saves only the fields that changed, and never overwrites changes of others.
import { changedFields, type Loaded } from "./api";
import { ApiError } from "./errors";
import { guardUnsaved } from "./router.svelte";

const PRECONDITION_FAILED = 412;

export interface Source<T> {
  /** Reads the editable fields. */
  load: () => Promise<Loaded<T>>;
  /** Saves changed fields if the object is still in the state of `etag`. */
  save: (changed: Partial<T>, etag: string) => Promise<unknown>;
}

export class Draft<T extends object> {
  value = $state<T | null>(null);
  error = $state.raw<unknown>(null);
  isSaving = $state(false);
  /** What others saved meanwhile. */
  theirs = $state.raw<Loaded<T> | null>(null);
  #base = $state.raw<T | null>(null);
  #etag = "";
  #source: Source<T>;

  constructor(source: Source<T>) {
    this.#source = source;
    $effect(() => guardUnsaved(() => (this.isDirty ? "The changes on this page are not saved." : "")));
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
      this.error = null;
    } catch (error) {
      this.error = error;
    }
  }

  reset(): void {
    this.value = this.#base ? structuredClone(this.#base) : null;
    this.error = null;
  }

  /** Saves the changes; returns true if they are saved. */
  async save(): Promise<boolean> {
    if (!this.isDirty || this.isSaving) return false;
    this.isSaving = true;
    try {
      await this.#source.save(this.changed, this.#etag);
      this.#accept(await this.#source.load());
      this.error = null;
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
      this.theirs = await this.#source.load();
    } catch (error) {
      this.error = error;
    }
  }

  /** Puts the own changes on top of what others saved, and saves them. */
  async keepMine(): Promise<boolean> {
    const theirs = this.theirs;
    if (!theirs || !this.value) return false;
    const mine = this.changed;
    this.#accept(theirs);
    Object.assign(this.value, mine);
    return this.isDirty ? this.save() : true;
  }

  /** Gives up the own changes. */
  takeTheirs(): void {
    if (this.theirs) this.#accept(this.theirs);
  }

  #accept(loaded: Loaded<T>): void {
    this.#base = loaded.data;
    this.value = structuredClone(loaded.data);
    this.#etag = loaded.etag;
    this.theirs = null;
  }
}
