// Names of API keys, for statistics that contain only their ids.
import { api, get } from "./api";
import { isId } from "./budgets";
import { session } from "./session.svelte";

/** Number of ids in one request, whose address has a maximum length. */
const MAX_IDS = 100;

/** Returns the names of keys by id. Leaves out keys that the user may not see, and values that are no ids. */
export async function keyNames(ids: string[]): Promise<Record<string, string>> {
  const wanted = [...new Set(ids.filter(isId))];
  const mayList = session.can("workspace_service_api_keys.list", "workspace_user_api_keys.list", "organisation_service_api_keys.list");
  if (!wanted.length || !mayList) return {};
  const parts = Array.from({ length: Math.ceil(wanted.length / MAX_IDS) }, (_, at) => wanted.slice(at * MAX_IDS, (at + 1) * MAX_IDS));
  const found = await Promise.all(parts.map((part) => get(api.GET("/v1/api-keys", { params: { query: { ids: part.join(","), page_size: MAX_IDS } as never } })).catch(() => null)));
  return Object.fromEntries(found.flatMap((one) => one?.data ?? []).map((key) => [key.id, key.name]));
}
