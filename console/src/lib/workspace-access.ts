// Which workspaces may use something that belongs to the organisation.

export interface WorkspaceAccess {
  isAll: boolean;
  ids: string[];
}

/** Returns the fields of a request, which contains exactly one of both. */
export function accessFields(access: WorkspaceAccess): { allow_all_workspaces: true } | { allowed_workspaces: string[] } {
  return access.isAll ? { allow_all_workspaces: true } : { allowed_workspaces: access.ids };
}

/** Returns true if no workspace has access. */
export function isAccessEmpty(access: WorkspaceAccess): boolean {
  return !access.isAll && access.ids.length === 0;
}
