// Prompts in the console: a new version with its variables, differences, labels, publication, a run and a comparison.
import assert from "node:assert/strict";
import { test } from "node:test";

import { callApi, expectText, openSignedIn, settle } from "./console-kit.mjs";

const { GATEWAY, PICTURES, WORKSPACE } = process.env;
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
