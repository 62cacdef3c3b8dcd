// API key for requests that the console sends to models. It stays in the memory of this page, and a key that the
// console makes ends after an hour.
import { api, get, randomId } from "./api";
import { session } from "./session.svelte";

const LIFETIME_MS = 3_600_000;
/** A key is not used in its last minute, so that a request does not outlast it. */
const MARGIN_MS = 60_000;

class PlaygroundKey {
  text = $state("");
  /** Workspace of a key that the console created; empty for a key that the user entered. */
  workspace = $state("");
  /** Time at which a made key ends; a key that was entered may end at any time. */
  #endsAt = $state(Infinity);

  set(text: string): void {
    this.text = text.trim();
    this.workspace = "";
    this.#endsAt = Infinity;
  }

  /** Returns true if the user may make a key of the workspace. */
  mayMake(workspace: string): boolean {
    return session.canIn(workspace, "workspace_service_api_keys.create") || session.canIn(workspace, "workspace_user_api_keys.create");
  }

  /** Returns true if there is a key that has not ended, and is not known to belong to another workspace. */
  isFor(workspace: string): boolean {
    return this.text !== "" && Date.now() < this.#endsAt - MARGIN_MS && (this.workspace === workspace || this.workspace === "");
  }

  /** Returns true if a request can be sent, with this key or with one that the user may make. */
  canSend(workspace: string): boolean {
    return this.isFor(workspace) || this.mayMake(workspace);
  }

  /** Makes a key of the workspace unless there is one. */
  async ensure(workspace: string): Promise<void> {
    if (!this.isFor(workspace)) await this.make(workspace);
  }

  /** Makes a key of the workspace that ends after an hour. */
  async make(workspace: string): Promise<void> {
    const endsAt = Date.now() + LIFETIME_MS;
    const isForUser = !session.canIn(workspace, "workspace_service_api_keys.create");
    const created = await get(
      api.POST("/v1/api-keys/{kind}/{sub_kind}", {
        params: { path: { kind: "workspace", sub_kind: isForUser ? "user" : "service" }, header: { "idempotency-key": randomId() } as never },
        body: {
          name: "playground",
          description: "Made by the console; ends after an hour.",
          workspace_id: workspace,
          // Includes the scope for ratings of requests, if the user may grant it.
          scopes: ["completions.write", "prompts.render", ...(session.canGrant(workspace, "logs.write") ? ["logs.write"] : [])],
          expires_at: new Date(endsAt).toISOString(),
          ...(isForUser && session.self?.user ? { user_id: session.self.user.id } : {}),
        },
      }),
    );
    this.text = created.key;
    this.workspace = workspace;
    this.#endsAt = endsAt;
  }
}

export const playgroundKey = new PlaygroundKey();
