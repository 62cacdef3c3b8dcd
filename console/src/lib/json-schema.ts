// What a JSON schema allows at a path of a document: keys and values that an editor can offer.

export interface JsonSchema {
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
  type?: string | string[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  description?: string;
  required?: string[];
  properties?: Record<string, JsonSchema>;
  items?: JsonSchema;
  anyOf?: JsonSchema[];
  oneOf?: JsonSchema[];
  allOf?: JsonSchema[];
}

export type JsonPath = (string | number)[];

export interface KeyOffer {
  key: string;
  schema: JsonSchema;
  isRequired: boolean;
}

const MAX_DEPTH = 12;

/** Returns a schema and all its alternatives, with references replaced. */
function expand(root: JsonSchema, schema: JsonSchema, depth = 0): JsonSchema[] {
  if (depth > MAX_DEPTH) return [];
  const found = [schema];
  const name = schema.$ref?.split("/").at(-1);
  const target = name ? root.$defs?.[name] : undefined;
  for (const one of [...(target ? [target] : []), ...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])]) {
    found.push(...expand(root, one, depth + 1));
  }
  return found;
}

/** Returns the schemas that apply at a path. */
export function schemasAt(root: JsonSchema, path: JsonPath): JsonSchema[] {
  let current = expand(root, root);
  for (const step of path) {
    const next = current.flatMap((schema) => {
      const inner = typeof step === "number" ? schema.items : schema.properties?.[step];
      return inner ? expand(root, inner) : [];
    });
    current = next;
  }
  return current;
}

/** Returns the keys that an object at a path may have. */
export function keysAt(root: JsonSchema, path: JsonPath): KeyOffer[] {
  const found = new Map<string, KeyOffer>();
  for (const schema of schemasAt(root, path)) {
    for (const [key, inner] of Object.entries(schema.properties ?? {})) {
      const isRequired = schema.required?.includes(key) ?? false;
      const known = found.get(key);
      // The first schema describes the key; later ones are conditions on it.
      if (!known) found.set(key, { key, schema: inner, isRequired });
      else if (isRequired) known.isRequired = true;
    }
  }
  return [...found.values()];
}

/** Returns the values that a schema names at a path. */
export function valuesAt(root: JsonSchema, path: JsonPath): unknown[] {
  const found = new Set<unknown>();
  for (const schema of schemasAt(root, path)) {
    for (const value of schema.enum ?? []) found.add(value);
    if (schema.const !== undefined) found.add(schema.const);
    if (schema.default !== undefined) found.add(schema.default);
    if (schema.type === "boolean") [true, false].forEach((value) => found.add(value));
  }
  return [...found];
}

/** Returns the text that an editor puts after a new key. `|` marks where the cursor goes. */
export function skeleton(root: JsonSchema, schema: JsonSchema): string {
  const all = expand(root, schema);
  const fixed = all.find((one) => one.default !== undefined)?.default;
  if (fixed !== undefined) return `${JSON.stringify(fixed)}|`;
  const type = all.map((one) => (Array.isArray(one.type) ? one.type[0] : one.type)).find(Boolean);
  if (type === "object") return "{|}";
  if (type === "array") return "[|]";
  if (type === "string" || all.some((one) => one.enum?.some((value) => typeof value === "string"))) return '"|"';
  return "|";
}

/** Parses a path of a validation message, such as `config.targets[0].retry`. The first name stands for the document. */
export function parsePath(text: string): JsonPath {
  const steps = [...text.matchAll(/\[(\d+)\]|\["([^"]*)"\]|([^.[\]]+)/g)].map((match) => (match[1] !== undefined ? Number(match[1]) : (match[2] ?? match[3] ?? "")));
  return steps.slice(1);
}
