// Functions of the console that need no page.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
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

test("reports why browser tests failed at the end of its output", () => {
  const file = join(mkdtempSync(join(tmpdir(), "reported-")), "failing.test.mjs");
  writeFileSync(file, 'import { test } from "node:test";\ntest("fails", () => { throw new Error("of a test"); });\ntest("passes", () => {});\n');
  const reporter = new URL("console-reporter.mjs", import.meta.url).pathname;
  const options = ["--test", `--test-reporter=${reporter}`, "--test-reporter-destination=stdout", file];
  const { stdout } = spawnSync(process.execPath, options, { encoding: "utf8", env: { PATH: process.env.PATH } });
  rmSync(dirname(file), { recursive: true });
  assert.match(stdout, /^FAILED .* s fails\nok .* s passes\n.*\nFAILED: fails \(failing\.test\.mjs:2\)\nError: of a test\n/s);
});

test("keeps what others changed in the same object, such as its limits", async () => {
  const { changedFields, mergeChanges } = await importSource("changes.ts");
  const base = { name: "a", limits: { amount: "10", period: "weekly", rates: [1] }, options: { region: "eu", zone: "1" } };
  const mine = { name: "a", limits: { amount: "20", period: "weekly", rates: [1] }, options: { region: "eu" } };
  const theirs = { name: "b", limits: { amount: "10", period: "monthly", rates: [1, 2] }, options: { region: "us", zone: "1" } };
  assert.deepEqual(changedFields(base, mine), { limits: mine.limits, options: mine.options });
  const merged = { name: "b", limits: { amount: "20", period: "monthly", rates: [1, 2] }, options: { region: "us" } };
  assert.deepEqual(mergeChanges(base, mine, theirs), { merged, overlaps: [] });
  assert.deepEqual(mergeChanges(base, base, theirs), { merged: theirs, overlaps: [] });
});

test("merges JSON texts by their fields, and names what both changed", async () => {
  const { mergeChanges } = await importSource("changes.ts");
  const merge = (base, mine, theirs) => {
    const { merged, overlaps } = mergeChanges(...[base, mine, theirs].map((config) => ({ config: typeof config === "string" ? config : JSON.stringify(config) })));
    return [merged.config.startsWith("{\n") || merged.config.startsWith('{"') ? JSON.parse(merged.config) : merged.config, overlaps];
  };
  const base = { provider: "a", retry: { attempts: 1 }, targets: [1] };
  assert.deepEqual(merge(base, { ...base, cache: { mode: "simple" } }, { provider: "a", retry: { attempts: 4 } }), [{ provider: "a", retry: { attempts: 4 }, cache: { mode: "simple" } }, []]);
  assert.deepEqual(merge(base, { ...base, retry: { attempts: 2 }, targets: [1, 2] }, { ...base, retry: { attempts: 4 }, targets: [3] }), [{ ...base, retry: { attempts: 2 }, targets: [1, 2] }, ["config.retry.attempts", "config.targets"]]);
  // Both made the same change, or one of the texts is no object.
  assert.deepEqual(merge(base, { provider: "b" }, { provider: "b" }), [{ provider: "b" }, []]);
  assert.deepEqual(merge(base, "{not JSON", "[]"), ["{not JSON", ["config"]]);
});

test("replays a chat with all its parts, and lists what other formats have beyond a chat", async () => {
  const { replayOf, sentMessage } = await importSource("replay.ts");
  const chat = {
    model: "gpt-4o", temperature: 0, max_tokens: 50, stream: true, top_p: 0.5,
    tools: [{ type: "function", function: { name: "get_weather", parameters: {} } }],
    messages: [
      { role: "user", content: [{ type: "text", text: "What is it?" }, { type: "image_url", image_url: { url: "data:image/png;base64,AA==" } }] },
      { role: "assistant", content: null, tool_calls: [{ id: "1", type: "function", function: { name: "get_weather", arguments: "{}" } }] },
      { role: "tool", tool_call_id: "1", content: "sunny" },
    ],
  };
  const replayed = replayOf(chat, "chatComplete");
  assert.deepEqual(replayed.messages.map(sentMessage), chat.messages);
  assert.deepEqual([JSON.parse(replayed.tools), JSON.parse(replayed.parameters)], [chat.tools, { top_p: 0.5 }]);
  assert.deepEqual([replayed.model, replayed.temperature, replayed.maxTokens, replayed.omitted], ["gpt-4o", "0", "50", []]);
  const [first] = replayed.messages;
  const edited = sentMessage({ ...first, content: first.content.replace("What", "Who") });
  assert.equal(edited.content[0].text, "Who is it?");

  const source = { type: "base64", media_type: "image/png", data: "AA==" };
  const anthropic = replayOf({
    model: "claude", max_tokens: 9, system: "Be brief.", stop_sequences: ["END"], thinking: { type: "enabled" },
    tools: [{ name: "search", input_schema: { type: "object" } }, { type: "web_search", name: "web" }],
    messages: [{ role: "user", content: [{ type: "image", source }, { type: "tool_result", tool_use_id: "1" }] }],
  }, "messages");
  assert.deepEqual(anthropic.messages.map(sentMessage), [{ role: "system", content: "Be brief." }, { role: "user", content: [{ type: "image_url", image_url: { url: "data:image/png;base64,AA==" } }] }]);
  assert.deepEqual(JSON.parse(anthropic.tools), [{ type: "function", function: { name: "search", parameters: { type: "object" } } }]);
  assert.deepEqual([JSON.parse(anthropic.parameters), anthropic.omitted.sort()], [{ stop: ["END"] }, ["thinking", "tool web", "tool_result"]]);

  const items = [{ role: "user", content: [{ type: "input_text", text: "Hi" }] }, { type: "function_call", name: "f" }];
  const responses = replayOf({ model: "gpt-5", instructions: "Be kind.", input: items, max_output_tokens: 7, previous_response_id: "r" }, "createModelResponse");
  assert.deepEqual(responses.messages.map(sentMessage), [{ role: "system", content: "Be kind." }, { role: "user", content: [{ type: "text", text: "Hi" }] }]);
  assert.deepEqual([responses.maxTokens, responses.omitted.sort()], ["7", ["function_call", "previous_response_id"]]);
  assert.equal(replayOf({ input: "text", model: "m" }, "embed"), null);
});
