// Errors of the management API, with the problems of each field.

export interface Problem {
  path: string;
  message: string;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly problems: Problem[] = [],
    readonly requestId = "",
    readonly code = "",
  ) {
    super(message);
    this.name = "ApiError";
  }
}

interface Envelope {
  data?: { message?: string; errors?: Problem[]; errorCode?: string };
  error?: { message?: string; code?: unknown };
}

/** Returns the error that a response describes. */
export function parseError(status: number, body: unknown, requestId = ""): ApiError {
  const envelope = (typeof body === "object" && body !== null ? body : {}) as Envelope;
  const message = envelope.data?.message ?? envelope.error?.message ?? `the gateway answered with status ${status}`;
  const code = envelope.data?.errorCode ?? envelope.error?.code ?? "";
  return new ApiError(status, message, envelope.data?.errors ?? [], requestId, String(code));
}

/** Returns the id of the log of a model request that failed; empty if it has none. */
export function logIdOf(error: unknown): string {
  return error instanceof ApiError && error.status !== 401 ? error.requestId : "";
}

/** Returns the message of any error. */
export function messageOf(error: unknown): string {
  if (error instanceof TypeError) return "the gateway cannot be reached";
  return error instanceof Error ? error.message : String(error);
}

/** Returns the message of the error for a field; empty if it has none. */
export function problemOf(error: unknown, path: string): string {
  if (!(error instanceof ApiError)) return "";
  return error.problems.find((one) => one.path === path || one.path.startsWith(`${path}.`) || one.path.startsWith(`${path}[`))?.message ?? "";
}

/** Returns the messages for exactly this path, such as those of required fields that are missing in it. */
export function problemsAt(error: unknown, path: string): string[] {
  return error instanceof ApiError ? error.problems.filter((one) => one.path === path).map((one) => one.message) : [];
}
