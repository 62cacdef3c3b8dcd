// Formats numbers, costs and times for display.
import { preferences } from "./preferences.svelte";

const EMPTY = "–";
const BYTE_UNITS = ["KiB", "MiB", "GiB", "TiB"];

export function formatNumber(value: number | string | null | undefined, digits = 0): string {
  if (value === null || value === undefined || value === "") return EMPTY;
  return Number(value).toLocaleString("en", { maximumFractionDigits: digits });
}

/** Formats a number of things: "1 request", "2 requests". */
export function formatCount(count: number, noun: string): string {
  return `${formatNumber(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Formats a large number with a unit: 12,300 is 12.3k. */
export function formatCompact(value: number | string | null | undefined): string {
  if (value === null || value === undefined) return EMPTY;
  return Number(value).toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
}

/** Converts cents to US dollars, without the digits that only the division adds. `null` if the cost is unknown. */
export function centsToDollars(cents: number | string | null | undefined): number | null {
  return cents === null || cents === undefined ? null : Number((Number(cents) / 100).toPrecision(12));
}

/** Formats cents as US dollars. Small costs keep three significant digits. */
export function formatCents(cents: number | string | null | undefined): string {
  const dollars = centsToDollars(cents);
  if (dollars === null) return EMPTY;
  if (dollars === 0) return "$0";
  if (Math.abs(dollars) >= 0.1) {
    return `$${dollars.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  }
  return `$${dollars.toLocaleString("en", { maximumSignificantDigits: 3, maximumFractionDigits: 9 })}`;
}

/** Formats the cost of several requests. With requests without a price, it is a lower bound or unknown. */
export function formatCost(cents: number | string | null | undefined, unpriced: number | string | null | undefined, requests: number | string | null | undefined): string {
  const missing = Number(unpriced ?? 0);
  if (missing > 0 && (missing >= Number(requests ?? 0) || Number(cents ?? 0) === 0)) return "no price";
  return missing > 0 ? `≥ ${formatCents(cents)}` : formatCents(cents);
}

export function formatMs(value: number | string | null | undefined): string {
  if (value === null || value === undefined) return EMPTY;
  const ms = Number(value);
  if (ms >= 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

export function formatPercent(value: number | string | null | undefined): string {
  return value === null || value === undefined ? EMPTY : `${Number(value).toFixed(Number(value) < 10 ? 1 : 0)}%`;
}

export function formatBytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return EMPTY;
  if (value < 1024) return `${value} B`;
  const exponent = Math.min(Math.floor(Math.log2(value) / 10), BYTE_UNITS.length);
  const amount = value / 1024 ** exponent;
  return `${amount.toFixed(Number.isInteger(amount) ? 0 : 1)} ${BYTE_UNITS[exponent - 1]}`;
}

/** Formats a time in the chosen time zone. */
export function formatTime(value: string | number | null | undefined, style: "full" | "short" | "date" = "full"): string {
  if (value === null || value === undefined || value === "") return EMPTY;
  const time = new Date(value);
  if (Number.isNaN(time.getTime())) return String(value);
  // The Swedish locale formats dates as in ISO 8601.
  const text = time.toLocaleString("sv", { timeZone: preferences.timeZone });
  if (style === "date") return text.slice(0, "2026-01-31".length);
  return style === "short" ? text.slice("2026-".length) : text;
}

/** Returns the date of a time in the chosen time zone, for a field of a form; empty if there is none. */
export function dateOf(time: string | null | undefined): string {
  return time ? formatTime(time, "date") : "";
}

/** Returns the time at which a date of a form begins in the chosen time zone. */
export function startOfDate(date: string): string {
  return new Date(`${date}T00:00:00${preferences.zone === "utc" ? "Z" : ""}`).toISOString();
}

/** Formats how long ago a time was. */
export function formatAgo(value: string | null | undefined): string {
  if (!value) return EMPTY;
  const seconds = (Date.now() - new Date(value).getTime()) / 1000;
  const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
  const units: [Intl.RelativeTimeFormatUnit, number][] = [["day", 86_400], ["hour", 3600], ["minute", 60]];
  for (const [unit, size] of units) {
    if (Math.abs(seconds) >= size) return relative.format(-Math.round(seconds / size), unit);
  }
  return relative.format(-Math.round(seconds), "second");
}
