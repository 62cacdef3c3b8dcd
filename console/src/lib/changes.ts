// Differences between two states of an object, by field.

type Fields = Record<string, unknown>;

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isSame(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** Returns the fields that differ from their first values. */
export function changedFields<T extends object>(before: T, after: T): Partial<T> {
  const changed: Partial<T> = {};
  for (const name of Object.keys(after) as (keyof T)[]) {
    if (!isSame(before[name], after[name])) changed[name] = after[name];
  }
  return changed;
}

/** Returns the entries that are new or differ from those before. */
export function changedEntries<T>(before: Record<string, T>, after: Record<string, T>): Record<string, T> {
  return Object.fromEntries(Object.entries(after).filter(([name, value]) => !isSame(before[name], value)));
}

function mergeFields(base: Fields, mine: Fields, theirs: Fields): Fields {
  const merged = new Map(Object.entries(theirs));
  for (const name of Object.keys({ ...base, ...mine })) {
    const [first, own, other] = [base[name], mine[name], theirs[name]];
    if (isSame(first, own)) continue;
    if (!(name in mine)) merged.delete(name);
    else merged.set(name, isFields(first) && isFields(own) && isFields(other) ? mergeFields(first, own, other) : own);
  }
  return Object.fromEntries(merged);
}
