// Requests to the data plane, such as chats, files and batches, with the API key of the playground.
import { activity } from "./activity.svelte";
import { parseError } from "./errors";
import { apiUrl } from "./paths";
import { playgroundKey } from "./playground-key.svelte";

/** Delays between attempts with a new key, which works once the workers have the next snapshot. */
const NEW_KEY_DELAYS_MS = [100, 300, 600, 1500, 3000];
/** Error codes of the gateway for an unknown key: of model routes, and of management routes. Providers use others. */
const UNKNOWN_KEY_CODES = ["03", "AB05"];

/** Sends a request; raises ApiError if the gateway rejects it. */
export async function sendWithKey(path: string, init: RequestInit = {}): Promise<Response> {
  for (let attempt = 0; ; attempt += 1) {
    // Omits the cookie of the console, so that only the API key authenticates the request.
    const response = await activity.track(fetch(apiUrl(path), { ...init, credentials: "omit", headers: { ...(init.headers as Record<string, string>), "x-gateway-api-key": playgroundKey.text } }));
    if (response.ok) return response;
    const error = parseError(response.status, await response.json().catch(() => null), response.headers.get("x-gateway-request-id") ?? "");
    const delay = NEW_KEY_DELAYS_MS[attempt];
    const isKeyUnknown = error.status === 401 && UNKNOWN_KEY_CODES.includes(error.code);
    if (!isKeyUnknown || !playgroundKey.isMade || delay === undefined) throw error;
    await new Promise((resolve) => setTimeout(resolve, delay));
  }
}

/** Returns the body of a response as JSON. */
export async function readWithKey<T>(path: string, init: RequestInit = {}): Promise<T> {
  return (await (await sendWithKey(path, init)).json()) as T;
}

/** Returns the parts of a request with a JSON body. */
export function jsonRequest(body: object, headers: Record<string, string> = {}): RequestInit {
  return { method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body) };
}

/** Saves the body of a response as a file. */
export async function downloadWithKey(path: string, name: string): Promise<void> {
  const blob = await (await sendWithKey(path)).blob();
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(blob);
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 60_000);
}
