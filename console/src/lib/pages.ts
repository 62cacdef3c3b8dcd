// The pages of the console: their names, groups, shortcut keys and required scopes.
import type { Component } from "svelte";
import Overview from "../pages/Overview.svelte";
import { session } from "./session.svelte";

export interface PageEntry {
  name: string;
  title: string;
  /** Letter that opens the page when typed after `g`. */
  key: string;
  /** The user needs one of these scopes to see the page. An empty list is for everybody. */
  scopes: string[];
  /** Parts of the page with an address of their own, which the search offers. */
  parts?: { path: string; title: string; scopes: string[] }[];
  /** True if only admins of the organisation see the page. */
  isAdmin?: boolean;
  load: () => Promise<{ default: Component }>;
}

export interface PageGroup {
  title: string;
  pages: PageEntry[];
}

// Most visits begin with the overview, so it is part of the first script: more scripts would show it later.
export const PAGE_GROUPS: PageGroup[] = [
  {
    title: "Observe",
    pages: [
      { name: "overview", title: "Overview", key: "o", scopes: [], load: () => Promise.resolve({ default: Overview }) },
      { name: "logs", title: "Logs", key: "l", scopes: ["logs.list"], load: () => import("../pages/Logs.svelte") },
      { name: "traces", title: "Traces", key: "t", scopes: ["logs.list"], load: () => import("../pages/Traces.svelte") },
      { name: "analytics", title: "Analytics", key: "a", scopes: ["analytics.view"], load: () => import("../pages/Analytics.svelte") },
    ],
  },
  {
    title: "Build",
    pages: [
      { name: "playground", title: "Playground", key: "y", scopes: ["completions.write", "workspace_service_api_keys.create"], load: () => import("../pages/Playground.svelte") },
      { name: "prompts", title: "Prompts", key: "p", scopes: ["prompts.list"], parts: [{ path: "prompts/partials", title: "Prompts: partials", scopes: ["prompts.list"] }], load: () => import("../pages/Prompts.svelte") },
      { name: "configs", title: "Configs", key: "c", scopes: ["configs.list"], load: () => import("../pages/Configs.svelte") },
      { name: "guardrails", title: "Guardrails", key: "r", scopes: ["guardrails.list", "organisation_guardrails.list"], load: () => import("../pages/Guardrails.svelte") },
      { name: "batches", title: "Batches and files", key: "f", scopes: ["completions.write", "workspace_service_api_keys.create"], load: () => import("../pages/Batches.svelte") },
    ],
  },
  {
    title: "Providers",
    pages: [
      { name: "providers", title: "Providers", key: "v", scopes: ["providers.list"], parts: [{ path: "providers/integrations", title: "Providers: integrations", scopes: ["organisation_integrations.list", "workspace_integrations.list"] }], load: () => import("../pages/Providers.svelte") },
      { name: "secrets", title: "Secret references", key: "e", scopes: ["secret_references.list"], load: () => import("../pages/Secrets.svelte") },
      { name: "models", title: "Models and prices", key: "m", scopes: ["models.list"], load: () => import("../pages/Models.svelte") },
    ],
  },
  {
    title: "Access",
    pages: [
      { name: "keys", title: "API keys", key: "k", scopes: ["workspace_service_api_keys.list", "workspace_user_api_keys.list", "organisation_service_api_keys.list"], load: () => import("../pages/Keys.svelte") },
      { name: "limits", title: "Limits and budgets", key: "b", scopes: ["policies.list"], load: () => import("../pages/Limits.svelte") },
      { name: "users", title: "Users", key: "u", scopes: ["organisation_users.list"], isAdmin: true, parts: [{ path: "users/invites", title: "Users: invitations", scopes: ["organisation_users.list"] }], load: () => import("../pages/Users.svelte") },
      { name: "workspaces", title: "Workspaces", key: "w", scopes: ["workspaces.create", "workspaces.update", "workspace_users.update"], load: () => import("../pages/Workspaces.svelte") },
      { name: "organisation", title: "Organisation", key: "n", scopes: ["organisation_settings.read"], isAdmin: true, load: () => import("../pages/Organisation.svelte") },
    ],
  },
  {
    title: "Operate",
    pages: [
      { name: "audit", title: "Audit log", key: "d", scopes: ["audit_logs.list"], isAdmin: true, load: () => import("../pages/Audit.svelte") },
      { name: "system", title: "System", key: "s", scopes: [], load: () => import("../pages/System.svelte") },
    ],
  },
];

export function isVisible(page: PageEntry): boolean {
  if (page.isAdmin && !session.isOrganisationAdmin) return false;
  return page.scopes.length === 0 || session.can(...page.scopes);
}

export function visibleGroups(): PageGroup[] {
  return PAGE_GROUPS.map((group) => ({ ...group, pages: group.pages.filter(isVisible) })).filter((group) => group.pages.length);
}

export function findPage(name: string): PageEntry | undefined {
  return PAGE_GROUPS.flatMap((group) => group.pages).find((page) => page.name === name);
}
