// Ranges of time: a length before now, or two times. The address contains `range`, or `from` and `to`.
import { FIRST_PAGE, route, setQuery } from "./router.svelte";

export const RANGES: Record<string, { label: string; ms: number }> = {
  "15m": { label: "15 minutes", ms: 15 * 60_000 },
  "1h": { label: "1 hour", ms: 3_600_000 },
  "6h": { label: "6 hours", ms: 6 * 3_600_000 },
  "24h": { label: "24 hours", ms: 24 * 3_600_000 },
  "7d": { label: "7 days", ms: 7 * 86_400_000 },
  "30d": { label: "30 days", ms: 30 * 86_400_000 },
  "90d": { label: "90 days", ms: 90 * 86_400_000 },
};
export const DEFAULT_RANGE = "24h";

export interface TimeFilter {
  time_of_generation_min: string;
  time_of_generation_max?: string;
}

/** Returns the filter for the range in the address. */
export function timeFilter(): TimeFilter {
  const [from, to] = [route.param("from"), route.param("to")];
  if (from) return { time_of_generation_min: from, ...(to ? { time_of_generation_max: to } : {}) };
  const length = RANGES[route.param("range")] ?? RANGES[DEFAULT_RANGE];
  return { time_of_generation_min: new Date(Date.now() - (length?.ms ?? 0)).toISOString() };
}

/** Returns the length of the range in the address, in milliseconds. */
export function rangeLength(): number {
  const { time_of_generation_min: from, time_of_generation_max: to } = timeFilter();
  return Math.max(0, (to ? Date.parse(to) : Date.now()) - Date.parse(from));
}

export function setRange(name: string): void {
  setQuery({ range: name === DEFAULT_RANGE ? null : name, from: null, to: null, ...FIRST_PAGE }, { push: true });
}

export function setTimes(from: Date, to: Date): void {
  setQuery({ range: null, from: from.toISOString(), to: to.toISOString(), ...FIRST_PAGE }, { push: true });
}

/** Parameters of the address that select a range. Links to other pages keep them. */
export function rangeQuery(): Record<string, string> {
  const found: Record<string, string> = {};
  for (const name of ["range", "from", "to"]) if (route.param(name)) found[name] = route.param(name);
  return found;
}
