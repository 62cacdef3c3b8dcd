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

export interface Merge<T> {
  merged: T;
  /** Paths of the values that both changed; the merge has mine. */
  overlaps: string[];
}

/**
 * Returns `theirs` with what differs between `base` and `mine`. Objects, also as JSON text, are merged by their own
 * fields; lists are one value.
 */
export function mergeChanges<T extends object>(base: T, mine: T, theirs: T): Merge<T> {
  const overlaps: string[] = [];
  return { merged: mergeFields(base as Fields, mine as Fields, theirs as Fields, "", overlaps) as T, overlaps };
}

function mergeFields(base: Fields, mine: Fields, theirs: Fields, path: string, overlaps: string[]): Fields {
  const merged = new Map(Object.entries(theirs));
  for (const name of Object.keys({ ...base, ...mine })) {
    const [first, own, other] = [base[name], mine[name], theirs[name]];
    if (isSame(first, own) || isSame(own, other)) continue;
    const inside = [first, own, other].map(fieldsOf);
    if (inside.every((one) => one !== null)) {
      const found = mergeFields(inside[0] as Fields, inside[1] as Fields, inside[2] as Fields, `${path}${name}.`, overlaps);
      merged.set(name, typeof own === "string" ? JSON.stringify(found, null, 2) : found);
      continue;
    }
    if (!isSame(first, other)) overlaps.push(path + name);
    if (name in mine) merged.set(name, own);
    else merged.delete(name);
  }
  return Object.fromEntries(merged);
}

/** Returns the fields of an object, or of a text that is a JSON object; `null` for other values. */
function fieldsOf(value: unknown): Fields | null {
  if (typeof value !== "string") return isFields(value) ? value : null;
  try {
    const parsed = JSON.parse(value) as unknown;
    return isFields(parsed) ? parsed : null;
  } catch {
    return null;
  }
}
