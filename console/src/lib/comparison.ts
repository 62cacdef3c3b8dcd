// Comparison of two versions of a prompt: the request, and what the gateway returns.
import { jsonRequest, readWithKey } from "./key-requests";

/** Maximum number of sets of variables in one request. */
export const MAX_SETS = 20;

interface RunFigures {
  /** Cost in US cents. */
  cost: number | null;
  input_tokens: number | null;
  output_tokens: number | null;
  time_ms: number | null;
}

export interface ComparedRun extends RunFigures {
  version: number;
  status: number;
  output: string | null;
  response: unknown;
  error: { code: string | null; message: string } | null;
  missing_variables: string[];
  log_id: string | null;
}

export interface ComparedVersion extends RunFigures {
  selector: string;
  version: number;
  failed: number;
}

export interface Comparison {
  versions: ComparedVersion[];
  runs: { variables: Record<string, string>; results: ComparedRun[] }[];
}

/** Runs two versions with each set of variables, with the permissions of the playground's API key. */
export async function comparePrompt(slug: string, versions: string[], variables: Record<string, string>[]): Promise<Comparison> {
  return readWithKey<Comparison>(`v1/prompts/${encodeURIComponent(slug)}/compare`, jsonRequest({ versions, variables }));
}
