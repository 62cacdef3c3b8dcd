// Places of the console where people look for the other features: tests of providers, exports, feedback, invitations.
import assert from "node:assert/strict";
import { test } from "node:test";

import { callApi, expectCount, expectText, openPage, openSignedIn, sendChat, settle, streamText, until } from "./console-kit.mjs";

const { GATEWAY, KEY, WORKSPACE } = process.env;

test("tests a provider and its integration with a short request", async () => {
  const { data } = await callApi("GET", "/v1/providers");
  const provider = data.find((one) => one.slug === "mock-main");
  const { page, context, faults } = await openSignedIn(`providers/${provider.id}`);
  const trial = page.getByRole("region", { name: "Test" });
  await trial.getByLabel("Model to test").fill("mock");
  await trial.getByRole("button", { name: "Test" }).click();
  await expectText(trial, /It works: .* 12 → 8 tokens/);
  // The workers reject a new key with 401 for a moment, so these faults are allowed.
  assert.deepEqual(faults.filter((fault) => !fault.startsWith("401 ")), []);
  // If the provider rejects its credential with 401, the console does not repeat the request.
  let count = 0;
  await page.route(/\/v1\/chat\/completions$/, async (route) => {
    count += 1;
    await route.fulfill({ status: 401, json: { error: { message: "openai error: Incorrect API key provided", code: "invalid_api_key" }, provider: "openai" } });
  });
  await trial.getByRole("button", { name: "Test" }).click();
  await expectText(trial, /Incorrect API key provided/);
  assert.equal(count, 1);
  await page.unroute(/\/v1\/chat\/completions$/);

  await openPage(page, `providers/integrations/${provider.integration_id}`);
  await page.getByRole("link", { name: "@mock-main" }).waitFor();
  await trial.getByLabel("Model to test").fill("mock");
  await trial.getByRole("button", { name: "Test" }).click();
  await expectText(trial, /It works: /);
  await context.close();
});

test("says why a provider does not work", async () => {
  const integration = await callApi("POST", "/v1/integrations", { name: "Broken", ai_provider_id: "openai", key: "sk-0123456789", configurations: { custom_host: "http://127.0.0.1:47999" } });
  await callApi("PUT", `/v1/integrations/${integration.slug}/workspaces`, { workspaces: [{ id: WORKSPACE, enabled: true }] });
  const { id } = await callApi("POST", "/v1/providers", { name: "Broken", integration_id: integration.slug, workspace_id: WORKSPACE });
  const { page, context } = await openSignedIn(`providers/${id}`);
  const trial = page.getByRole("region", { name: "Test" });
  await trial.getByLabel("Model to test").fill("gpt-4o-mini");
  await trial.getByRole("button", { name: "Test" }).click();
  await trial.getByRole("alert").waitFor();
  await context.close();
  await callApi("DELETE", `/v1/providers/${id}`);
  await callApi("DELETE", `/v1/integrations/${integration.slug}`);
});

test("exports the filtered logs to a file", async () => {
  for (let count = 0; count < 2; count += 1) assert.equal((await sendChat("mock-exported")).status, 200);
  await until("the logs", async () => (await callApi("GET", "/v1/logs?ai_model=mock-exported&workspace_slug=*")).data.length >= 2);
  const { page, context, faults } = await openSignedIn("logs?ai_model=mock-exported");
  await page.getByRole("button", { name: "Export" }).click();
  await page.waitForURL(/exports=1/);
  await page.getByLabel("What it is for").fill("for the auditors");
  await page.getByRole("button", { name: "Start the export" }).click();
  const list = page.getByRole("region", { name: "Exports" });
  await expectText(list, /for the auditors.*2 logs.*success/s);
  const [download] = await Promise.all([page.waitForEvent("download"), list.getByRole("button", { name: "Download" }).click()]);
  const lines = (await streamText(await download.createReadStream())).trim().split("\n").map((line) => JSON.parse(line));
  assert.deepEqual(lines.map((line) => line.ai_model), ["mock-exported", "mock-exported"]);
  assert.deepEqual(faults, []);
  await context.close();
});

test("shows the ratings of a request, and its trace with any characters", async () => {
  const trace = "order/17?part=1#a%2F%zz";
  const sent = await sendChat("mock-rated", KEY, { "x-gateway-trace-id": trace });
  const id = sent.headers.get("x-gateway-request-id");
  const writer = await callApi("POST", "/v1/api-keys/workspace/service", { name: "of ratings", workspace_id: WORKSPACE, scopes: ["logs.write"] });
  await callApi("POST", "/v1/feedback", { trace_id: trace, value: -4, weight: 0.5, metadata: { reason: "too long" } }, { "x-gateway-api-key": writer.key });
  await until("the rating", async () => (await callApi("GET", `/v1/logs/${id}?workspace_slug=*`)).feedback.length === 1);
  const { page, context, faults } = await openSignedIn(`logs/${id}`);
  await page.getByText('Rated -4 · weight 0.5 · reason: too long').waitFor();
  await page.getByRole("link", { name: trace }).click();
  await page.getByRole("heading", { name: `Trace ${trace}` }).waitFor();
  await page.getByText("1 request", { exact: false }).first().waitFor();
  await page.reload();
  await page.getByRole("heading", { name: `Trace ${trace}` }).waitFor();
  await openPage(page, "logs?weighted_feedback_max=-1&ai_model=mock-rated");
  await page.getByRole("row", { name: /mock-rated/ }).first().waitFor();
  await openPage(page, "analytics?metric=feedback");
  await expectText(page.locator("main"), /mean/);
  assert.deepEqual(faults, []);
  await context.close();
});

test("sends a logged request again from the playground, with its tools and parameters", async () => {
  const messages = [{ role: "user", content: [{ type: "text", text: "Replay me" }] }];
  const tools = [{ type: "function", function: { name: "get_weather", parameters: { type: "object" } } }];
  const sent = await fetch(`${GATEWAY}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-gateway-api-key": KEY, "x-gateway-provider": "@mock-main" },
    body: JSON.stringify({ model: "mock-again", messages, tools, top_p: 0.5, max_tokens: 40 }),
  });
  const id = sent.headers.get("x-gateway-request-id");
  await until("the log", () => callApi("GET", `/v1/logs/${id}?workspace_slug=*`));
  const { page, context, faults } = await openSignedIn(`logs/${id}`);
  await page.getByRole("link", { name: "Replay" }).click();
  await until("the messages", async () => (await page.getByLabel("Text of message 1").inputValue()).includes("Replay me"));
  await page.waitForURL(/ws=.*m1=mock-again/);
  const send = page.getByRole("button", { name: /^Send/ });
  await until("the button", () => send.isEnabled());
  const [again] = await Promise.all([page.waitForRequest(/chat\/completions/), send.click()]);
  const { stream, stream_options: streamOptions, ...body } = again.postDataJSON();
  assert.deepEqual([stream, streamOptions], [true, { include_usage: true }]);
  assert.deepEqual(body, { model: "mock-again", messages, tools, top_p: 0.5, max_tokens: 40 });
  await page.getByRole("region", { name: "first model" }).getByText(/ tokens/).waitFor();
  assert.deepEqual(faults.filter((fault) => !fault.startsWith("401 ")), []);
  await context.close();
});

test("makes a new link for an invitation, after which the earlier one no longer works", async () => {
  const first = await callApi("POST", "/v1/admin/users/invites", { email: "late@example.com", role: "member", workspaces: [] });
  const { page, context, faults } = await openSignedIn("users/invites?find=late");
  await page.getByRole("row", { name: /late@example.com/ }).getByRole("button", { name: "New link" }).click();
  const link = page.locator("dialog pre");
  await expectText(link, /\/v1\/auth\/invites\?token=/);
  assert.notEqual(await link.textContent(), first.invite_link);
  assert.deepEqual(faults, []);
  await context.close();
});

test("uploads a file, runs it as a batch, and downloads the output", async () => {
  const line = { custom_id: "first", method: "POST", url: "/v1/chat/completions", body: { model: "mock", messages: [{ role: "user", content: "Say hello" }] } };
  const { page, context, faults } = await openSignedIn("batches");
  await page.getByRole("button", { name: "Make one for an hour" }).click();
  await page.getByText("No batches yet").waitFor();
  await page.getByLabel("File to upload").setInputFiles({ name: "lines.jsonl", mimeType: "application/jsonl", buffer: Buffer.from(JSON.stringify(line)) });
  await page.getByText("Uploaded", { exact: true }).waitFor();
  await page.getByRole("tab", { name: "Files" }).click();
  await page.getByRole("row", { name: /lines\.jsonl.*batch/ }).waitFor();
  await page.getByRole("button", { name: "Run a batch" }).click();
  const dialog = page.locator("dialog");
  await dialog.getByLabel("Provider").selectOption("mock-main");
  await dialog.getByRole("button", { name: "Run", exact: true }).click();
  const row = page.getByRole("row", { name: /gw_batch_.*completed.*1 of 1/ });
  await row.waitFor();
  const [download] = await Promise.all([page.waitForEvent("download"), row.getByRole("button", { name: "Output" }).click()]);
  const output = JSON.parse(await streamText(await download.createReadStream()));
  assert.deepEqual([output.custom_id, output.response.status_code], ["first", 200]);
  assert.deepEqual(faults.filter((fault) => !fault.startsWith("401 ")), []);
  await context.close();
});

test("lists objects that have the same name", async () => {
  const create = (path, body) => callApi("POST", path, { name: "Twin", workspace_id: WORKSPACE, ...body });
  const keys = [];
  for (let count = 0; count < 2; count += 1) {
    await create("/v1/configs", { config: { provider: "mock" } });
    keys.push(await create("/v1/api-keys/workspace/service", { scopes: ["completions.write"] }));
  }
  for (const { key } of keys) await until("the key works", async () => (await sendChat("mock-twin", key)).status === 200);
  await until("the logs", async () => (await callApi("GET", "/v1/logs?ai_model=mock-twin&workspace_slug=*")).data.length >= 2);
  const { page, context, faults } = await openSignedIn("analytics?group=api_key&ai_model=mock-twin");
  await expectCount(page.getByRole("row", { name: /Twin/ }), 2);
  await page.keyboard.press("Control+k");
  await page.keyboard.type("twin");
  // Two configs and two keys have this name.
  await expectCount(page.getByRole("option", { name: /Twin/ }), 4);
  assert.deepEqual(faults, []);
  await context.close();
});

test("shows no batches and files with the key of another workspace", async () => {
  const { id, slug } = await callApi("POST", "/v1/workspaces", { name: "Without batches" });
  const { page, context, faults } = await openSignedIn("batches?tab=files");
  const field = page.getByLabel("API key for requests");
  await field.fill(KEY);
  await field.press("Enter");
  await page.getByRole("button", { name: "Upload a file" }).first().waitFor();
  await settle(page);
  const sent = [];
  page.on("request", (request) => /\/v1\/(batches|files)/.test(request.url()) && sent.push(request.url()));
  await page.getByRole("combobox", { name: "Workspace" }).selectOption(slug);
  await page.getByText("Batches and files belong to an API key's workspace").waitFor();
  await page.getByText("This key was made or entered for another workspace.").waitFor();
  await expectCount(page.getByRole("button", { name: "Upload a file" }), 0);
  // Typed characters are no key until the field is left.
  await field.fill("");
  await field.pressSequentially("pk");
  await settle(page);
  assert.deepEqual(sent, []);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Without batches", force_delete: true });
});

test("opens an address that is no valid encoding", async () => {
  const { page, context, faults } = await openSignedIn("logs/%zz");
  await page.getByRole("heading", { name: "Logs" }).waitFor();
  await page.goBack();
  assert.deepEqual(faults.filter((fault) => fault.startsWith("error ")), []);
  await context.close();
});
