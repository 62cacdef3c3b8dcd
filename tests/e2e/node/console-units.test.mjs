// Functions of the console that need no page.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";

const CONSOLE = new URL("../../../console/", import.meta.url);
const typescript = createRequire(new URL("package.json", CONSOLE))("typescript");

/** Imports a file of `console/src/lib` that imports no others but for their types. */
async function importSource(name) {
  const options = { compilerOptions: { module: typescript.ModuleKind.ESNext, target: typescript.ScriptTarget.ES2023 } };
  const { outputText } = typescript.transpileModule(readFileSync(new URL(`src/lib/${name}`, CONSOLE), "utf8"), options);
  return import(`data:text/javascript,${encodeURIComponent(outputText)}`);
}

test("copies a request as curl without letting its headers or method run commands", async () => {
  const { curlCommand } = await importSource("log-detail.ts");
  const headers = { "x-`echo ran`": "***", "x-$HOME": "***", "x-it's": "a 'quoted' $(echo ran)" };
  const request = { headers, url: "/v1/chat/completions", method: "POST;echo ran", body: { text: "it's $HOME" } };
  const command = curlCommand({ request }, "http://gateway/");
  const script = `curl() { printf '%s\\n' "$@"; }\nPENSTOCK_API_KEY=of-a-test\n${command}`;
  const sent = execFileSync("sh", ["-c", script], { encoding: "utf8" }).trimEnd().split("\n");
  assert.deepEqual(sent, [
    "http://gateway/v1/chat/completions",
    ...["-X", "POST;echo ran"],
    ...["-H", "x-`echo ran`: of-a-test"],
    ...["-H", "x-$HOME: of-a-test"],
    ...["-H", "x-it's: a 'quoted' $(echo ran)"],
    ...["-d", '{"text":"it\'s $HOME"}'],
  ]);
});

test("keeps what others changed in the same object, such as its limits", async () => {
  const { changedFields, mergeChanges } = await importSource("changes.ts");
  const base = { name: "a", limits: { amount: "10", period: "weekly", rates: [1] }, options: { region: "eu", zone: "1" } };
  const mine = { name: "a", limits: { amount: "20", period: "weekly", rates: [1] }, options: { region: "eu" } };
  const theirs = { name: "b", limits: { amount: "10", period: "monthly", rates: [1, 2] }, options: { region: "us", zone: "1" } };
  assert.deepEqual(changedFields(base, mine), { limits: mine.limits, options: mine.options });
  const merged = { name: "b", limits: { amount: "20", period: "monthly", rates: [1, 2] }, options: { region: "us" } };
  assert.deepEqual(mergeChanges(base, mine, theirs), merged);
  assert.deepEqual(mergeChanges(base, base, theirs), theirs);
});
