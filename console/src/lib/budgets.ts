// Amounts and names for rows of budget usage and of rejected requests.
import type { Schema } from "./api";
import { workspaces } from "./workspace";

const UUID = /^[0-9a-f-]{36}$/;

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
