// Rules of a workspace as a form shows them, and what of them a request changes.
import type { Schema } from "./api";
import { changedFields } from "./changes";

const SECONDS_OF_DAY = 86_400;
const UNLIMITED = -1;

/** A rule that is on, off, or not set, so that the organisation's applies. */
export type Switch = "" | "on" | "off";
export interface RuleFields {
  blocksInlineConfigs: Switch;
  makesKeys: Switch;
  /** False if records of requests never contain bodies. */
  recordsBodies: boolean;
  maxKeys: string;
  maxKeyDays: string;
  keyDays: string;
  rotationDays: string;
  metadata: unknown;
  /** True if the metadata of a key takes precedence over that of the rule. */
  keyMetadataWins: boolean;
}

type Rules = Schema["WorkspaceRules"];

const toSwitch = (value: boolean | null | undefined): Switch => (value === null || value === undefined ? "" : value ? "on" : "off");
const fromSwitch = (value: Switch): boolean | null => (value === "" ? null : value === "on");
const toDays = (seconds: number | null | undefined): string => (seconds === null || seconds === undefined ? "" : String(seconds / SECONDS_OF_DAY));
const toSeconds = (days: string): number | null => (days === "" ? null : Math.round(Number(days) * SECONDS_OF_DAY));

export function ruleFields(rules: Schema["WorkspaceRulesResponse"]): RuleFields {
  const count = rules.user_api_key_count ?? UNLIMITED;
  return {
    blocksInlineConfigs: toSwitch(rules.block_inline_config),
    makesKeys: toSwitch(rules.user_api_key_auto_create),
    recordsBodies: rules.debug_log !== 0,
    maxKeys: count === UNLIMITED ? "" : String(count),
    maxKeyDays: toDays(rules.user_api_key_max_ttl),
    keyDays: toDays(rules.user_api_key_ttl),
    rotationDays: String(rules.user_api_key_rotation_period ?? ""),
    metadata: rules.user_key_metadata ?? undefined,
    keyMetadataWins: rules.user_key_metadata_override !== 0,
  };
}

/** Returns the rules that differ from the saved ones; null removes a rule. */
export function changedRules(before: RuleFields, after: RuleFields): Rules {
  const changed = changedFields(before, after);
  const has = (name: keyof RuleFields): boolean => name in changed;
  return {
    ...(has("blocksInlineConfigs") ? { block_inline_config: fromSwitch(after.blocksInlineConfigs) } : {}),
    ...(has("makesKeys") ? { user_api_key_auto_create: fromSwitch(after.makesKeys) } : {}),
    ...(has("recordsBodies") ? { debug_log: after.recordsBodies ? null : 0 } : {}),
    ...(has("maxKeys") ? { user_api_key_count: after.maxKeys === "" ? null : Number(after.maxKeys) } : {}),
    ...(has("maxKeyDays") ? { user_api_key_max_ttl: toSeconds(after.maxKeyDays) } : {}),
    ...(has("keyDays") ? { user_api_key_ttl: toSeconds(after.keyDays) } : {}),
    ...(has("rotationDays") ? { user_api_key_rotation_period: after.rotationDays === "" ? null : Number(after.rotationDays) } : {}),
    ...(has("metadata") ? { user_key_metadata: (after.metadata ?? null) as Record<string, string> | null } : {}),
    ...(has("keyMetadataWins") ? { user_key_metadata_override: after.keyMetadataWins ? null : 0 } : {}),
  };
}
