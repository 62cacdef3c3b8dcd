// The session: who is signed in and what this user may do. If a request fails because the session has expired, it waits
// for a new sign-in and is then repeated.
import type { components } from "../api/schema";
import { ApiError, messageOf, parseError } from "./errors";
import { apiUrl } from "./paths";

export type Self = components["schemas"]["SelfDetail"];
export interface Credentials {
  email?: string;
  password?: string;
  api_key?: string;
  sign_in_token?: string;
}

class Session {
  self = $state<Self | null>(null);
  /** True until the first request for the signed-in user has finished. */
  isUnknown = $state(true);
  /** True if a session that was used here has expired. */
  isExpired = $state(false);
  /** Error of the request for the signed-in user; empty if it succeeded. */
  failure = $state("");
  /** Why the sign-in link in the address was rejected. */
  linkProblem = $state("");

  /** Returns true if the user has one of these scopes, in the organisation or in a workspace. */
  can(...scopes: string[]): boolean {
    const self = this.self;
    if (!self) return false;
    return scopes.some((scope) => self.scopes.includes(scope) || self.workspaces.some((one) => one.scopes.includes(scope)));
  }

  /** Returns true if the user has this scope in a workspace; an empty workspace stands for any. */
  canIn(workspace: string, scope: string): boolean {
    const found = this.self?.workspaces.find((one) => one.slug === workspace || one.id === workspace);
    return found ? found.scopes.includes(scope) : this.can(scope);
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

/** Reads who is signed in. */
export async function loadSelf(): Promise<void> {
  try {
    const response = await fetch(apiUrl("v1/auth/self"), { headers: { accept: "application/json" } });
    if (response.ok) session.self = (await readBody(response)) as Self;
    else if (response.status !== 401) throw parseError(response.status, await readBody(response));
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
  await loadSelf();
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
  const secret = takeLinkSecret();
  await loadSelf();
  // A sign-in link never replaces a session. Otherwise a link could sign a person in as somebody else unnoticed.
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
  await fetch(apiUrl("v1/auth/sessions"), { method: "DELETE", headers: csrfHeaders() });
  session.self = null;
  location.assign(apiUrl("console/"));
}

export function csrfHeaders(): Record<string, string> {
  const token = session.self?.csrf_token;
  return token ? { "x-csrf-token": token } : {};
}
