// Prompts in the console: a new version with its variables, differences, labels, publication, a run and a comparison.
import assert from "node:assert/strict";
import { test } from "node:test";

import { callApi, expectCount, expectText, openAsUser, openPage, openSignedIn, recordBodies, settle } from "./console-kit.mjs";

const { GATEWAY, INTEGRATION, PICTURES, WORKSPACE } = process.env;
const MESSAGES = [{ role: "user", content: "Greet {{name}}" }];

async function createPrompt(name) {
  const prompt = { name, string: JSON.stringify(MESSAGES), parameters: {}, virtual_key: "mock-main", model: "mock", workspace_id: WORKSPACE };
  return callApi("POST", "/v1/prompts", prompt);
}

/** Takes a picture in both themes, if pictures are wanted. */
async function takePictures(page, name) {
  if (!PICTURES) return;
  for (const theme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: theme });
    await page.screenshot({ path: `${PICTURES}/prompt-${name}-${theme}.png`, fullPage: true });
  }
}

test("edits a prompt, and labels and publishes the new version", async () => {
  const { id } = await createPrompt("Edited in the browser");
  const { page, context, faults } = await openSignedIn(`prompts/${id}`);
  await page.getByLabel("Text of message 1").fill("Greet {{name}} in {{language}}");
  await page.getByRole("button", { name: "Add a message" }).click();
  await page.getByLabel("Role of message 2").selectOption("system");
  await page.getByLabel("Text of message 2").fill("Be {{mood}}.");
  await page.getByLabel("What changes in this version").fill("asks for a language");
  await takePictures(page, "editor");
  await page.getByRole("button", { name: "Save as a new version" }).click();
  await page.getByText("Requests use version 1. Publish the newest one under Versions.").waitFor();
  const saved = await callApi("GET", `/v1/prompts/${id}`);
  const expected = [{ role: "user", content: "Greet {{name}} in {{language}}" }, { role: "system", content: "Be {{mood}}." }];
  assert.deepEqual(JSON.parse(saved.string), expected);

  await page.getByRole("tab", { name: "Versions" }).click();
  await page.getByRole("button", { name: "Version 1" }).click();
  await page.getByText("From version 1 to the text in the editor").waitFor();
  await page.getByText("asks for a language").waitFor();
  await expectText(page.locator("main"), /Greet \{\{name\}\} in \{\{language\}\}/);
  await page.getByLabel("Label of version 2").selectOption("production");
  await page.getByText("Label set").waitFor();
  await takePictures(page, "versions");
  await page.getByRole("button", { name: "Publish" }).click();
  await page.getByText("Requests now use version 2").waitFor();
  const stored = await callApi("GET", `/v1/prompts/${id}?version=production`);
  assert.equal(stored.prompt_version, 2);
  assert.equal(stored.default_version, 2);
  assert.deepEqual(stored.variable_components.variables, ["name", "language", "mood"]);

  await page.getByRole("tab", { name: "Run" }).click();
  for (const name of ["name", "language", "mood"]) await page.getByLabel(name, { exact: true }).waitFor();
  await takePictures(page, "run");
  await page.getByRole("tab", { name: "Compare" }).click();
  await page.getByRole("button", { name: "Run both versions" }).waitFor();
  await takePictures(page, "compare");
  assert.deepEqual(faults, []);
  await context.close();
});

test("shows what is wrong with a template, and keeps the text", async () => {
  const { id } = await createPrompt("Broken in the browser");
  const { page, context } = await openSignedIn(`prompts/${id}`);
  await page.getByLabel("Text of message 1").fill("Greet {{#name}}");
  await page.getByRole("button", { name: "Save as a new version" }).click();
  await page.getByText("the section `name` is not closed").first().waitFor();
  await takePictures(page, "problem");
  assert.equal(await page.getByLabel("Text of message 1").inputValue(), "Greet {{#name}}");
  await page.getByLabel("Text of message 1").fill("Greet {{name}} warmly");
  await page.getByRole("button", { name: "Save as a new version" }).click();
  await page.getByText("Requests use version 1.").waitFor();
  assert.ok(page.url().startsWith(`${GATEWAY}/console/prompts/`));
  await context.close();
});

test("loads a saved prompt once into the playground", async () => {
  const { slug } = await createPrompt("Chosen in the playground");
  const workspace = await callApi("GET", `/v1/workspaces/${WORKSPACE}`);
  const { page, context } = await openSignedIn(`playground?ws=${workspace.slug}`);
  await settle(page);
  const loaded = [];
  page.on("request", (request) => new URL(request.url()).pathname.endsWith(`/v1/prompts/${slug}`) && loaded.push(request));
  await page.getByLabel("Saved prompt").selectOption(slug);
  await page.getByLabel("Variable name").waitFor();
  await settle(page);
  assert.equal(loaded.length, 1);
  await context.close();
});

test("keeps prompts in a tree of collections, and moves one", async () => {
  const { id, slug } = await callApi("POST", "/v1/workspaces", { name: "Collected" });
  const { page, context, faults } = await openSignedIn(`prompts?ws=${slug}&collections=1`);
  const sheet = page.getByRole("dialog", { name: "Collections of prompts" });
  const items = sheet.getByRole("list", { name: "Collections" }).getByRole("listitem");
  await expectCount(items, 1);
  const add = async (button, field, name) => {
    await sheet.getByRole("button", { name: button, exact: true }).click();
    await sheet.getByLabel(field).fill(name);
    await sheet.getByLabel(field).press("Enter");
    await items.filter({ hasText: name }).last().waitFor();
  };
  await add("Add a collection", "Name of the new collection", "Support");
  await add("Add a collection in Support", "Name of a collection in Support", "Letters");
  await sheet.getByRole("button", { name: "Rename Letters" }).click();
  // A name that nobody edited is no edit.
  await page.keyboard.press("Escape");
  await sheet.waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Collections" }).click();
  await sheet.getByRole("button", { name: "Rename Letters" }).click();
  await sheet.getByLabel("New name of Letters").fill("Mails");
  await sheet.getByLabel("New name of Letters").press("Enter");
  await items.filter({ hasText: "Mails" }).waitFor();
  const { data } = await callApi("GET", `/v1/collections?workspace_id=${id}&page_size=100`);
  const byName = Object.fromEntries(data.map((one) => [one.name, one]));
  assert.equal(byName.Mails.parent_collection_id, byName.Support.id);

  await callApi("PUT", `/v1/integrations/${INTEGRATION}/workspaces`, { workspaces: [{ id, enabled: true }] });
  await callApi("POST", "/v1/providers", { name: "Collected", slug: "collected", integration_id: INTEGRATION, workspace_id: id });
  const string = JSON.stringify([{ role: "user", content: "Greet" }]);
  const prompt = await callApi("POST", "/v1/prompts", { name: "To move", string, parameters: {}, virtual_key: "collected", model: "mock", workspace_id: id });
  await openPage(page, `prompts/${prompt.id}?ws=${slug}`);
  const sent = await recordBodies(page);
  await page.getByLabel(/^Collection/).selectOption(byName.Mails.id);
  await page.getByRole("button", { name: "Save as a new version" }).click();
  await page.getByText("Saved", { exact: true }).waitFor();
  const bodies = sent.filter((one) => one.method === "PUT").map((one) => JSON.parse(one.body));
  assert.deepEqual(bodies, [{ patch: true, collection_id: byName.Mails.id }]);
  await openPage(page, `prompts?ws=${slug}&collection=${byName.Mails.id}`);
  await page.getByRole("link", { name: "To move" }).waitFor();
  await page.getByLabel("Collection", { exact: true }).selectOption(byName.Support.id);
  await page.getByText("No prompt matches").waitFor();
  const other = await callApi("GET", `/v1/workspaces/${WORKSPACE}`);
  await page.getByLabel("Workspace", { exact: true }).selectOption(other.slug);
  await page.waitForURL((url) => url.searchParams.get("ws") === other.slug && !url.searchParams.has("collection"));
  await settle(page);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Collected", force_delete: true });
});

test("adds, renames, protects and deletes a label", async () => {
  const { id, slug } = await callApi("POST", "/v1/workspaces", { name: "Labelled" });
  const { page, context, faults } = await openSignedIn(`prompts?ws=${slug}`);
  await page.getByRole("button", { name: "Labels" }).click();
  const item = (name) => page.getByRole("list", { name: "Labels" }).getByRole("listitem").filter({ hasText: name });
  await item("production").getByText("built in").waitFor();
  await expectCount(page.getByRole("button", { name: "Delete production" }), 0);
  await page.getByRole("button", { name: "Add a label" }).click();
  const form = page.getByRole("dialog", { name: "Add a label" });
  await form.getByLabel(/^Name/).fill("canary");
  await form.getByLabel("Meaning").fill("one request of a hundred");
  await form.getByRole("button", { name: "Add", exact: true }).click();
  await item("canary").getByText("one request of a hundred").waitFor();
  await page.getByRole("button", { name: "Edit canary" }).click();
  const sheet = page.getByRole("dialog", { name: "canary" });
  const sent = await recordBodies(page);
  await sheet.getByLabel(/^Name/).fill("early");
  await sheet.getByLabel("Colour").fill("#b91c1c");
  await sheet.getByLabel("Protected:").check();
  await sheet.getByRole("button", { name: "Save", exact: true }).click();
  await item("early").getByText("protected").waitFor();
  const [put] = sent.filter((one) => one.method === "PUT");
  assert.deepEqual(JSON.parse(put.body), { name: "early", color_code: "#b91c1c", protected: true });
  assert.ok(put.ifMatch);
  await page.getByRole("button", { name: "Delete early" }).click();
  await page.getByRole("dialog", { name: "Delete label" }).getByRole("button", { name: "Delete" }).click();
  await expectCount(item("early"), 0);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Labelled", force_delete: true });
});

test("edits tools and a raw template of a prompt, and archives it", async () => {
  const { page, context, faults } = await openSignedIn("prompts?new=1");
  const form = page.getByRole("dialog", { name: "Create a prompt" });
  await form.getByLabel("Name", { exact: true }).fill("With tools");
  await form.getByLabel("Slug").fill("with-tools");
  await form.getByLabel("Provider").selectOption("mock-main");
  await form.getByRole("button", { name: "Create" }).click();
  await page.getByRole("heading", { name: "With tools" }).waitFor();
  await settle(page);
  const sent = await recordBodies(page);
  await page.getByText("Tools", { exact: true }).click();
  const tools = [{ type: "function", function: { name: "get_weather", parameters: { type: "object" } } }];
  await page.getByLabel("Tools", { exact: true }).fill(JSON.stringify(tools));
  await page.getByLabel("Tool choice").fill("required");
  await page.getByLabel("Raw template").check();
  const template = '[{{#name}}{"role": "system", "content": "Greet {{name}}"},{{/name}} {"role": "user", "content": "Hello"}]';
  await page.getByLabel("Template", { exact: true }).fill(template);
  await page.getByRole("button", { name: "Save as a new version" }).click();
  await page.getByText("Requests use version 1.").waitFor();
  const [put] = sent.filter((one) => one.method === "PUT").map((one) => JSON.parse(one.body));
  assert.deepEqual(put, { patch: true, string: template, is_raw_template: true, tools, tool_choice: "required" });
  const saved = await callApi("GET", `/v1/prompts/with-tools?workspace_id=${WORKSPACE}`);
  assert.deepEqual([saved.tools, saved.tool_choice, saved.is_raw_template], [tools, "required", true]);

  await page.getByRole("button", { name: "Archive" }).click();
  await page.getByRole("dialog", { name: "Archive prompt" }).getByRole("button", { name: "Archive" }).click();
  await page.getByText("It is archived: requests that use it fail.").waitFor();
  await page.getByRole("button", { name: "Restore" }).click();
  await expectCount(page.getByText("It is archived: requests that use it fail."), 0);
  assert.equal((await callApi("GET", `/v1/prompts/${saved.id}`)).status, "active");
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/prompts/${saved.id}`);
});

test("shares a prompt with one workspace, which lists it, and ends the sharing", async () => {
  const { id, slug } = await callApi("POST", "/v1/workspaces", { name: "Borrower" });
  const string = JSON.stringify([{ role: "user", content: "Greet" }]);
  const prompt = await callApi("POST", "/v1/prompts", { name: "To share", string, parameters: {}, virtual_key: "mock-main", model: "mock", workspace_id: WORKSPACE });
  const { page, context, faults } = await openSignedIn(`prompts/${prompt.id}`);
  const sent = await recordBodies(page);
  const dialog = page.getByRole("dialog", { name: "Share the prompt" });
  const share = async (change) => {
    await page.getByRole("button", { name: "Share", exact: true }).click();
    await change();
    await dialog.getByRole("button", { name: "Save", exact: true }).click();
    await dialog.waitFor({ state: "detached" });
  };
  await share(async () => {
    await dialog.getByLabel("Share it with other workspaces").check();
    assert.ok(await dialog.getByRole("button", { name: "Save", exact: true }).isDisabled());
    await dialog.getByLabel("Borrower").check();
  });
  await page.getByText(/^Shared by .* with Borrower\.$/).waitFor();
  const [put] = sent.filter((one) => one.method === "PUT");
  assert.deepEqual(JSON.parse(put.body), { workspaces: [id] });
  assert.ok(put.ifMatch);
  await openPage(page, `prompts?ws=${slug}`);
  await page.getByLabel("Shared by other workspaces").check();
  const row = page.getByRole("row", { name: /To share/ });
  await row.getByText("shared", { exact: true }).waitFor();
  await row.getByRole("link").first().click();
  await page.getByRole("heading", { name: "To share" }).waitFor();
  await share(() => dialog.getByLabel("Share it with other workspaces").uncheck());
  assert.equal((await callApi("GET", `/v1/prompts/${prompt.id}`)).access_level, "workspace");
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/prompts/${prompt.id}`);
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Borrower", force_delete: true });
});

test("reads a prompt that another workspace shares, and copies it to the user's own", async () => {
  const { id, slug } = await callApi("POST", "/v1/workspaces", { name: "Copied to" });
  const prompt = await createPrompt("Of another workspace");
  await callApi("POST", `/v1/prompts/${prompt.id}/share`, { workspaces: [id] });
  const { page, context, faults } = await openAsUser("borrower@example.com", [{ id, role: "manager" }], `prompts/${prompt.id}`);
  await page.getByRole("button", { name: "Copy", exact: true }).waitFor();
  for (const name of ["Share", "Delete"]) await expectCount(page.getByRole("button", { name, exact: true }), 0);
  assert.ok(await page.getByLabel("Name", { exact: true }).evaluate((input) => input.readOnly));
  for (const tab of ["versions", "compare", "run"]) await openPage(page, `prompts/${prompt.id}?tab=${tab}`);
  assert.ok(await page.getByRole("button", { name: "Run version 1" }).isEnabled());
  const sent = await recordBodies(page);
  await page.getByRole("button", { name: "Copy", exact: true }).click();
  await page.getByText("Copied", { exact: true }).waitFor();
  assert.deepEqual(sent.filter((one) => one.method === "POST").map((one) => JSON.parse(one.body)), [{ name: "Of another workspace (copy)", workspace_id: slug }]);
  const { data } = await callApi("GET", `/v1/prompts?workspace_id=${id}`);
  assert.deepEqual(data.map((one) => one.name), ["Of another workspace (copy)"]);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/prompts/${prompt.id}`);
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Copied to", force_delete: true });
});
