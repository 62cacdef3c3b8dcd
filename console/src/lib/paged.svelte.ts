// A list that is loaded page by page. A filter in the browser needs all rows, so it loads the remaining pages.
import { Loader } from "./loader.svelte";

export const PAGE_SIZE = 200;
/** Number of rows from which on a filter does not load more pages by itself. */
const MAX_FILTERED_ROWS = 20_000;

interface ListPage<T> {
  data: T[];
  total: number;
}

export class PagedLoader<T> {
  isLoadingMore = $state(false);
  moreError = $state.raw<unknown>(null);
  #later = $state.raw<T[]>([]);
  #pages = 1;
  #first: Loader<ListPage<T> | null>;
  #request: (page: number, signal: AbortSignal) => Promise<ListPage<T> | null>;

  /** `request` returns a page of at most PAGE_SIZE rows. `isFiltering` returns true if all rows are needed. */
  constructor(request: (page: number, signal: AbortSignal) => Promise<ListPage<T> | null>, isFiltering: () => boolean = () => false) {
    this.#request = request;
    this.#first = new Loader(async (signal) => {
      const found = await request(0, signal);
      this.#later = [];
      this.#pages = 1;
      return found;
    });
    $effect(() => {
      if (isFiltering() && this.hasMore && !this.isLoadingMore && !this.moreError && this.rows.length < MAX_FILTERED_ROWS) void this.loadMore();
    });
  }

  get data(): ListPage<T> | null {
    return this.#first.data;
  }

  get error(): unknown {
    return this.#first.error ?? this.moreError;
  }

  get isLoading(): boolean {
    return this.#first.isLoading;
  }

  get rows(): T[] {
    return this.#later.length ? [...(this.data?.data ?? []), ...this.#later] : (this.data?.data ?? []);
  }

  get total(): number {
    return this.data?.total ?? 0;
  }

  get hasMore(): boolean {
    return this.rows.length < this.total;
  }

  reload = (): Promise<void> => {
    this.moreError = null;
    return this.#first.reload();
  };

  loadMore = async (): Promise<void> => {
    if (this.isLoadingMore) return;
    const start = this.data;
    this.isLoadingMore = true;
    try {
      const found = await this.#request(this.#pages, new AbortController().signal);
      // Drops the page if the list was loaded again meanwhile.
      if (start !== this.data) return;
      this.#later = [...this.#later, ...(found?.data ?? [])];
      this.#pages += 1;
      this.moreError = found?.data.length ? null : new Error("the list became shorter meanwhile; load it again");
    } catch (error) {
      this.moreError = error;
    } finally {
      this.isLoadingMore = false;
    }
  };
}
