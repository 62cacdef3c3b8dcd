// Links and texts for rows of budget usage and of rejected requests.
import type { Schema } from "./api";
import { link } from "./router.svelte";
import { workspaces } from "./workspace";

const PAGES: Record<string, string> = { policy: "limits", api_key: "keys", provider: "providers", integration: "providers/integrations", workspace: "workspaces" };
const UUID = /^[0-9a-f-]{36}$/;

/** Returns the address of the object that has the budget. */
export function budgetLink(row: { kind?: string | null; owner_id?: string | null }): string {
  return link(`${PAGES[row.kind ?? ""] ?? "limits"}/${row.owner_id ?? ""}`);
}

export function limitOf(row: Schema["LimitUsage"]): number {
  return Number(row.credit_limit ?? row.alert_threshold ?? 0);
}

export function isId(text: string): boolean {
  return UUID.test(text);
}

/** Returns the name of the workspace if the group value is the id of one; otherwise the value itself. */
export function groupName(value: string): string {
  return workspaces().find((one) => one.id === value)?.name ?? (value || "all requests");
}
