// Settings of the organisation as a form shows them, and what of them a request changes.
import { api, get, ifMatch, load, type Loaded, type Schema } from "./api";
import { changedEntries } from "./changes";

const SECONDS_OF_HOUR = 3600;
const SECONDS_OF_DAY = 86_400;

export type Choice = "" | "workspaces" | "organisation";
export interface OrganisationFields {
  sessionHours: string;
  rotationDays: string;
  keyDays: string;
  makesKeys: boolean;
  makesKeysInDefault: boolean;
  blocksInlineConfigs: boolean;
  /** Flags for what roles may see and change, by name. */
  flags: Record<string, boolean>;
  /** Roles that decide about the flags of a section. */
  sections: Record<string, Choice>;
  deniedFields: string[];
  inputGuardrails: string[];
  outputGuardrails: string[];
}

/** Sections of flags, by the subjects in the names of the flags. */
const SUBJECTS: Record<string, { title: string; section: string }> = {
  Logs: { title: "Bodies of logs", section: "logs" },
  LogMetadata: { title: "List of logs", section: "logs" },
  AllData: { title: "Logs of other users", section: "logs" },
  ApiKeys: { title: "API keys", section: "api_keys" },
  Configs: { title: "Configs", section: "configs" },
  Prompts: { title: "Prompts", section: "prompts" },
  Analytics: { title: "Analytics", section: "analytics" },
  Guardrails: { title: "Guardrails", section: "guardrails" },
  VirtualKeys: { title: "Providers", section: "virtual_keys" },
  Ws: { title: "The workspace itself", section: "workspaces" },
  WsUsers: { title: "Members of the workspace", section: "workspaces" },
  WsIntegrations: { title: "Integrations of the workspace", section: "integrations" },
  McpServers: { title: "MCP servers", section: "mcp" },
  WsMcpIntegrations: { title: "MCP integrations", section: "mcp" },
};
/** Section for requests that choose a provider, address or config themselves. */
export const INLINE_CONFIGS = "data_plane_security_settings";
export const SECTIONS: Record<string, string> = {
  logs: "Logs",
  api_keys: "API keys",
  configs: "Configs",
  prompts: "Prompts",
  analytics: "Analytics",
  guardrails: "Guardrails",
  virtual_keys: "Providers",
  workspaces: "Workspaces",
  integrations: "Integrations",
  mcp: "MCP",
  [INLINE_CONFIGS]: "Inline configs",
};
/** Kinds of flags: the beginning of their names, and the column that shows them. */
export const FLAG_KINDS: Record<string, string> = {
  membersView: "Members see",
  membersWrite: "Members change",
  managersView: "Managers see",
  managersWrite: "Managers change",
  managersUpdate: "Managers change",
  organisationAdminsView: "Admins see",
};
export const FLAG_COLUMNS = [...new Set(Object.values(FLAG_KINDS))];
const FLAG = new RegExp(`^(${Object.keys(FLAG_KINDS).join("|")})([A-Z].*)$`);

export interface FlagRow {
  title: string;
  /** Section of the flags; empty if the console does not know it. */
  section: string;
  /** Name of the flag in each column; some have none. */
  names: Record<string, string>;
}

/** Returns the flags as rows: one for each subject. */
export function flagRows(flags: Record<string, boolean>): FlagRow[] {
  const found = new Map(Object.keys(SUBJECTS).map((subject) => [subject, { section: "", title: subject, ...SUBJECTS[subject], names: {} } as FlagRow]));
  for (const name of Object.keys(flags)) {
    const [, kind = "", subject = name] = FLAG.exec(name) ?? [];
    const row = found.get(subject) ?? { title: subject, section: "", names: {} };
    row.names[FLAG_KINDS[kind] ?? FLAG_COLUMNS[0] ?? ""] = name;
    found.set(subject, row);
  }
  return [...found.values()].filter((row) => Object.keys(row.names).length);
}

const amount = (seconds: number | null, unit: number): string => (seconds === null ? "" : String(seconds / unit));
const seconds = (text: string, unit: number): number | null => (text === "" ? null : Math.round(Number(text) * unit));

/** Flags for the logs of others, in `security_settings` and in `data_visibility`. A role sees them if both allow it. */
const VISIBILITY = { managersViewAllData: "managersViewAllData", membersViewAllData: "membersViewAllData" } as const;

function toFields(settings: Schema["OrganisationSettingsDetail"], defaults: Schema["OrganisationDefaultsDetail"]): OrganisationFields {
  const flags = { ...settings.security_settings };
  for (const name of Object.values(VISIBILITY)) flags[name] = (flags[name] ?? true) && settings.data_visibility[name] !== false;
  const chosen = settings.security_settings_overrides;
  const sections = Object.fromEntries(Object.keys(SECTIONS).map((name): [string, Choice] => [name, name in chosen ? (chosen[name] ? "workspaces" : "organisation") : ""]));
  return {
    sessionHours: amount(settings.session_settings.max_session_ttl, SECONDS_OF_HOUR),
    rotationDays: amount(settings.user_api_key_rotation_period, 1),
    keyDays: amount(settings.user_api_key_ttl, SECONDS_OF_DAY),
    makesKeys: settings.user_api_key_auto_create,
    makesKeysInDefault: settings.default_workspace_user_api_key_auto_create,
    blocksInlineConfigs: settings.block_inline_config,
    flags,
    sections,
    deniedFields: settings.export_settings.deniedFields,
    inputGuardrails: defaults.input_guardrails.map((one) => one.id),
    outputGuardrails: defaults.output_guardrails.map((one) => one.id),
  };
}

export async function loadOrganisation(): Promise<Loaded<OrganisationFields>> {
  const [settings, defaults] = await Promise.all([load(api.GET("/v1/admin/organisation/settings")), get(api.GET("/v1/admin/organisation/defaults"))]);
  return { data: toFields(settings.data, defaults), etag: settings.etag };
}

type SentSettings = Schema["UpdateOrganisationSettings"];

function sentFlags(before: OrganisationFields, flags: Record<string, boolean>): SentSettings {
  const changed = changedEntries(before.flags, flags);
  const isVisibility = Object.values(VISIBILITY).some((name) => name in changed);
  const visibility = { managersViewAllData: flags.managersViewAllData ?? true, membersViewAllData: flags.membersViewAllData ?? true };
  return { security_settings: changed, ...(isVisibility ? { data_visibility: visibility } : {}) };
}

/** Returns the settings that a request changes. */
export function sentSettings(before: OrganisationFields, changed: Partial<OrganisationFields>): SentSettings {
  const has = (name: keyof OrganisationFields): boolean => changed[name] !== undefined;
  const choices: Record<Choice, boolean | null> = { "": null, workspaces: true, organisation: false };
  const sections = Object.entries(changedEntries(before.sections, changed.sections ?? before.sections)).map(([name, choice]) => [name, choices[choice]]);
  return {
    ...(has("sessionHours") ? { session_settings: changed.sessionHours ? { max_session_ttl: seconds(changed.sessionHours, SECONDS_OF_HOUR) ?? 0 } : null } : {}),
    ...(has("rotationDays") ? { user_api_key_rotation_period: seconds(changed.rotationDays ?? "", 1) } : {}),
    ...(has("keyDays") ? { user_api_key_ttl: seconds(changed.keyDays ?? "", SECONDS_OF_DAY) } : {}),
    ...(has("makesKeys") ? { user_api_key_auto_create: changed.makesKeys ?? null } : {}),
    ...(has("makesKeysInDefault") ? { default_workspace_user_api_key_auto_create: changed.makesKeysInDefault ?? null } : {}),
    ...(has("blocksInlineConfigs") ? { block_inline_config: changed.blocksInlineConfigs ?? null } : {}),
    ...(changed.flags ? sentFlags(before, changed.flags) : {}),
    ...(changed.sections ? { security_settings_overrides: Object.fromEntries(sections) as Record<string, boolean | null> } : {}),
    ...(changed.deniedFields ? { export_settings: { deniedFields: changed.deniedFields as Schema["ExportSettings"]["deniedFields"] } } : {}),
  };
}

type Stored = (fields: Partial<OrganisationFields>, etag: string) => void;

/**
 * Saves the changed fields: settings, then default guardrails. Both are one object, so the second needs the new state.
 * Calls `onstored` after the first, because the second may fail.
 */
export async function saveOrganisation(before: OrganisationFields, changed: Partial<OrganisationFields>, etag: string, onstored: Stored): Promise<void> {
  const { inputGuardrails, outputGuardrails, ...others } = changed;
  const settings = sentSettings(before, others);
  const defaults = {
    ...(inputGuardrails ? { input_guardrails: inputGuardrails } : {}),
    ...(outputGuardrails ? { output_guardrails: outputGuardrails } : {}),
  };
  let state = etag;
  if (Object.keys(settings).length) {
    state = (await load(api.PUT("/v1/admin/organisation/settings", { params: { header: ifMatch(state) }, body: settings }))).etag;
    onstored(others, state);
  }
  if (Object.keys(defaults).length) await get(api.PUT("/v1/admin/organisation/defaults", { params: { header: ifMatch(state) }, body: defaults }));
}
