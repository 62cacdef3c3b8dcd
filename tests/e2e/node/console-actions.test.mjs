// Actions of the console that people look for beside a form: scopes and rotation of a key, limits of a workspace,
// filters of the audit log, ratings, configs in the playground, copies of prompts, invitations.
import assert from "node:assert/strict";
import { test } from "node:test";

import { callApi, expectCount, expectText, openAsUser, openPage, openSignedIn, openTab, PASSWORD, recordBodies, sendChat, settle, until } from "./console-kit.mjs";

const { BASE_PATH, CONFIG, GATEWAY, KEY, WORKSPACE } = process.env;
const HOUR_MS = 3_600_000;
const NO_GUARDRAILS = { input_guardrails: null, output_guardrails: null };

/** Returns the bodies of the requests that changed something, and forgets them. */
function takeChanges(sent) {
  return sent.splice(0).filter((one) => one.method !== "GET").map((one) => (one.body ? JSON.parse(one.body) : null));
}

async function save(page) {
  await page.getByText("Not saved", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByText("Not saved", { exact: true }).waitFor({ state: "detached" });
}

test("changes scopes and default config of a key, and rotates it with a chosen overlap", async () => {
  const made = await callApi("POST", "/v1/api-keys/workspace/service", { name: "to rotate", workspace_id: WORKSPACE, scopes: ["completions.write"], defaults: { metadata: { team: "search" } } });
  const { page, context, faults } = await openSignedIn(`keys/${made.id}`);
  const sheet = page.getByRole("dialog", { name: "to rotate", exact: true });
  await sheet.getByRole("button", { name: "Change" }).click();
  await sheet.getByLabel("logs.write", { exact: true }).check();
  await sheet.getByLabel(/^Default config/).selectOption(CONFIG);
  const sent = await recordBodies(page);
  await save(page);
  assert.deepEqual(takeChanges(sent), [{ scopes: ["completions.write", "logs.write"], defaults: { ...NO_GUARDRAILS, allow_config_override: true, config_id: CONFIG, metadata: { team: "search" } } }]);

  await sheet.getByLabel("Metadata", { exact: true }).fill('{"team": "sales"}');
  await sheet.getByLabel("Requests may name another config").uncheck();
  await sheet.getByLabel(/^Alerts by e-mail/).fill("ann@example.com, bo@example.com");
  await save(page);
  assert.deepEqual(takeChanges(sent), [{ alert_emails: ["ann@example.com", "bo@example.com"], defaults: { ...NO_GUARDRAILS, allow_config_override: false, config_id: CONFIG, metadata: { team: "sales" } } }]);
  await sheet.getByRole("button", { name: "Rotate" }).click();
  const question = page.getByRole("dialog", { name: "Rotate to rotate" });
  await question.getByLabel("The old key works for").selectOption({ label: "a day" });
  await question.getByRole("button", { name: "Rotate" }).click();
  const key = await page.getByRole("dialog", { name: "The new API key" }).locator("pre").textContent();
  assert.deepEqual(takeChanges(sent), [{ key_transition_period_ms: 24 * HOUR_MS }]);
  for (const one of [key, made.key]) await until("the key works", async () => (await sendChat("mock", one)).status === 200);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/api-keys/${made.id}`);
});

test("limits a workspace, checks its requests by default, resets its usage, and deletes it with its contents", async () => {
  const { id } = await callApi("POST", "/v1/workspaces", { name: "Limited" });
  const checks = [{ id: "default.wordCount", parameters: { maxWords: 500 } }];
  const guardrail = await callApi("POST", "/v1/guardrails", { name: "Of the limited", checks, workspace_id: id });
  const { page, context, faults } = await openSignedIn(`workspaces/${id}`);
  const sent = await recordBodies(page);
  await page.getByRole("combobox", { name: "Budget" }).selectOption("requests");
  await page.getByRole("group", { name: "Budget" }).getByLabel("At most").fill("9");
  await save(page);
  assert.deepEqual(takeChanges(sent), [{ usage_limits: { type: "requests", credit_limit: 9 } }]);
  await page.getByRole("tab", { name: "Defaults" }).click();
  await page.getByRole("group", { name: "Check each request" }).getByLabel("Of the limited").check();
  await save(page);
  assert.deepEqual((await callApi("GET", `/v1/workspaces/${id}`)).defaults.input_guardrails, [guardrail.slug]);
  await openPage(page, `guardrails/${guardrail.slug}`);
  await expectText(page.getByRole("region", { name: "Where it is used" }), /Limited\s*defaults of the workspace/);

  await openPage(page, `workspaces/${id}`);
  const usage = page.getByRole("region", { name: "Usage" });
  await expectText(usage, /0 of 9 requests/);
  await usage.getByRole("button", { name: "Reset" }).click();
  await page.getByRole("dialog", { name: "Reset the usage" }).getByRole("button", { name: "Reset" }).click();
  await page.getByText("The usage starts at zero").waitFor();
  assert.ok((await callApi("GET", `/v1/workspaces/${id}`)).last_reset_at);

  // The workspace is not empty: the confirmed deletion includes its guardrail.
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  const question = page.getByRole("dialog", { name: "Delete the workspace" });
  await question.getByLabel(/^Type/).fill("Limited");
  await question.getByRole("button", { name: "Delete" }).click();
  await page.getByText("Deleted", { exact: true }).waitFor();
  await expectCount(page.getByRole("link", { name: "Limited" }), 0);
  assert.deepEqual((await callApi("GET", "/v1/admin/workspaces?page_size=1000")).data.filter((one) => one.id === id), []);
  assert.deepEqual(faults, []);
  await context.close();
});

test("finds entries of the audit log by object and action", async () => {
  const config = await callApi("POST", "/v1/configs", { name: "audited", config: { provider: "mock" }, workspace_id: WORKSPACE });
  await callApi("DELETE", `/v1/configs/${config.slug}`);
  const { page, context, faults } = await openSignedIn("audit");
  await page.getByLabel("Type of object").fill("configs");
  await page.getByLabel("Action").selectOption("delete");
  await page.getByRole("button", { name: "Filter", exact: true }).click();
  await page.waitForURL(/resource_type=configs&action=delete/);
  await settle(page);
  const rows = page.getByRole("table", { name: "Audit log" }).locator("tbody tr");
  for (const text of await rows.allTextContents()) assert.match(text, /configs\s*delete/);
  await rows.filter({ hasText: "audited" }).first().click();
  await page.getByRole("dialog", { name: "configs delete" }).waitFor();
  await page.reload();
  await page.getByRole("dialog", { name: "configs delete" }).waitFor();
  // A link to an entry opens it, although the list has only other entries.
  const { searchParams: shared } = new URL(page.url());
  await openPage(page, `audit?action=create&${new URLSearchParams({ entry: shared.get("entry"), at: shared.get("at") })}`);
  await page.getByRole("dialog", { name: "configs delete" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Clear filters" }).click();
  await page.waitForURL((url) => !url.search.includes("action"));
  assert.deepEqual(faults, []);
  await context.close();
});

test("lists the audit entries of the organisation, too, if there is only one workspace", async () => {
  const { page, context, faults } = await openTab("about:blank", { isSignedIn: true });
  await page.route(/\/v1\/auth\/self/, async (route) => {
    const response = await route.fetch();
    const self = await response.json();
    return route.fulfill({ response, json: { ...self, workspaces: self.workspaces.filter((one) => one.id === WORKSPACE) } });
  });
  const [request] = await Promise.all([page.waitForRequest(/\/v1\/audit-logs\?/), page.goto(`${GATEWAY}/console/audit`)]);
  await page.waitForSelector("nav");
  await expectCount(page.getByLabel("Workspace", { exact: true }).locator("option"), 1);
  assert.equal(new URL(request.url()).searchParams.get("workspace_id"), null);
  assert.deepEqual(faults, []);
  await context.close();
});

test("asks before a user becomes an admin", async () => {
  const user = await openAsUser("asked@example.com", [{ id: WORKSPACE, role: "member" }]);
  await user.context.close();
  const { page, context, faults } = await openSignedIn("users");
  const role = page.getByLabel("Role of asked@example.com");
  const question = page.getByRole("dialog", { name: "Change the role" });
  await role.selectOption("admin");
  await question.getByRole("button", { name: "Cancel" }).click();
  assert.equal(await role.inputValue(), "member");
  await role.selectOption("admin");
  await question.getByRole("button", { name: "Change the role" }).click();
  await page.getByText("Role changed", { exact: true }).waitFor();
  assert.equal(await role.inputValue(), "admin");
  assert.deepEqual(faults, []);
  await context.close();
});

test("shows a message above the sheet that it is about", async () => {
  const made = await callApi("POST", "/v1/api-keys/workspace/service", { name: "to save", workspace_id: WORKSPACE, scopes: ["completions.write"] });
  const { page, context, faults } = await openSignedIn(`keys/${made.id}`);
  const sheet = page.getByRole("dialog", { name: "to save", exact: true });
  await sheet.getByRole("button", { name: "Change" }).click();
  await sheet.getByLabel("logs.write", { exact: true }).check();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  const message = page.getByRole("status").getByText("Saved", { exact: true });
  await message.waitFor();
  // What is below a dialog is still in the page, so pixels are compared.
  const clip = await message.boundingBox();
  const shown = await page.screenshot({ clip });
  await message.evaluate((element) => (element.style.visibility = "hidden"));
  const hidden = await page.screenshot({ clip });
  assert.ok(!shown.equals(hidden), "the message is below the sheet");
  assert.deepEqual(faults, []);
  await context.close();
});

test("changes no role that somebody else changed meanwhile", async () => {
  const user = await openAsUser("promoted@example.com", [{ id: WORKSPACE, role: "member" }]);
  await user.context.close();
  const { data } = await callApi("GET", `/v1/workspaces/${WORKSPACE}/users?page_size=1000`);
  const { id } = data.find((one) => one.email === "promoted@example.com");
  const { page, context, faults } = await openSignedIn(`workspaces/${WORKSPACE}?tab=members`);
  const role = page.getByLabel("Role of promoted@example.com");
  await role.waitFor();
  await callApi("PUT", `/v1/workspaces/${WORKSPACE}/users/${id}`, { role: "admin" });
  await role.selectOption("manager");
  await page.getByText(/somebody else changed it meanwhile/).waitFor();
  await until("the new role", async () => (await role.inputValue()) === "admin");
  await role.selectOption("manager");
  await page.getByText("Saved", { exact: true }).waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

test("rates a request, and names its key and metadata", async () => {
  const sent = await sendChat("mock-to-rate", KEY, { "x-gateway-metadata": JSON.stringify({ team: "search" }) });
  const id = sent.headers.get("x-gateway-request-id");
  await until("the log", () => callApi("GET", `/v1/logs/${id}?workspace_slug=*`));
  const { page, context, faults } = await openSignedIn(`logs/${id}`);
  const sheet = page.locator("dialog");
  await sheet.getByRole("link", { name: "key of a test" }).waitFor();
  await expectText(sheet, /team: search/);
  await sheet.getByRole("button", { name: "Rate it" }).click();
  await sheet.getByLabel("Rating").fill("-3");
  await sheet.getByLabel("Comment").fill("wrong city");
  await sheet.getByRole("button", { name: "Send", exact: true }).click();
  await sheet.getByText("Rated -3 · comment: wrong city").waitFor();
  await until("the rating", async () => (await callApi("GET", `/v1/logs/${id}?workspace_slug=*`)).feedback[0]?.value === -3);
  await sheet.getByRole("button", { name: "Rate it" }).click();
  await sheet.getByLabel("Rating").fill("4");
  await sheet.getByRole("button", { name: "Send", exact: true }).click();
  await sheet.getByText("Rated 4").waitFor();
  const ratings = sheet.getByRole("region", { name: "Feedback" }).getByRole("listitem");
  await expectCount(ratings, 2);
  await until("the second rating", async () => (await callApi("GET", `/v1/logs/${id}?workspace_slug=*`)).feedback.length === 2);
  await page.reload();
  await sheet.getByText("Rated -3 · comment: wrong city").waitFor();
  await expectCount(ratings, 2);
  assert.deepEqual(faults.filter((fault) => !fault.startsWith("401 ")), []);
  await context.close();
});

test("tries a config in the playground with a key of its own, and opens the log of a failure", async () => {
  const targets = [{ provider: "@mock-main", override_params: { model: "mock?status=500" } }, { provider: "@mock-main" }];
  const config = await callApi("POST", "/v1/configs", { name: "with a fallback", config: { strategy: { mode: "fallback" }, targets }, workspace_id: WORKSPACE });
  const { page, context, faults } = await openSignedIn(`configs/${config.id}`);
  await page.getByRole("link", { name: "Try it in the playground" }).click();
  const lane = page.getByRole("region", { name: "first model" });
  await lane.getByLabel(/^Model/).fill("mock");
  await page.getByRole("button", { name: /^Send/ }).click();
  await expectText(lane.locator("pre"), /Hello from/);
  await lane.getByRole("link", { name: "log" }).waitFor();
  assert.deepEqual(faults.splice(0).filter((fault) => !fault.startsWith("401 ")), []);
  await lane.getByLabel(/^Provider/).selectOption("mock-main");
  await lane.getByLabel(/^Model/).fill("mock?status=503");
  await page.getByRole("button", { name: /^Send/ }).click();
  await lane.getByRole("link", { name: "Open its log" }).click();
  // A new log is visible after about a second.
  await until("the log", async () => {
    const retry = page.getByRole("button", { name: "Try again" });
    if (await retry.count()) await retry.click();
    await page.getByRole("heading", { name: "Attempts" }).waitFor({ timeout: 1000 });
    return true;
  });
  await context.close();
  await callApi("DELETE", `/v1/configs/${config.slug}`);
});

test("opens a policy of another workspace by its link, and changes when it starts again", async () => {
  const { id, slug } = await callApi("POST", "/v1/workspaces", { name: "Elsewhere" });
  const policy = await callApi("POST", "/v1/policies/usage-limits", { name: "far away", conditions: [{ key: "model", value: "*" }], group_by: [{ key: "api_key" }], type: "cost", credit_limit: 20, workspace_id: WORKSPACE });
  const { page, context, faults } = await openSignedIn(`limits/${policy.id}?ws=${slug}`);
  const sheet = page.getByRole("dialog", { name: "far away" });
  const sent = await recordBodies(page);
  await sheet.getByLabel("Starts again").selectOption("monthly");
  await sheet.getByLabel("Alert at").fill("15");
  await save(page);
  assert.deepEqual(takeChanges(sent), [{ alert_threshold: 15, periodic_reset: "monthly", periodic_reset_days: null }]);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/policies/usage-limits/${policy.id}`);
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Elsewhere", force_delete: true });
});

test("copies a prompt, and adds a label", async () => {
  const string = JSON.stringify([{ role: "user", content: "Greet" }]);
  const prompt = await callApi("POST", "/v1/prompts", { name: "To copy", string, parameters: {}, virtual_key: "mock-main", model: "mock", workspace_id: WORKSPACE });
  const { page, context, faults } = await openSignedIn(`prompts/${prompt.id}`);
  await page.getByRole("button", { name: "Copy", exact: true }).click();
  await page.getByRole("heading", { name: "To copy (copy)" }).waitFor();
  await page.getByRole("tab", { name: "Versions" }).press("Enter");
  await page.getByLabel("Name of a new label").fill("canary");
  await page.getByRole("button", { name: "Add a label" }).click();
  await page.getByLabel("Label of version 1").selectOption("canary");
  await page.getByText("Label set").waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

test("leads from an accepted invitation to the console", async () => {
  const email = "invited@example.com";
  const invite = await callApi("POST", "/v1/admin/users/invites", { email, role: "member", workspaces: [{ id: WORKSPACE, role: "member" }] });
  const { page, context } = await openTab(invite.invite_link);
  await page.getByLabel("First name").fill("Ida");
  await page.getByLabel("Last name").fill("Invited");
  await page.getByLabel(/^Password/).fill(PASSWORD);
  await page.getByRole("button", { name: "Accept" }).click();
  await page.getByRole("link", { name: "Sign in to the console" }).click();
  assert.equal(page.url(), `${GATEWAY}${BASE_PATH}/console/`);
  await page.getByRole("button", { name: "Password" }).click();
  await page.locator("input[name=email]").fill(email);
  await page.locator("input[name=password]").fill(PASSWORD);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("Ida Invited").waitFor();
  await page.goto(`${GATEWAY}/console/audit`);
  await page.getByText("Only admins of the organisation see it.").waitFor();
  await expectCount(page.getByRole("link", { name: "Audit log" }), 0);
  await context.close();
});

test("says at the field that the current password is wrong, without asking for a sign-in", async () => {
  const { page, context, faults } = await openAsUser("forgetful@example.com", [{ id: WORKSPACE, role: "member" }], "system");
  await page.getByLabel("New password").fill(`${PASSWORD} 2`);
  const change = async (password) => {
    await page.getByLabel(/^Current password/).fill(password);
    await page.getByRole("button", { name: "Change the password" }).click();
  };
  await change("not the password");
  await page.locator("label", { hasText: "the current password is wrong" }).waitFor();
  await expectCount(page.getByRole("dialog"), 0);
  await change(PASSWORD);
  await page.getByText("Password changed").waitFor();
  await expectCount(page.getByText("the current password is wrong"), 0);
  assert.match(faults.join(), /^401 [^,]*password$/);
  await context.close();
});
