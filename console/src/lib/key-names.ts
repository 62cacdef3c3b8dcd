// Names of API keys, for statistics that contain only their ids.
import { api, get } from "./api";
import { isId } from "./budgets";
import { session } from "./session.svelte";

/** Returns the names of keys by id. Leaves out keys that the user may not see, and values that are no ids. */
export async function keyNames(ids: string[]): Promise<Record<string, string>> {
  const wanted = ids.filter(isId);
  const mayList = session.can("workspace_service_api_keys.list", "workspace_user_api_keys.list", "organisation_service_api_keys.list");
  if (!wanted.length || !mayList) return {};
  const found = await get(api.GET("/v1/api-keys", { params: { query: { ids: wanted.join(","), page_size: 100 } as never } })).catch(() => null);
  return Object.fromEntries((found?.data ?? []).map((key) => [key.id, key.name]));
}
