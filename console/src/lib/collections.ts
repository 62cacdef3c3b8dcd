// Collections of prompts as a tree.
import type { Schema } from "./api";

export type Collection = Schema["CollectionSummary"];

export interface CollectionRow {
  collection: Collection;
  /** Number of collections around it. */
  level: number;
}

/** Maximum number of levels that the gateway allows. */
export const MAX_LEVELS = 8;

/** Returns the collections in the order of a tree: each before those in it, and those of one level by name. */
export function treeOf(collections: Collection[]): CollectionRow[] {
  const ids = new Set(collections.map((one) => one.id));
  const below = new Map<string, Collection[]>();
  for (const one of collections) {
    // A collection whose parent the user may not see is shown on the first level.
    const parent = one.parent_collection_id && ids.has(one.parent_collection_id) ? one.parent_collection_id : "";
    below.set(parent, [...(below.get(parent) ?? []), one]);
  }
  const list = (parent: string, level: number): CollectionRow[] =>
    (below.get(parent) ?? []).sort((one, other) => one.name.localeCompare(other.name)).flatMap((collection) => [{ collection, level }, ...list(collection.id, level + 1)]);
  return list("", 0);
}

/** Returns the name of a row in a list of choices, indented by its level. */
export function indentedName({ collection, level }: CollectionRow): string {
  return `${"\u00a0\u00a0".repeat(level)}${collection.name}`;
}
