// The session: who is signed in and what this user may do. A request that finds the session expired waits for a new
// sign-in of the same user and is then repeated. The page never continues as another user.
import type { components } from "../api/schema";
import { rememberSight } from "./early-figure";
import { ApiError, messageOf, parseError } from "./errors";
import { apiUrl } from "./paths";
import { dropUnsaved } from "./router.svelte";

export type Self = components["schemas"]["SelfDetail"];
export interface Credentials {
  email?: string;
  password?: string;
  api_key?: string;
  sign_in_token?: string;
}

class Session {
  self = $state<Self | null>(null);
  /** True until the first response of the gateway. */
  isUnknown = $state(true);
  /** True if a session that was used here has expired. */
  isExpired = $state(false);
  /** Error of the first request, if it does not show who is signed in. */
  failure = $state("");
  /** Why the sign-in link in the address was rejected. */
  linkProblem = $state("");

  /** Returns true if the user has one of these scopes, in the organisation or in a workspace. */
  can(...scopes: string[]): boolean {
    const self = this.self;
    if (!self) return false;
    return scopes.some((scope) => self.scopes.includes(scope) || self.workspaces.some((one) => one.scopes.includes(scope)));
  }

  #find(workspace: string): Self["workspaces"][number] | undefined {
    return this.self?.workspaces.find((one) => one.slug === workspace || one.id === workspace);
  }

  /**
   * Returns true if the user has this scope in a workspace; an empty workspace stands for any. In a workspace of others,
   * whose prompt may be shared, only admins of the organisation have scopes.
   */
  canIn(workspace: string, scope: string): boolean {
    const found = this.#find(workspace);
    if (found) return found.scopes.includes(scope);
    return (!workspace || this.isOrganisationAdmin) && this.can(scope);
  }

  /** Returns the role in a workspace, by its slug or id. Admins of the organisation count as admins; empty for none. */
  roleIn(workspace: string): string {
    if (this.isOrganisationAdmin) return "admin";
    return this.#find(workspace)?.role ?? "";
  }

  /** Returns true if the user may make API keys of a workspace with this scope. */
  canGrant(workspace: string, scope: string): boolean {
    // A key of the organisation may grant the scopes of requests, which only keys of workspaces can have.
    return this.self?.user === null || this.canIn(workspace, scope);
  }

  get isOrganisationAdmin(): boolean {
    return this.self !== null && (this.self.user === null || ["owner", "admin"].includes(this.self.user.role));
  }

  get name(): string {
    const user = this.self?.user;
    if (!user) return "API key";
    return `${user.first_name} ${user.last_name}`.trim() || user.email;
  }
}

export const session = new Session();

let waiting: Promise<void> | null = null;
let resume: () => void = () => undefined;

/** Waits until the user has signed in again. */
export function waitForSignIn(): Promise<void> {
  session.isExpired = true;
  waiting ??= new Promise((resolve) => {
    resume = resolve;
  });
  return waiting;
}

async function readBody(response: Response): Promise<unknown> {
  return response.json().catch(() => null);
}

/** Returns true if both are the same user, or sessions of the same API key. */
function isSameCaller(one: Self, other: Self): boolean {
  const identify = ({ organisation_id, user, api_key_id }: Self): string => JSON.stringify([organisation_id, user?.id, api_key_id]);
  return identify(one) === identify(other);
}

/** Returns who is signed in, or null if nobody is. */
async function fetchSelf(): Promise<Self | null> {
  // Without headers of its own, so that the first request takes the response that the document has preloaded.
  const response = await fetch(apiUrl("v1/auth/self"));
  if (response.ok) return (await readBody(response)) as Self;
  if (response.status === 401) return null;
  throw parseError(response.status, await readBody(response));
}

/**
 * Stores who is signed in, and returns true. For another user than before, loads the page again and returns false: its
 * data and its waiting requests belong to the first user.
 */
function acceptSelf(found: Self): boolean {
  if (session.self && !isSameCaller(session.self, found)) {
    dropUnsaved();
    location.reload();
    return false;
  }
  session.self = found;
  return true;
}

/** Returns true if the session has not ended. */
export async function hasSession(): Promise<boolean> {
  if (session.isExpired) return false;
  const found = await fetchSelf();
  const isOther = found !== null && found.csrf_token !== session.self?.csrf_token;
  // For another user the page is loaded again, so requests of the first user wait forever.
  if (isOther && !acceptSelf(found)) await new Promise(() => undefined);
  return found !== null;
}

/** Reads who is signed in. */
export async function loadSelf(): Promise<void> {
  try {
    const found = await fetchSelf();
    if (found) acceptSelf(found);
    else rememberSight(false);
    session.failure = "";
  } catch (error) {
    session.failure = error instanceof ApiError ? error.message : "the gateway cannot be reached";
  } finally {
    session.isUnknown = false;
  }
}

/** Signs in; raises ApiError if the gateway rejects the credentials. */
export async function signIn(credentials: Credentials): Promise<void> {
  const response = await fetch(apiUrl("v1/auth/sessions"), {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(credentials),
  });
  if (!response.ok) throw parseError(response.status, await readBody(response));
  if (!session.isExpired) return loadSelf();
  const found = await fetchSelf();
  if (!found) throw new Error("the session has ended again; allow cookies of this page");
  if (!acceptSelf(found)) return;
  session.isExpired = false;
  waiting = null;
  resume();
}

/** Removes the secret of a sign-in link from the address, so that it is not in the history; returns it. */
function takeLinkSecret(): string {
  const secret = new URLSearchParams(location.hash.slice(1)).get("sign-in") ?? "";
  if (secret) history.replaceState(null, "", location.pathname + location.search);
  return secret;
}

/** Reads who is signed in. If nobody is, uses the sign-in link in the address. */
export async function startSession(): Promise<void> {
  // A link that is opened in a tab of the console changes only the hash, which loads no page.
  addEventListener("hashchange", () => {
    if (new URLSearchParams(location.hash.slice(1)).has("sign-in")) location.reload();
  });
  const secret = takeLinkSecret();
  await loadSelf();
  // A link never replaces a session, so nobody can sign another person in as somebody else unnoticed.
  if (!secret || session.self || session.failure) return;
  session.isUnknown = true;
  try {
    await signIn({ sign_in_token: secret });
  } catch (error) {
    session.linkProblem = messageOf(error);
  } finally {
    session.isUnknown = false;
  }
}

/** Signs out and forgets everything that was loaded. */
export async function signOut(): Promise<void> {
  // Another tab may have signed in meanwhile, which changes the token.
  const found = await fetchSelf();
  await fetch(apiUrl("v1/auth/sessions"), { method: "DELETE", headers: csrfHeaders(found) });
  session.self = null;
  rememberSight(false);
  location.assign(apiUrl("console/"));
}

export function csrfHeaders(self = session.self): Record<string, string> {
  const token = self?.csrf_token;
  return token ? { "x-csrf-token": token } : {};
}
