// Generates src/api/schema.d.ts from docs/openapi.json. Routes with several paths are generated under one of them.
import { mkdir, readFile, writeFile } from "node:fs/promises";
import openapiTS, { astToString } from "openapi-typescript";

const SOURCE = new URL("../../docs/openapi.json", import.meta.url);
const RESULT = new URL("../src/api/schema.d.ts", import.meta.url);
// Alias paths, for which no types are generated: the console uses another path of the same routes.
const OTHER_PATHS = /^\/(v2|v1\/v2|admin|health|metrics|dataservice|model-configs|pricing|v1\/workspaces)(\/|$)/;

const document = JSON.parse(await readFile(SOURCE, "utf8"));
for (const path of Object.keys(document.paths)) if (OTHER_PATHS.test(path)) delete document.paths[path];

const used = new Set();
function collect(value) {
  if (Array.isArray(value)) return value.forEach(collect);
  if (value === null || typeof value !== "object") return undefined;
  const name = typeof value.$ref === "string" ? value.$ref.split("/").at(-1) : null;
  if (name && !used.has(name)) {
    used.add(name);
    collect(document.components.schemas[name]);
  }
  return Object.values(value).forEach(collect);
}
collect(document.paths);
for (const name of Object.keys(document.components.schemas)) {
  if (!used.has(name)) delete document.components.schemas[name];
}

// A field with a default value may be left out of a request.
await mkdir(new URL(".", RESULT), { recursive: true });
await writeFile(RESULT, astToString(await openapiTS(document, { defaultNonNullable: false })));

// The providers with their hosts and options, from the generated page about them. Rows of the first table have three
// columns (name, API format, host), and so have the options (provider, header, field).
const page = await readFile(new URL("../../docs/providers.md", import.meta.url), "utf8");
const [before, options] = page.split("\n## Options\n");
const rows = (text) => [...text.matchAll(/^\| `([^`|]+)` \| ([^|]+) \| ([^|]+) \|$/gm)].map((match) => match.slice(1));
const providers = Object.fromEntries(
  rows(before.split("\n## ")[0]).map(([name, , host]) => [name, { host: host === "–" ? "" : host, options: [] }]),
);
for (const [name, , field] of rows(options)) providers[name]?.options.push(field.replaceAll("`", ""));
if (!providers.openai?.host) throw new Error("docs/providers.md has no table of providers");
await writeFile(new URL("../src/api/providers.json", import.meta.url), JSON.stringify(providers));

// The secret managers: the field that chooses how to sign in, and the other fields of each way. An optional one ends with
// a question mark in the description of the API.
const { description } = document.components.schemas.CreateSecretReference.properties.auth_config;
const managers = {};
for (const [, manager, field, ways] of description.matchAll(/(\w+) by (\w+) ([^;]+)/g)) {
  const methods = [...ways.matchAll(/`(\w+)` \(([^)]*)\)/g)].map(([, way, listed]) => [
    way,
    listed.split(", ").map((name) => ({ name: name.replace("?", ""), isOptional: name.endsWith("?") })),
  ]);
  managers[manager] = { field, methods: Object.fromEntries(methods) };
}
if (!managers.aws_sm?.methods.accessKey?.length) throw new Error("docs/openapi.json does not describe auth_config of secret references");
await writeFile(new URL("../src/api/secret-managers.json", import.meta.url), JSON.stringify(managers));

// The schema of configs, without the spaces.
const schema = JSON.parse(await readFile(new URL("../../docs/config.schema.json", import.meta.url), "utf8"));
await writeFile(new URL("../src/api/config-schema.json", import.meta.url), JSON.stringify(schema));
