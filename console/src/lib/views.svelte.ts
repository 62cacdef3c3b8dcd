// Saved views of a page: names for queries of its address. They are stored only in this browser, because the API does
// not store them. To share a view, users send its address.

interface View {
  name: string;
  query: string;
}

const MAX_VIEWS = 50;

function isView(value: unknown): value is View {
  const found = value as Partial<View> | null;
  return typeof found === "object" && typeof found?.name === "string" && typeof found.query === "string";
}

export class SavedViews {
  list = $state<View[]>([]);
  #name: string;

  constructor(page: string) {
    this.#name = `penstock.views.${page}`;
    try {
      const stored: unknown = JSON.parse(localStorage.getItem(this.#name) ?? "[]");
      this.list = Array.isArray(stored) ? stored.filter(isView).slice(0, MAX_VIEWS) : [];
    } catch {
      // Ignores stored text that is not JSON.
    }
  }

  /** Saves a query under a name. Replaces a view with the same name. */
  save(name: string, query: string): void {
    this.#store([...this.list.filter((one) => one.name !== name), { name, query }].slice(-MAX_VIEWS));
  }

  remove(name: string): void {
    this.#store(this.list.filter((one) => one.name !== name));
  }

  #store(list: View[]): void {
    this.list = list.toSorted((one, other) => one.name.localeCompare(other.name));
    localStorage.setItem(this.#name, JSON.stringify(this.list));
  }
}
