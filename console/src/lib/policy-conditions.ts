// Conditions and groups of a policy as forms show them, and the values that they can name.
import { api, get, type Schema } from "./api";
import { loadModels } from "./models";
import { KEYS } from "./policies";
import { session } from "./session.svelte";
import { workspaces } from "./workspace";

/** A property of requests: one of `KEYS`, or a metadata field with any name. */
export interface KeyFields {
  key: string;
  /** Name of the metadata field, if `key` is `METADATA`. */
  field: string;
}

export interface ConditionFields extends KeyFields {
  excludes: boolean;
  values: string[];
}

/** A value of a condition, and the name under which a form offers it. */
export interface Offer {
  value: string;
  name: string;
}

export const METADATA = "metadata";
export const MAX_CONDITIONS = 20;
const PREFIX = "metadata.";
/** Keys that only rate limits can have. */
const RATE_ONLY = ["endpoint_type"];
/** Keys whose values mean the same in every workspace. */
const SHARED_KEYS = ["model", METADATA, "metadata._user", "provider", "endpoint_type"];
const OPERATIONS = ["chatComplete", "messages", "createModelResponse", "complete", "embed", "imageGenerate", "createSpeech", "createTranscription", "rerank", "moderate", "realtime"];
const PAGE_SIZE = 1000;

function keyFields(key: string): KeyFields {
  const isField = key.startsWith(PREFIX) && !(key in KEYS);
  return isField ? { key: METADATA, field: key.slice(PREFIX.length) } : { key, field: "" };
}

function keyOf({ key, field }: KeyFields): string {
  return key === METADATA ? PREFIX + field.trim() : key;
}

/** Returns the keys that a policy of a kind can have, with their names. */
export function keysFor(kind: "usage" | "rate"): [string, string][] {
  return [...Object.entries(KEYS).filter(([key]) => kind === "rate" || !RATE_ONLY.includes(key)), [METADATA, "metadata field"]];
}

export function conditionFields(conditions: Schema["Condition"][]): ConditionFields[] {
  return conditions.map(({ key, value, excludes }) => ({ ...keyFields(key), excludes: excludes === true, values: [value].flat() }));
}

export function conditionsOf(rows: ConditionFields[]): Schema["Condition"][] {
  return rows.map((row) => ({
    key: keyOf(row),
    value: row.values.length === 1 ? (row.values[0] ?? "") : row.values,
    ...(row.excludes ? { excludes: true } : {}),
  }));
}

/** Returns conditions for another workspace: without values that name objects of the first one. */
export function forOtherWorkspace(rows: ConditionFields[]): ConditionFields[] {
  return rows.map((row) => (SHARED_KEYS.includes(row.key) ? row : { ...row, values: [] }));
}

export function groupsOf(rows: KeyFields[]): { key: string }[] {
  return rows.map((row) => ({ key: keyOf(row) }));
}

export function isKeyComplete(row: KeyFields): boolean {
  return row.key !== METADATA || row.field.trim() !== "";
}

export function areConditionsComplete(rows: ConditionFields[]): boolean {
  return rows.length > 0 && rows.every((row) => isKeyComplete(row) && row.values.length > 0);
}

/** Returns values for a key of a workspace. Leaves out objects that the user may not list. */
export async function loadOffers(key: string, workspace: string, signal: AbortSignal): Promise<Offer[]> {
  const options = { params: { query: { workspace_id: workspace, page_size: PAGE_SIZE } }, signal };
  const bySlug = ({ slug, name }: { slug: string; name: string }): Offer => ({ value: slug, name });
  const may = (scope: string): boolean => session.canIn(workspace, scope);
  if (key === "workspace_id") return workspaces().map(({ id, name }) => ({ value: id, name }));
  if (key === "endpoint_type") return OPERATIONS.map((value) => ({ value, name: value }));
  if (key === "api_key" && session.can("workspace_service_api_keys.list", "workspace_user_api_keys.list")) return (await get(api.GET("/v1/api-keys", options))).data.map(({ id, name }) => ({ value: id, name }));
  if (key === "config" && may("configs.list")) return (await get(api.GET("/v1/configs", options))).data.map(bySlug);
  if (key === "prompt" && may("prompts.list")) return (await get(api.GET("/v1/prompts", options))).data.map(bySlug);
  if (key === "virtual_key" && may("providers.list")) return (await get(api.GET("/v1/providers", options))).data.map(bySlug);
  if (key === "model" && may("models.list")) return (await loadModels(workspace, signal)).map((value) => ({ value, name: value }));
  return [];
}
