// Help for editors of configs: the schema, saved providers, and validation by the gateway without saving.
import { api, get } from "./api";
import { ApiError, type Problem } from "./errors";
import type { JsonSchema } from "./json-schema";

export async function loadConfigSchema(): Promise<JsonSchema> {
  return (await import("../api/config-schema.json")).default as unknown as JsonSchema;
}

/** Returns the saved providers and guardrails that configs of a workspace can name, by config key. */
export async function configOffers(workspace: string): Promise<Record<string, string[]>> {
  const query = { workspace_id: workspace, page_size: 1000 };
  const [providers, guardrails] = await Promise.allSettled([
    get(api.GET("/v1/providers", { params: { query } })),
    get(api.GET("/v1/guardrails", { params: { query } })),
  ]);
  const slugs = providers.status === "fulfilled" ? providers.value.data.map((one) => one.slug) : [];
  const checks = guardrails.status === "fulfilled" ? guardrails.value.data.map((one) => one.slug) : [];
  return { provider: slugs.map((slug) => `@${slug}`), virtual_key: slugs, input_guardrails: checks, output_guardrails: checks };
}

/** Returns the problems that the gateway finds in a config. Nothing is saved. */
export async function validateConfig(key: string, config: string): Promise<Problem[]> {
  try {
    await get(api.PUT("/v1/configs/{key}", { params: { path: { key }, query: { dry_run: true } as never }, body: { config } }));
    return [];
  } catch (error) {
    // Other errors concern the request, not the config.
    return error instanceof ApiError && error.status === 400 ? error.problems : [];
  }
}
