// API key for requests that the console sends to models. It stays in the memory of this page. A key that the console
// creates expires after an hour.
import { api, get, once } from "./api";
import { session } from "./session.svelte";

const LIFETIME_MS = 3_600_000;

class PlaygroundKey {
  text = $state("");
  /** Workspace of a key that the console created; empty for a key that the user typed. */
  workspace = $state("");

  set(text: string): void {
    this.text = text.trim();
    this.workspace = "";
  }

  /** Creates a key of the workspace. It expires after an hour. */
  async make(workspace: string): Promise<void> {
    const isForUser = !session.canIn(workspace, "workspace_service_api_keys.create");
    const created = await get(
      api.POST("/v1/api-keys/{kind}/{sub_kind}", {
        params: { path: { kind: "workspace", sub_kind: isForUser ? "user" : "service" }, header: once() as never },
        body: {
          name: "playground",
          description: "Made by the console; ends after an hour.",
          workspace_id: workspace,
          scopes: ["completions.write", "prompts.render"],
          expires_at: new Date(Date.now() + LIFETIME_MS).toISOString(),
          ...(isForUser && session.self?.user ? { user_id: session.self.user.id } : {}),
        },
      }),
    );
    this.text = created.key;
    this.workspace = workspace;
  }
}

export const playgroundKey = new PlaygroundKey();
