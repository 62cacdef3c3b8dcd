// Presets of scopes for common uses of API keys.

interface Preset {
  title: string;
  scopes: string[];
}

export const PRESETS: Record<string, Preset> = {
  requests: { title: "Send requests to models", scopes: ["completions.write"] },
  prompts: {
    title: "Send requests, and use saved prompts",
    scopes: ["completions.write", "prompts.render", "prompts.read", "prompts.list"],
  },
  observe: {
    title: "Read logs and analytics",
    scopes: ["logs.list", "logs.view", "logs.read", "logs.export", "analytics.view"],
  },
};

export function scopesOfPreset(name: string): string[] {
  return [...(PRESETS[name]?.scopes ?? [])];
}
