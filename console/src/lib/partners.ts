// Credentials of guardrail partners, as the checks of a partner describe them. The partner is the part of a check's id
// before the dot.
import type { Schema } from "./api";
import { isMasked, listParameters, type Parameter } from "./guardrails";

const CREDENTIALS = "credentials";

type JsonSchema = Record<string, unknown>;

function credentialsSchema(check: Schema["CheckDescription"]): JsonSchema | null {
  const properties = (check.parameters.properties ?? {}) as Record<string, JsonSchema>;
  return (check.secrets.includes(CREDENTIALS) && properties[CREDENTIALS]) || null;
}

/** Returns the names that the object of a definition may have, as a hint for a field with JSON. */
function objectHint(schema: JsonSchema, definitions: unknown, name: string): string {
  const written = ((schema.properties ?? {}) as Record<string, JsonSchema>)[name] ?? {};
  const reference = typeof written.$ref === "string" ? (written.$ref.split("/").at(-1) ?? "") : "";
  const object = ((definitions ?? {}) as Record<string, JsonSchema>)[reference] ?? written;
  const names = Object.keys((object.properties ?? {}) as JsonSchema);
  return names.length ? `An object with ${names.join(", ")}.` : "";
}

/** Returns the credentials of each partner. Several checks of a partner may need different ones, so none is required. */
export function listPartners(checks: Schema["CheckDescription"][]): Map<string, Parameter[]> {
  const partners = new Map<string, Parameter[]>();
  for (const check of checks) {
    const schema = credentialsSchema(check);
    if (!schema) continue;
    const partner = check.id.split(".")[0] ?? "";
    const known = partners.get(partner) ?? [];
    const parameters = { $defs: check.parameters.$defs, ...schema, required: [] };
    const found = listParameters({ ...check, parameters, secrets: [] }).filter((one) => !known.some(({ name }) => name === one.name));
    const hinted = found.map((one) => (one.kind === "json" ? { ...one, hint: one.hint || objectHint(schema, parameters.$defs, one.name) } : one));
    partners.set(partner, [...known, ...hinted]);
  }
  return partners;
}

/** Returns the parameter with the kind of its field. Texts with a pattern, such as regions, are shown unless masked. */
export function toField(parameter: Parameter, value: unknown): Parameter {
  const isSecret = parameter.kind === "text" || (parameter.kind === "line" && isMasked(value));
  return isSecret ? { ...parameter, kind: "secret" } : parameter;
}

/** Returns true if a text stands where an object is needed, because it is no JSON yet, or nothing is entered. */
export function isCredentialsBroken(parameters: Parameter[], credentials: Record<string, unknown>): boolean {
  const isBroken = parameters.some((one) => one.kind === "json" && typeof credentials[one.name] === "string");
  return isBroken || Object.keys(credentials).length === 0;
}
