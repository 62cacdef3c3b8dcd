// The selected workspace. The address has its slug as `ws`; without it, the page covers all workspaces.
import { route } from "./router.svelte";
import { session, type Self } from "./session.svelte";

export type WorkspaceRef = Self["workspaces"][number];

export function workspaces(): WorkspaceRef[] {
  return session.self?.workspaces ?? [];
}

/** Returns the slug of the selected workspace, or an empty string for all. */
export function selectedSlug(): string {
  const slug = route.param("ws");
  if (slug) return slug;
  const all = workspaces();
  return all.length === 1 ? (all[0]?.slug ?? "") : "";
}

/** Query of management routes: one workspace, or all workspaces that the user may see. */
export function workspaceQuery(): { workspace_id?: string } {
  const slug = selectedSlug();
  return slug ? { workspace_id: slug } : {};
}

/** Query of logs and analytics: one workspace, or all workspaces that the user may see. */
export function logScope(): { workspace_slug: string } {
  return { workspace_slug: selectedSlug() || "*" };
}

/** Returns the slug of a workspace, which API routes accept in place of its id. */
export function workspaceSlug(id: string): string {
  return workspaces().find((one) => one.id === id || one.slug === id)?.slug ?? id;
}

export function workspaceName(id: string | null | undefined): string {
  if (!id) return "–";
  return workspaces().find((one) => one.id === id || one.slug === id)?.name ?? id.slice(0, 8);
}
