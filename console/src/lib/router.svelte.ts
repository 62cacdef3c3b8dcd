// Router on the History API. The path chooses the page, and the query holds its whole state, so every view is a link.
import { untrack } from "svelte";
import { consoleUrl, pageUrl } from "./paths";

type Query = Record<string, string | null | undefined>;
/** Parameters of a list without its page, open row and collection, which another workspace or range does not have. */
export const FIRST_PAGE = { page: null, entry: null, at: null, collection: null };

/** Decodes a segment of a path. A segment with an invalid encoding stays as it is. */
function decodeSegment(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

class Route {
  path = $state("");
  #search = $state("");
  /** One signal per query parameter, so that a change reloads only the data that depends on that parameter. */
  #params = $state<Record<string, string>>({});

  /** Path segments: the page, then its parameters. */
  get segments(): string[] {
    return this.path.split("/").filter(Boolean).map(decodeSegment);
  }

  /** Name of the page. */
  get page(): string {
    return this.segments[0] ?? "overview";
  }

  /** All parameters, in the order of the address. */
  get query(): URLSearchParams {
    return new URLSearchParams(this.#search);
  }

  param(name: string): string {
    return this.#params[name] ?? "";
  }

  /** Takes the address of the browser. */
  read(): void {
    const query = new URLSearchParams(location.search);
    this.path = location.pathname.slice(consoleUrl.pathname.length);
    this.#search = location.search;
    for (const name of Object.keys(this.#params)) if (!query.has(name)) delete this.#params[name];
    for (const name of query.keys()) this.#params[name] = query.get(name) ?? "";
  }
}

export const route = new Route();

/** The address that the page shows. It differs from the browser's while a dialog asks whether to leave. */
let shownAt = location.href;

/** Guards of the forms on the page. Each returns why the page must not be left, or an empty string. */
const guards = new Set<() => string>();
let confirmLeave: (reason: string) => Promise<boolean> = () => Promise.resolve(true);

/** Guards against the loss of unsaved changes. Returns a function that ends the guard. */
export function guardUnsaved(reason: () => string): () => void {
  guards.add(reason);
  return () => guards.delete(reason);
}

/** Ends all guards, before the page is loaded again without a question. */
export function dropUnsaved(): void {
  guards.clear();
}

function unsavedReason(): string {
  for (const guard of guards) if (guard()) return guard();
  return "";
}

export function setLeaveConfirmation(confirm: (reason: string) => Promise<boolean>): void {
  confirmLeave = confirm;
}

/** Returns false if the user wants to stay with unsaved changes. Otherwise removes the guards of what is left. */
export async function mayLeave(left = [...guards]): Promise<boolean> {
  const reason = left.map((guard) => guard()).find(Boolean);
  if (reason && !(await confirmLeave(reason))) return false;
  for (const guard of left) guards.delete(guard);
  return true;
}

/** Returns the address of a page with a query. The selected workspace stays part of every address. */
export function link(page: string, query: Query = {}): string {
  const search = new URLSearchParams();
  const workspace = route.param("ws");
  if (workspace) search.set("ws", workspace);
  for (const [name, value] of Object.entries(query)) {
    if (value) search.set(name, value);
    else search.delete(name);
  }
  const text = search.toString();
  return pageUrl(page) + (text ? `?${text}` : "");
}

function readLocation(): void {
  // An effect that changes the address must not depend on all of it.
  untrack(() => route.read());
  shownAt = location.href;
}

/** Opens an address of the console. */
export async function navigate(url: string, options: { replace?: boolean } = {}): Promise<void> {
  const target = new URL(url, location.href);
  const isOtherPage = target.pathname !== location.pathname;
  if (isOtherPage && !(await mayLeave())) return;
  history[options.replace ? "replaceState" : "pushState"](null, "", target);
  readLocation();
  if (isOtherPage) document.querySelector("main")?.scrollTo(0, 0);
}

/** Changes parameters of the current address; empty values remove them. */
export function setQuery(values: Query, options: { push?: boolean } = {}): void {
  const search = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value) search.set(name, value);
    else search.delete(name);
  }
  const text = search.toString();
  history[options.push ? "pushState" : "replaceState"](null, "", location.pathname + (text ? `?${text}` : ""));
  readLocation();
}

/** Parameters of the address that open a form over the page, and name what it edits. */
const FORM_PARAMS = ["new", "create", "edit", "access", "label"];

/** Returns the guards of what the browser has left: those of the page, or the newest one, of a form over the page. */
function leftGuards(): (() => string)[] {
  const [shown, wanted] = [new URL(shownAt), new URL(location.href)];
  if (shown.pathname !== wanted.pathname) return [...guards];
  const isFormLeft = (name: string): boolean => shown.searchParams.has(name) && shown.searchParams.get(name) !== wanted.searchParams.get(name);
  return FORM_PARAMS.some(isFormLeft) ? [...guards].slice(-1) : [];
}

/** Follows the browser's history and clicks on links of the console. */
export function startRouter(): void {
  readLocation();
  addEventListener("popstate", async () => {
    const wanted = location.href;
    const left = leftGuards();
    if (left.some((guard) => guard())) {
      history.pushState(null, "", shownAt);
      if (!(await mayLeave(left))) return;
      history.replaceState(null, "", wanted);
    }
    readLocation();
  });
  addEventListener("beforeunload", (event) => {
    if (unsavedReason()) event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    const anchor = event.target instanceof Element ? event.target.closest("a") : null;
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (!anchor || !isPlain || event.defaultPrevented || anchor.target || anchor.hasAttribute("download")) return;
    if (anchor.origin !== location.origin || !anchor.pathname.startsWith(consoleUrl.pathname)) return;
    event.preventDefault();
    void navigate(anchor.href);
  });
}
