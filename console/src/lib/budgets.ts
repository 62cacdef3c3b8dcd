// Rows of used budgets and of refused requests, as people read them.
import type { Schema } from "./api";
import { link } from "./router.svelte";
import { workspaces } from "./workspace";

const PAGES: Record<string, string> = { policy: "limits", api_key: "keys", provider: "providers", integration: "providers/integrations", workspace: "workspaces" };
const UUID = /^[0-9a-f-]{36}$/;

/** Returns the address of what has the budget. */
export function budgetLink(row: { kind?: string | null; owner_id?: string | null }): string {
  return link(`${PAGES[row.kind ?? ""] ?? "limits"}/${row.owner_id ?? ""}`);
}

export function limitOf(row: Schema["LimitUsage"]): number {
  return Number(row.credit_limit ?? row.alert_threshold ?? 0);
}

export function isId(text: string): boolean {
  return UUID.test(text);
}

/** Returns the name of a workspace that a group stands for, or the value of the group. */
export function groupName(value: string): string {
  return workspaces().find((one) => one.id === value)?.name ?? (value || "all requests");
}
