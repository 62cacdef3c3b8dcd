// Comparison of two versions of a prompt: the request, and what the gateway returns.
import { jsonRequest, readWithKey } from "./key-requests";

/** Sets of variables that one request may have. */
export const MAX_SETS = 20;

interface Figures {
  /** US cents. */
  cost: number | null;
  input_tokens: number | null;
  output_tokens: number | null;
  time_ms: number | null;
}

export interface ComparedRun extends Figures {
  version: number;
  status: number;
  output: string | null;
  response: unknown;
  error: { code: string | null; message: string } | null;
  missing_variables: string[];
  log_id: string | null;
}

export interface ComparedVersion extends Figures {
  selector: string;
  version: number;
  failed: number;
}

export interface Comparison {
  versions: ComparedVersion[];
  runs: { variables: Record<string, string>; results: ComparedRun[] }[];
}

/** Runs two versions with each set of variables. The API key of the playground decides. */
export async function comparePrompt(slug: string, versions: string[], variables: Record<string, string>[]): Promise<Comparison> {
  return readWithKey<Comparison>(`v1/prompts/${encodeURIComponent(slug)}/compare`, jsonRequest({ versions, variables }));
}
