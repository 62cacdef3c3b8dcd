// API key for requests that the console sends to models. It stays in the memory of this page, and a key that the
// console makes ends after an hour.
import { api, get, randomId } from "./api";
import { session } from "./session.svelte";
import { workspaceSlug } from "./workspace";

const LIFETIME_MS = 3_600_000;
/** A key is not used in its last minute, so that a request does not outlast it. */
const MARGIN_MS = 60_000;

class PlaygroundKey {
  text = $state("");
  /** True if the console made the key, which works once the workers have the next snapshot. */
  isMade = $state(false);
  /** Slug of the workspace that the key was made or entered for. */
  #workspace = $state("");
  /** True if a made key ends soon or has ended; a key that was entered may end at any time. */
  #isEnded = $state(false);
  #timer = 0;

  /** Takes a key that the user enters for a workspace. */
  set(text: string, workspace: string): void {
    this.#take(text.trim(), workspace, false);
  }

  #take(text: string, workspace: string, isMade: boolean): void {
    [this.text, this.isMade, this.#isEnded] = [text, isMade, false];
    this.#workspace = workspaceSlug(workspace);
    clearTimeout(this.#timer);
    if (isMade) this.#timer = window.setTimeout(() => (this.#isEnded = true), LIFETIME_MS - MARGIN_MS);
  }

  /** Returns true if the user may make a key of the workspace. */
  mayMake(workspace: string): boolean {
    return session.canIn(workspace, "workspace_service_api_keys.create") || session.canIn(workspace, "workspace_user_api_keys.create");
  }

  /** Returns true if there is a key of the workspace that has not ended. */
  isFor(workspace: string): boolean {
    return this.text !== "" && !this.#isEnded && this.#workspace === workspaceSlug(workspace);
  }

  /** Returns true if there is a key that was made or entered for another workspace. */
  isForOther(workspace: string): boolean {
    return this.text !== "" && this.#workspace !== workspaceSlug(workspace);
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
          expires_at: new Date(Date.now() + LIFETIME_MS).toISOString(),
          ...(isForUser && session.self?.user ? { user_id: session.self.user.id } : {}),
        },
      }),
    );
    this.#take(created.key, workspace, true);
  }
}

export const playgroundKey = new PlaygroundKey();
