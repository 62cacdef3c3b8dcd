// The console on a slow network: progress, one request for two clicks, and responses in another order than requests.
// Responses wait until the test lets them go, so nothing depends on times.
import assert from "node:assert/strict";
import { test } from "node:test";

import { callApi, clickLink, expectCount, expectText, openSignedIn, openTab, sendChat, settle, until } from "./console-kit.mjs";

const { ADMIN_KEY, CONFIG, GATEWAY, GUARDRAIL, INTEGRATION, LOG, MEMBER_EMAIL, MEMBER_PASSWORD, PARTIAL, PROMPT, WORKSPACE } = process.env;
/** Pages and sheets that show data. */
const LISTS = [
  "overview", `logs/${LOG}`, "traces", "traces/order-17", "analytics", "prompts", `prompts/${PROMPT}?tab=versions`, "configs", "prompts/partials", `configs/${CONFIG}?tab=versions`, "guardrails",
  `prompts/partials/${PARTIAL}?tab=versions`, `guardrails/${GUARDRAIL}?tab=versions`, "providers", "guardrails/partners", `providers/integrations/${INTEGRATION}?tab=models`, "secrets",
  `providers/integrations/${INTEGRATION}?tab=workspaces`, "models", "keys", "limits", "users", "limits?tab=usage", "audit", "limits?tab=refusals", "workspaces", "users/invites", `workspaces/${WORKSPACE}?tab=members`, "organisation",
];
/** Texts that report an empty list, and numbers that are zero. */
const EMPTY = /\bNo [a-z-]+( [a-z-]+)? (yet|match(es)?)|\bNothing |\bNobody |Both are the same|No members|\bno [a-z]+ of its own|\b0 (requests|models|rows)/;

/** Delays requests whose method and address match. Returns the waiting requests, each with a `release` function. */
async function holdBack(page, method, pattern) {
  const waiting = [];
  await page.route(pattern, async (route) => {
    if (route.request().method() !== method) return route.fallback();
    await new Promise((resolve) => waiting.push({ url: route.request().url(), release: resolve }));
    return route.continue().catch(() => null);
  });
  return waiting;
}

test("shows progress while a page waits, and sends a form once", async () => {
  const { page, context, faults } = await openSignedIn("workspaces");
  const lists = await holdBack(page, "GET", /\/v1\/configs\?/);
  await page.getByRole("link", { name: "Configs" }).click();
  await page.getByRole("progressbar").waitFor();
  await page.getByText("Loading…").first().waitFor();
  await until("the request", () => lists.length);
  for (const one of lists.splice(0)) one.release();
  await page.getByRole("table", { name: "Configs" }).waitFor();
  await expectCount(page.getByRole("progressbar"), 0);

  await page.goto(`${GATEWAY}/console/workspaces?new=1`);
  const posts = await holdBack(page, "POST", /\/v1\/admin\/workspaces/);
  await page.getByLabel("Name").fill("made once");
  for (let presses = 0; presses < 3; presses += 1) await page.getByLabel("Name").press("Enter");
  await page.locator("dialog button.primary[aria-busy=true]").waitFor();
  await until("the request", () => posts.length);
  await page.locator("dialog button.primary").click({ force: true });
  for (const one of posts) one.release();
  await page.getByRole("link", { name: "made once" }).waitFor();
  const { data } = await callApi("GET", "/v1/admin/workspaces?page_size=1000");
  const made = data.filter((one) => one.name === "made once");
  assert.equal(made.length, 1);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/workspaces/${made[0].id}`, { name: "made once", force_delete: true });
});

test("shows no page as empty before its data arrive", async () => {
  const { page, context, faults } = await openSignedIn("system");
  let isHeld = true;
  const waiting = [];
  await page.route(/\/v1\/(?!auth\/)/, async (route) => {
    if (isHeld) await new Promise((resolve) => waiting.push(resolve));
    await route.continue().catch(() => null);
  });
  const early = [];
  for (const path of LISTS) {
    isHeld = true;
    await clickLink(page, path);
    await until(`a request of ${path}`, () => waiting.length);
    // The page itself is loaded now, because it has sent a request; its parts follow without another response.
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
    const shown = await page.locator("main, dialog[open]").evaluateAll((parts) => parts.map((part) => part.innerText).join(" "));
    if (EMPTY.test(shown)) early.push(`${path}: ${shown.match(EMPTY)[0]}`);
    if (!/Loading/.test(shown)) early.push(`${path}: does not say that it loads`);
    isHeld = false;
    for (const release of waiting.splice(0)) release();
    await settle(page);
  }
  assert.deepEqual(early, []);
  assert.deepEqual(faults, []);
  await context.close();
});

test("shows the rows of the newest filter, whichever response comes last", async () => {
  for (const model of ["mock-first", "mock-second"]) assert.equal((await sendChat(model)).status, 200);
  for (const model of ["mock-first", "mock-second"]) await until("the log", async () => (await callApi("GET", `/v1/logs?ai_model=${model}&workspace_slug=*`)).data.length);
  const { page, context } = await openSignedIn("logs");
  await page.getByRole("table", { name: "Logs" }).waitFor();
  const waiting = await holdBack(page, "GET", /\/v1\/logs\?/);
  const filter = async (model) => {
    await page.getByLabel("Value of Model").fill(model);
    await page.getByRole("button", { name: "Filter", exact: true }).click();
    return until("the request", () => waiting.find((one) => one.url.includes(model)));
  };
  const first = await filter("mock-first");
  const second = await filter("mock-second");
  second.release();
  await page.getByRole("row", { name: /mock-second/ }).first().waitFor();
  await expectCount(page.getByRole("row", { name: /mock-first/ }), 0);
  first.release();
  await settle(page);
  assert.equal(await page.getByRole("row", { name: /mock-first/ }).count(), 0);
  await context.close();
});

test("keeps what is typed while the form is being saved", async () => {
  const { page, context, faults } = await openSignedIn(`prompts/partials/${PARTIAL}`);
  const puts = await holdBack(page, "PUT", /\/v1\/prompts\/partials\//);
  await page.getByLabel("Name", { exact: true }).fill("House style 2");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await until("the request", () => puts.length);
  await page.getByLabel("Name", { exact: true }).fill("House style 3");
  puts.splice(0)[0].release();
  await page.getByText("Saved", { exact: true }).waitFor();
  assert.equal(await page.getByLabel("Name", { exact: true }).inputValue(), "House style 3");
  await page.getByText("Not saved").waitFor();
  assert.equal((await callApi("GET", `/v1/prompts/partials/${PARTIAL}`)).name, "House style 2");
  assert.deepEqual(faults, []);
  await context.close();
});

test("waits for its own changes before the next one, and takes none of them for one of somebody else", async () => {
  const { slug } = await callApi("POST", "/v1/integrations", { name: "Changed twice", ai_provider_id: "openai", key: "sk-0123456789" });
  const { page, context, faults } = await openSignedIn(`providers/integrations/${slug}?tab=models&model=gpt-4o`);
  await settle(page);
  const reads = await holdBack(page, "GET", new RegExp(`/v1/integrations/${slug}(/models)?$`));
  const changes = [];
  page.on("request", (request) => request.method() === "PUT" && changes.push(new URL(request.url()).pathname));
  // Releases nothing more once the condition is met, so that the requests that follow wait.
  const releaseUntil = (what, read) =>
    until(what, async () => {
      if (await read()) return true;
      for (const one of reads.splice(0)) one.release();
      return false;
    });
  const model = (name) => page.getByRole("checkbox", { name: `Requests may use ${name}`, exact: true });
  await model("gpt-4o-mini").uncheck();
  await page.getByText("Saved", { exact: true }).waitFor();
  // The list still has the state before this change.
  await model("gpt-4o").uncheck();
  await until("the new list", () => reads.length);
  assert.equal(changes.length, 1);
  await releaseUntil("the second change", () => changes.length === 2);
  await until("the list and the form ask for the new state", () => reads.length >= 2);
  // The form of the other tab still has the state before the second change.
  await page.getByRole("tab", { name: "Settings" }).click();
  await page.getByLabel("Description").fill("changed at once");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.locator("dialog button.primary[aria-busy=true]").waitFor();
  assert.equal(changes.length, 2);
  await releaseUntil("the save", async () => (await page.getByText("Not saved").count()) === 0);
  const saved = await callApi("GET", `/v1/integrations/${slug}/models`);
  const isEnabled = (name) => saved.models.find((one) => one.slug === name).enabled;
  assert.deepEqual([isEnabled("gpt-4o-mini"), isEnabled("gpt-4o")], [false, false]);
  assert.equal((await callApi("GET", `/v1/integrations/${slug}`)).description, "changed at once");
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/integrations/${slug}`);
});

test("takes a text that the page itself changes for no edit", async () => {
  const { page, context, faults } = await openSignedIn("system");
  const waiting = await holdBack(page, "GET", /\/v1\/providers\?/);
  await page.goto(`${GATEWAY}/console/configs?new=1`);
  const text = page.locator("dialog .cm-content");
  await expectText(text, /@my-provider/);
  await until("the request", () => waiting.length);
  for (const one of waiting) one.release();
  await until("the providers", async () => !/@my-provider/.test(await text.textContent()));
  await page.getByLabel("Start with").selectOption("cache");
  await expectText(text, /max_age/);
  await page.getByLabel("Start with").selectOption("single");
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  assert.deepEqual(faults, []);
  await context.close();
});

test("creates once although the first response is lost, and asks before text is lost", async () => {
  const { page, context, faults } = await openSignedIn("prompts/partials?new=1");
  const dialog = page.getByRole("dialog", { name: "Create a partial" });
  const text = dialog.getByLabel(/^Text/);
  await dialog.getByLabel("Name", { exact: true }).fill("of a lost response");
  await text.fill("Hello");
  // Text that is marked with the mouse may end outside of the dialog.
  const { x, y } = await text.boundingBox();
  await page.mouse.move(x + 20, y + 10);
  await page.mouse.down();
  await page.mouse.move(5, 5);
  await page.mouse.up();
  await text.press("Escape");
  await page.getByRole("dialog", { name: "Close without saving?" }).getByRole("button", { name: "Cancel" }).click();
  assert.equal(await text.inputValue(), "Hello");

  const loseResponse = async (route) => {
    await route.fetch();
    await route.abort();
  };
  await page.route(/\/v1\/prompts\/partials$/, loseResponse, { times: 1 });
  await dialog.getByRole("button", { name: "Create" }).click();
  await dialog.getByText("the gateway cannot be reached").waitFor();
  await dialog.getByRole("button", { name: "Create" }).click();
  await page.getByRole("heading", { name: "of a lost response" }).waitFor();
  const { data } = await callApi("GET", "/v1/prompts/partials?page_size=1000");
  const made = data.filter((one) => one.name === "of a lost response");
  assert.equal(made.length, 1);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/prompts/partials/${made[0].id}`);
});

test("repeats no request of a user for another one who signs in over the page", async () => {
  const config = await callApi("POST", "/v1/configs", { name: "of the first user", config: { provider: "mock" }, workspace_id: WORKSPACE });
  const { page, context } = await openSignedIn(`configs/${config.id}`);
  await page.getByLabel("Name").fill("named by the first user");
  await settle(page);
  await context.clearCookies();
  // A request of the page itself may open the sign-in first, which keeps a real click from the button.
  await page.getByRole("button", { name: "Save", exact: true }).evaluate((button) => button.click());
  const dialog = page.getByRole("dialog", { name: "Sign in again" });
  await dialog.getByRole("button", { name: "Password" }).click();
  await dialog.locator("input[name=email]").fill(MEMBER_EMAIL);
  await dialog.locator("input[name=password]").fill(MEMBER_PASSWORD);
  const changes = [];
  page.on("request", (request) => {
    // The page of the second user validates the config, which changes nothing.
    if (request.method() === "PUT" && !request.url().includes("dry_run")) changes.push(request.url());
  });
  await dialog.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("Mia Member").waitFor();
  await settle(page);
  assert.deepEqual(changes, []);
  assert.equal((await callApi("GET", `/v1/configs/${config.id}`)).name, "of the first user");
  await context.close();
  await callApi("DELETE", `/v1/configs/${config.slug}`);
});

test("signs in over any form whose session has ended, and repeats its request", async () => {
  const { page, context } = await openTab(undefined, { isSignedIn: true });
  const renew = async () => {
    const dialog = page.getByRole("dialog", { name: "Sign in again" });
    await dialog.locator("input[name=key]").fill(ADMIN_KEY);
    await dialog.getByRole("button", { name: "Sign in" }).click();
    await dialog.waitFor({ state: "detached" });
  };
  // Ends the session, then presses a button. A request of the page itself may open the sign-in first, which keeps a real
  // click from the button.
  const pressAfterEnd = async (button) => {
    await button.waitFor();
    await settle(page);
    await context.clearCookies();
    await button.evaluate((element) => element.click());
  };
  // Ends the session on a page, in a dialog over a page, and before a deletion.
  const config = await callApi("POST", "/v1/configs", { name: "of a long day", config: { provider: "mock" }, workspace_id: WORKSPACE });
  await page.goto(`${GATEWAY}/console/configs/${config.id}`);
  await page.getByLabel("Name").fill("named after a break");
  await pressAfterEnd(page.getByRole("button", { name: "Save", exact: true }));
  await renew();
  await page.getByText("Saved", { exact: true }).waitFor();
  assert.equal((await callApi("GET", `/v1/configs/${config.id}`)).name, "named after a break");

  await page.goto(`${GATEWAY}/console/prompts/partials?new=1`);
  const dialog = page.getByRole("dialog", { name: "Create a partial" });
  await dialog.getByLabel("Name", { exact: true }).fill("made after a break");
  await dialog.getByLabel(/^Text/).fill("Hello");
  await pressAfterEnd(dialog.getByRole("button", { name: "Create" }));
  await renew();
  await page.getByRole("heading", { name: "made after a break" }).waitFor();
  const id = new URL(page.url()).pathname.split("/").at(-1);

  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await pressAfterEnd(page.getByRole("dialog", { name: /^Delete/ }).getByRole("button", { name: "Delete" }));
  await renew();
  await page.getByRole("table", { name: "Partials" }).waitFor();
  const { data } = await callApi("GET", "/v1/prompts/partials?page_size=1000");
  assert.ok(!data.some((one) => one.id === id));
  await context.close();
});
