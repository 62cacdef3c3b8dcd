// Guardrails in forms: who may change them, and the parameters of a check from its JSON Schema.
import type { Schema } from "./api";
import { session } from "./session.svelte";

export type Check = Required<Schema["Check"]>;
export interface Feedback {
  value: number;
  weight: number;
  /** Parsed JSON, or the typed text while it is not valid JSON. */
  metadata: Record<string, unknown> | string;
}
export interface Actions {
  deny: boolean;
  async: boolean;
  sequential: boolean;
  dry_run: boolean;
  on_success: { feedback: Feedback };
  on_fail: { feedback: Feedback };
}
export interface GuardrailFields {
  name: string;
  /** Slug of the workspace that owns a new guardrail; empty for the organisation. */
  owner: string;
  checks: Check[];
  actions: Actions;
}

/** How a form shows a parameter. `pairs` are credentials by name. */
export type ParameterKind = "boolean" | "choice" | "choices" | "number" | "line" | "text" | "secret" | "list" | "pairs" | "json";
export interface Parameter {
  name: string;
  label: string;
  kind: ParameterKind;
  hint: string;
  isRequired: boolean;
  /** True if most checks have the parameter. Forms show it on demand. */
  isCommon: boolean;
  fallback: unknown;
  options: string[];
  minimum?: number;
  maximum?: number;
}

type JsonSchema = Record<string, unknown>;

// The gateway masks stored credentials with these characters.
const MASK = "*****";
const DEFAULTS = { parameters: {}, name: null, is_enabled: true, soft_deny_200: false };
const COMMON = new Set(["scope", "not", "failOnError", "timeout"]);

/** Returns true if the user may do this with guardrails of a workspace; `null` stands for the organisation. */
export function mayDo(verb: "create" | "read" | "update" | "delete", workspace: string | null): boolean {
  return workspace ? session.canIn(workspace, `guardrails.${verb}`) : session.can(`organisation_guardrails.${verb}`);
}

export function newActions(): Actions {
  const feedback = (value: number): { feedback: Feedback } => ({ feedback: { value, weight: 1, metadata: {} } });
  return { deny: false, async: false, sequential: false, dry_run: false, on_success: feedback(5), on_fail: feedback(-5) };
}

/** Returns a new check. Its required JSON parameters are empty objects. */
export function newCheck(description: Schema["CheckDescription"]): Check {
  const objects = listParameters(description).filter((one) => one.isRequired && one.kind === "json");
  return { ...DEFAULTS, id: description.id, parameters: Object.fromEntries(objects.map((one) => [one.name, {}])) };
}

/** Returns the editable fields of a saved guardrail. */
export function savedFields(saved: Schema["GuardrailDetail"]): GuardrailFields {
  const checks = saved.checks.map((check) => ({ ...DEFAULTS, ...check }));
  return { name: saved.name, owner: saved.workspace_id ?? "", checks, actions: { ...newActions(), ...(saved.actions as Actions) } };
}

/** Returns the end of a version id, which distinguishes versions. */
export function shortVersion(id: string): string {
  return id.slice(-8);
}

export function isMasked(value: unknown): boolean {
  return (JSON.stringify(value) ?? "").includes(MASK);
}

/** Returns the parameters of a check: required ones first, then those that only this check has. */
export function listParameters(check: Schema["CheckDescription"]): Parameter[] {
  const properties = (check.parameters.properties ?? {}) as Record<string, JsonSchema>;
  const required = new Set((check.parameters.required ?? []) as string[]);
  const found = Object.entries(properties).map(([name, written]) => {
    const schema = resolve(written, check.parameters);
    const isSecret = check.secrets.includes(name);
    const parameter: Parameter = {
      name,
      label: labelOf(name) + (required.has(name) ? requirementOf(name) : ""),
      kind: kindOf(schema, check.parameters, isSecret),
      hint: hintOf(schema),
      isRequired: required.has(name),
      isCommon: COMMON.has(name),
      fallback: schema.default,
      options: optionsOf(schema) ?? optionsOf(itemsOf(schema)) ?? [],
    };
    if (typeof schema.minimum === "number") parameter.minimum = schema.minimum;
    if (typeof schema.maximum === "number") parameter.maximum = schema.maximum;
    return parameter;
  });
  const rank = (one: Parameter): number => (one.isRequired ? 0 : one.isCommon ? 2 : 1);
  return found.sort((one, other) => rank(one) - rank(other));
}

/** Returns what a check does, as a sentence. */
export function describeCheck(check: Schema["CheckDescription"]): string {
  return `${capitalise(check.description.replaceAll("`", ""))}.`;
}

/** Returns true if a JSON parameter of the check is still text, because it is not valid JSON. */
export function hasBrokenJson(check: Check, description: Schema["CheckDescription"] | undefined): boolean {
  if (!description) return false;
  return listParameters(description).some((one) => one.kind === "json" && typeof check.parameters[one.name] === "string");
}

/** Returns true if a JSON field contains invalid JSON, or if a required number is missing. */
export function isIncomplete(actions: Actions): boolean {
  const feedbacks = [actions.on_success.feedback, actions.on_fail.feedback];
  return feedbacks.some((one) => typeof one.metadata === "string" || !Number.isFinite(one.value) || !Number.isFinite(one.weight));
}

/** Returns the items of a list, or of a text in which commas separate them. */
export function toList(value: unknown): string[] {
  if (Array.isArray(value)) return value.map(String);
  return typeof value === "string" && value ? value.split(",").map((one) => one.trim()) : [];
}

function resolve(schema: JsonSchema, root: JsonSchema): JsonSchema {
  const name = typeof schema.$ref === "string" ? (schema.$ref.split("/").at(-1) ?? "") : "";
  const target = ((root.$defs ?? {}) as Record<string, JsonSchema>)[name];
  return target ? { ...target, ...schema } : schema;
}

function kindOf(schema: JsonSchema, root: JsonSchema, isSecret: boolean): ParameterKind {
  const choices = (Array.isArray(schema.oneOf) ? (schema.oneOf as JsonSchema[]) : [schema]).map((one) => resolve(one, root));
  const types = new Set(choices.map((one) => one.type));
  if (isSecret) return types.has("object") ? "pairs" : "secret";
  if (optionsOf(schema)) return "choice";
  if (types.has("boolean")) return "boolean";
  if (types.has("integer") || types.has("number")) return "number";
  const list = choices.find((one) => one.type === "array");
  if (list) {
    const items = resolve(itemsOf(list), root);
    if (optionsOf(items)) return "choices";
    return items.type === "string" ? "list" : "json";
  }
  // Only strings without a pattern may have several lines.
  if (types.has("string")) return schema.pattern === undefined ? "text" : "line";
  return "json";
}

function itemsOf(schema: JsonSchema): JsonSchema {
  return (schema.items ?? {}) as JsonSchema;
}

function optionsOf(schema: JsonSchema): string[] | null {
  return Array.isArray(schema.enum) ? schema.enum.map(String) : null;
}

/** Returns the suffix of a required label. The organisation may store a partner's credentials instead. */
function requirementOf(name: string): string {
  return name === "credentials" ? " (or those of the organisation)" : " (required)";
}

function labelOf(name: string): string {
  const words = name.replace(/([a-z0-9])([A-Z])/g, "$1 $2").split(/[ _]/);
  return capitalise(words.map((word) => (word === word.toUpperCase() ? word : word.toLowerCase())).join(" "));
}

function capitalise(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function hintOf(schema: JsonSchema): string {
  const parts = [typeof schema.description === "string" ? `${schema.description.replaceAll("`", "")}.` : ""];
  const isWritten = ["string", "number"].includes(typeof schema.default);
  if (isWritten && !optionsOf(schema)) parts.push(`Default: ${String(schema.default)}.`);
  return capitalise(parts.filter(Boolean).join(" "));
}
