// Client of the management API. Its types come from docs/openapi.json.
import createClient from "openapi-fetch";
import type { components, paths } from "../api/schema";
import { activity } from "./activity.svelte";
import { parseError } from "./errors";
import { gatewayUrl } from "./paths";
import { csrfHeaders, hasSession, session, waitForSignIn } from "./session.svelte";

export type Schema = components["schemas"];

/**
 * Sends a request with the session's token. After an expired session it waits for a sign-in and repeats the request.
 * A 401 within a session is about the request itself, such as a wrong password, and is returned. So is a 403, unless
 * another tab has signed in, so that the token is an old one. `run` replaces `fetch`, such as by that of a worker.
 */
export async function send(request: Request, run: (request: Request) => Promise<Response> = fetch): Promise<Response> {
  const copy = request.clone();
  const token = session.self?.csrf_token;
  for (const [name, value] of Object.entries(csrfHeaders())) request.headers.set(name, value);
  const response = await activity.track(run(request));
  const mayBeOldToken = response.status === 403 && token !== undefined && request.method !== "GET";
  if (response.status !== 401 && !mayBeOldToken) return response;
  if (!(await hasSession())) await waitForSignIn();
  // Another token means that the user has signed in again, perhaps in another tab, after the request was sent.
  else if (session.self?.csrf_token === token) return response;
  return send(copy, run);
}

export const api = createClient<paths>({ baseUrl: gatewayUrl.href, fetch: (request: Request) => send(request) });

export interface Loaded<T> {
  data: T;
  /** State of the object, for If-Match. */
  etag: string;
}

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** Returns the body of a response and its entity tag; raises ApiError for an error. */
export async function load<T>(answer: Promise<Answer<T>>): Promise<Loaded<T>> {
  const { data, error, response } = await answer;
  if (!response.ok) throw parseError(response.status, error, response.headers.get("x-request-id") ?? "");
  return { data: data as T, etag: response.headers.get("etag") ?? "" };
}

/** Returns the body of a response; raises ApiError for an error. */
export async function get<T>(answer: Promise<Answer<T>>): Promise<T> {
  return (await load(answer)).data;
}

/** Headers of a change that must not overwrite changes of others. */
export function ifMatch(etag: string): { "if-match"?: string } {
  return etag ? { "if-match": etag } : {};
}

/**
 * Changes an object of a list, unless somebody else changed it since the list was loaded. `isSame` compares the present
 * object with the listed one.
 */
export async function changeListed<T>(read: Promise<Answer<T>>, isSame: (found: T) => boolean, change: (header: { "if-match"?: string }) => Promise<unknown>): Promise<void> {
  const { data, etag } = await load(read);
  if (!isSame(data)) throw new Error("somebody else changed it meanwhile; the list shows the new state");
  await change(ifMatch(etag));
}

/** Returns a random id. `crypto.randomUUID` exists only on pages with TLS. */
export function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
