// The first figure of the overview, requested together with the session. Otherwise one would wait for the other, and the
// page would show its first content later.
import type { Schema } from "./api";
import { apiUrl } from "./paths";
import { timeFilter } from "./range";
import { route } from "./router.svelte";

type Figure = Schema["RequestsGraph"];
/** Set in the storage of the browser while its user may see the figure. Others would only cause refused requests. */
const HINT = "penstock.sees-figures";
/** Age from which on the figure is requested again. */
const MAX_AGE_MS = 10_000;
let early: { search: string; sentAt: number; figure: Promise<Figure | null> } | null = null;

/** Remembers for the next time whether the user may see the figure. */
export function rememberSight(maySee: boolean): void {
  try {
    if (maySee) localStorage.setItem(HINT, "1");
    else localStorage.removeItem(HINT);
  } catch {
    // A browser without storage requests the figure later.
  }
}

function seesFigures(): boolean {
  try {
    return localStorage.getItem(HINT) !== null;
  } catch {
    return false;
  }
}

/** Requests the figure if the address is that of the overview. */
export function requestEarly(): void {
  if (route.page !== "overview" || !seesFigures()) return;
  const query = new URLSearchParams({ workspace_slug: route.param("ws") || "*", ...timeFilter() });
  const read = async (): Promise<Figure | null> => {
    const response = await fetch(apiUrl(`v1/analytics/graphs/requests?${query}`));
    return response.ok ? ((await response.json()) as Figure) : null;
  };
  early = { search: location.search, sentAt: Date.now(), figure: read().catch(() => null) };
}

/** Returns the figure that was requested early, once and for the same address; otherwise `null`. */
export async function takeEarly(): Promise<Figure | null> {
  const taken = early;
  early = null;
  return taken && taken.search === location.search && Date.now() - taken.sentAt < MAX_AGE_MS ? taken.figure : null;
}
