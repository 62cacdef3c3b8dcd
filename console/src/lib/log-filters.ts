// Filters of logs and analytics, as parameters of the address.
import { logScope } from "./workspace";
import { timeFilter } from "./range";
import { route } from "./router.svelte";

export interface FilterField {
  name: string;
  label: string;
  placeholder: string;
}

export const FILTERS: FilterField[] = [
  { name: "ai_model", label: "Model", placeholder: "gpt-4o, …" },
  { name: "status_code", label: "Status", placeholder: "429, 5xx" },
  { name: "virtual_keys", label: "Provider", placeholder: "slug of a saved provider" },
  { name: "configs", label: "Config", placeholder: "slug" },
  { name: "prompt_slug", label: "Prompt", placeholder: "slug" },
  { name: "api_key_ids", label: "API key", placeholder: "id of the key" },
  { name: "trace_id", label: "Trace", placeholder: "id of the trace" },
  { name: "cache_status", label: "Cache", placeholder: "hit, miss, disabled" },
  { name: "outcome", label: "Outcome", placeholder: "refused, failed, aborted" },
  { name: "rescued", label: "Rescued by", placeholder: "retry, fallback" },
  { name: "guardrails", label: "Guardrail", placeholder: "slug" },
  { name: "metadata", label: "Metadata", placeholder: '{"team": "search"}' },
  { name: "cost_min", label: "Cost from", placeholder: "cents" },
  { name: "weighted_feedback_min", label: "Rating from", placeholder: "-10 to 10" },
  { name: "weighted_feedback_max", label: "Rating to", placeholder: "-10 to 10" },
  { name: "total_units_min", label: "Tokens from", placeholder: "1000" },
];

export type LogFilter = Record<string, string> & { workspace_slug: string; time_of_generation_min: string };

/** Returns the filter in the address. */
export function logFilter(): LogFilter {
  const filter: Record<string, string> = { ...logScope(), ...timeFilter() };
  for (const field of FILTERS) if (route.param(field.name)) filter[field.name] = route.param(field.name);
  return filter as LogFilter;
}

/** Returns the filters in the address other than workspace and time. */
export function activeFilters(): { field: FilterField; value: string }[] {
  return FILTERS.flatMap((field) => (route.param(field.name) ? [{ field, value: route.param(field.name) }] : []));
}
