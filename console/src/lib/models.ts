// Models of a provider, as the catalogue lists them: `@provider/model`.
import { api, get } from "./api";

const MAX_MODELS = 1000;
const DEFAULT_MODEL = "gpt-4o-mini";
/** Parts of the names of models that do not chat. */
const NO_CHAT = /audio|realtime|tts|speech|transcri|embed|image|search|whisper|moderation|dall-e|babbage|davinci|rerank|video|ocr|instruct/;
/** Parts of the names of models that are quick and cheap. */
const SMALL = /mini|flash|haiku|small|lite|nano|8b/;

/** Returns the ids of the models that a workspace may use. */
export async function loadModels(workspace: string, signal: AbortSignal): Promise<string[]> {
  const query = { ...(workspace ? { workspace_id: workspace } : {}), limit: MAX_MODELS };
  const found = await get(api.GET("/v1/models", { params: { query }, signal }));
  return "data" in found ? found.data.map((one) => String((one as { id: string }).id)) : [];
}

/** Returns the names of the models of one provider. */
export function modelsOf(ids: string[], provider: string): string[] {
  return ids.filter((id) => id.startsWith(`@${provider}/`)).map((id) => id.slice(provider.length + 2));
}

/** Returns models of the provider for a first chat, the best first; a common model if none is known. */
export function suggestModels(ids: string[], provider: string): string[] {
  const own = modelsOf(ids, provider);
  const chats = own.filter((name) => !NO_CHAT.test(name));
  const small = chats.filter((name) => SMALL.test(name));
  return [...new Set([...(own.includes(DEFAULT_MODEL) ? [DEFAULT_MODEL] : []), ...small, ...chats, ...own])];
}

export function suggestModel(ids: string[], provider: string): string {
  return suggestModels(ids, provider)[0] ?? DEFAULT_MODEL;
}
