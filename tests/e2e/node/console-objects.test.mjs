// Objects that the console edits: rate limits, partials, secret references, models and workspaces of an integration,
// settings of the organisation. Each request has only what changed.
import assert from "node:assert/strict";
import { test } from "node:test";

import { callApi, expectCount, expectText, openAsUser, openPage, openSignedIn, recordBodies, settle, until } from "./console-kit.mjs";

const { FAILED_LOG, KEY_ID, PROVIDER, SECRET, WORKSPACE } = process.env;

/** Returns the bodies of the requests that changed something, and forgets them. */
function takeChanges(sent) {
  return sent.splice(0).filter((one) => one.method !== "GET").map((one) => (one.body ? JSON.parse(one.body) : null));
}

async function save(page, name = "Save") {
  await page.getByText("Not saved", { exact: true }).waitFor();
  await page.getByRole("button", { name, exact: true }).click();
  await page.getByText("Not saved", { exact: true }).waitFor({ state: "detached" });
}

async function confirmDeletion(page) {
  await page.getByRole("dialog", { name: /^Delete/ }).getByRole("button", { name: "Delete" }).click();
  await page.getByText("Deleted", { exact: true }).last().waitFor();
}

test("edits every rate limit of a key, and loses none", async () => {
  const rates = [{ type: "requests", unit: "rps", value: 5 }, { type: "tokens", unit: "rpm", value: 9000 }, { type: "requests", unit: "rpd", value: 800 }];
  const usage = { type: "cost", credit_limit: 40, alert_threshold: 30, periodic_reset_days: 10 };
  const made = await callApi("POST", "/v1/api-keys/workspace/service", { name: "much limited", workspace_id: WORKSPACE, scopes: ["completions.write"], rate_limits: rates, usage_limits: usage });
  const { page, context, faults } = await openSignedIn(`keys/${made.id}`);
  const sent = await recordBodies(page);
  const group = (number) => page.getByRole("group", { name: `Rate limit ${number}` });
  await group(3).waitFor();
  await page.getByLabel("Name", { exact: true }).fill("much limited 2");
  await save(page);
  assert.deepEqual(takeChanges(sent), [{ name: "much limited 2" }]);

  await group(2).getByLabel("At most").fill("9500");
  await page.getByRole("button", { name: "Remove rate limit 3" }).click();
  await page.getByRole("button", { name: "Add a rate limit" }).click();
  await group(3).getByLabel("Per").selectOption("rpw");
  const saveButton = page.getByRole("button", { name: "Save", exact: true });
  assert.ok(await saveButton.isDisabled(), "a limit without an amount is not saved");
  await group(3).getByLabel("At most").fill("70");
  await save(page);
  const changed = [rates[0], { ...rates[1], value: 9500 }, { type: "requests", unit: "rpw", value: 70 }];
  assert.deepEqual(takeChanges(sent), [{ rate_limits: changed }]);

  await page.getByRole("group", { name: "Budget" }).getByLabel("At most").fill("50");
  await save(page);
  const saved = await callApi("GET", `/v1/api-keys/${made.id}`);
  assert.deepEqual(saved.rate_limits, changed);
  const { credit_limit, alert_threshold, periodic_reset_days } = saved.usage_limits;
  assert.deepEqual([credit_limit, alert_threshold, periodic_reset_days], [50, 30, 10]);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/api-keys/${made.id}`);
});

test("makes, edits, publishes and deletes a partial", async () => {
  const { page, context, faults } = await openSignedIn("prompts/partials");
  await page.getByRole("button", { name: "Create a partial" }).click();
  const dialog = page.getByRole("dialog", { name: "Create a partial" });
  await dialog.getByLabel("Name", { exact: true }).fill("Closing words");
  await dialog.getByLabel(/^Text/).fill("Regards, {{sender}}");
  await dialog.getByRole("button", { name: "Create" }).click();
  await page.getByRole("heading", { name: "Closing words" }).waitFor();
  const sent = await recordBodies(page);
  await page.getByLabel("Text", { exact: true }).fill("Best regards, {{sender}}");
  await page.getByLabel("What changes in this version").fill("friendlier");
  await save(page, "Save as a new version");
  await page.getByText("Templates include version 1.").waitFor();
  assert.deepEqual(takeChanges(sent), [{ string: "Best regards, {{sender}}", description: "friendlier" }]);

  await page.getByRole("tab", { name: "Versions" }).click();
  await page.getByText("friendlier").waitFor();
  await page.getByRole("button", { name: /^20\d\d-.* 2$/ }).click();
  await page.getByRole("button", { name: "Publish version 2" }).click();
  await page.getByText("Templates now include version 2").waitFor();
  await expectCount(page.getByText("Templates include version 1."), 0);
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await confirmDeletion(page);
  await page.getByRole("table", { name: "Partials" }).waitFor();
  await expectCount(page.getByRole("link", { name: "Closing words" }), 0);
  assert.deepEqual(faults, []);
  await context.close();
});

test("makes a secret reference, names it in an integration, and keeps its stored token", async () => {
  const { slug } = await callApi("POST", "/v1/integrations", { name: "From a vault", ai_provider_id: "openai" });
  const { page, context, faults } = await openSignedIn("secrets?new=1");
  const dialog = page.getByRole("dialog", { name: "Add a secret reference" });
  await dialog.getByLabel("Name", { exact: true }).fill("From the browser");
  await dialog.getByLabel("Secret manager").selectOption("hashicorp_vault");
  await dialog.getByLabel(/^Secret\s*Its name/).fill("llm/openai");
  await dialog.getByLabel("Vault addr").fill("https://vault.example");
  await dialog.getByLabel("Vault token").fill("token-of-the-vault-98765");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  await page.getByRole("link", { name: "From the browser" }).click();
  const sent = await recordBodies(page);
  await page.getByLabel("Field of the secret").fill("api_key");
  await page.getByLabel("Vault addr").fill("https://vault.example/");
  await page.getByLabel("Vault token").fill("another-token-98765");
  await save(page);
  assert.deepEqual(takeChanges(sent), [{ secret_key: "api_key", auth_config: { vault_addr: "https://vault.example/", vault_token: "another-token-98765" } }]);
  assert.ok(!(await page.content()).includes("another-token-98765"));

  await openPage(page, `providers/integrations/${slug}`);
  await page.getByRole("button", { name: "Take a field from a secret manager" }).click();
  await page.getByRole("group", { name: "Secret 1" }).getByLabel("Secret reference").selectOption({ label: "From the browser" });
  await save(page);
  const { secret_mappings: mappings } = await callApi("GET", `/v1/integrations/${slug}`);
  assert.deepEqual(mappings.map((one) => one.target_field), ["key"]);
  assert.deepEqual(faults, []);

  await openPage(page, `secrets/${mappings[0].secret_reference_id}`);
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("dialog", { name: /^Delete/ }).getByRole("button", { name: "Delete" }).click();
  await page.getByText(`the integration '${slug}' uses this secret`).waitFor();
  await callApi("DELETE", `/v1/integrations/${slug}`);
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await confirmDeletion(page);
  assert.match(faults.join(), /^409 [^,]*$/);
  await context.close();
});

test("holds the credentials of a guardrail partner, and keeps them until they are replaced", async () => {
  const { page, context, faults } = await openSignedIn("guardrails/partners?new=1");
  const dialog = page.getByRole("dialog", { name: "Add partner credentials" });
  await dialog.getByLabel(/^Partner/).selectOption("azure");
  await dialog.getByText(/An object with azureAuthMode, resourceName, apiKey, /).first().waitFor();
  await dialog.getByLabel(/^Partner/).selectOption("lakera");
  await dialog.getByLabel("Api key", { exact: true }).fill("a-key-of-the-partner-98765");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  await page.getByRole("link", { name: "lakera", exact: true }).click();
  const sheet = page.getByRole("dialog", { name: "Credentials of lakera" });
  await sheet.getByRole("button", { name: "Replace" }).click();
  const sent = await recordBodies(page);
  await sheet.getByLabel("Api key", { exact: true }).fill("another-key-of-the-partner-43210");
  await save(page);
  assert.deepEqual(takeChanges(sent), [{ credentials: { apiKey: "another-key-of-the-partner-43210" } }]);
  assert.ok(!(await page.content()).includes("of-the-partner"));
  await sheet.getByRole("button", { name: "Delete", exact: true }).click();
  await confirmDeletion(page);
  await page.getByText("No partner credentials yet").waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

test("changes the models and the workspaces of an integration", async () => {
  const { slug } = await callApi("POST", "/v1/integrations", { name: "With models", ai_provider_id: "openai", key: "sk-0123456789" });
  const { page, context, faults } = await openSignedIn(`providers/integrations/${slug}?tab=models&model=gpt-4o-mini`);
  const model = (name) => page.getByRole("checkbox", { name: `Requests may use ${name}`, exact: true });
  await model("gpt-4o-mini").uncheck();
  await page.getByText("Saved", { exact: true }).waitFor();
  await settle(page);
  const sent = await recordBodies(page);
  await page.getByRole("button", { name: "Add a model" }).click();
  const dialog = page.getByRole("dialog", { name: "Add a model" });
  await dialog.getByLabel(/^Model\s*Name/).fill("ft:own");
  await dialog.getByLabel("Input price").fill("1.5");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  const price = { pay_as_you_go: { request_token: { price: 0.00015 } } };
  assert.deepEqual(takeChanges(sent), [{ models: [{ slug: "ft:own", enabled: true, is_custom: true, pricing_config: price }] }]);
  await page.getByLabel("Filter models").fill("ft:own");
  await page.getByRole("button", { name: "Edit ft:own" }).click();
  await page.getByRole("dialog", { name: "ft:own" }).getByLabel("Output price").fill("6");
  await page.getByRole("dialog", { name: "ft:own" }).getByRole("button", { name: "Save", exact: true }).click();
  await page.getByRole("dialog", { name: "ft:own" }).waitFor({ state: "detached" });
  const { models } = await callApi("GET", `/v1/integrations/${slug}/models`);
  assert.equal(models.find((one) => one.slug === "gpt-4o-mini").enabled, false);
  assert.deepEqual(models.find((one) => one.slug === "ft:own").pricing_config, { pay_as_you_go: { ...price.pay_as_you_go, response_token: { price: 0.0006 } } });
  await page.getByRole("button", { name: "Delete ft:own" }).click();
  await confirmDeletion(page);

  // The form of the other tab accepts these changes, so that saving it reports no conflict.
  await page.getByRole("tab", { name: "Settings" }).click();
  await page.getByLabel("Description").fill("changed later");
  await save(page);
  await page.getByRole("tab", { name: "Workspaces" }).click();
  // Other tests create and delete workspaces meanwhile, so this one is named.
  const { name: workspace } = await callApi("GET", `/v1/workspaces/${WORKSPACE}`);
  await page.getByRole("button", { name: `Set the access of ${workspace}`, exact: true }).click();
  const access = page.getByRole("dialog", { name: `Access of ${workspace}` });
  await access.getByLabel("It may use this integration").check();
  await access.getByRole("button", { name: "Add a rate limit" }).click();
  await access.getByLabel("At most").fill("30");
  await expectCount(access.getByRole("button", { name: "Add a rate limit" }), 0);
  // The address opens the dialog, and Back asks before it closes with edits.
  assert.match(page.url(), /tab=workspaces&access=/);
  await page.evaluate(() => history.back());
  await page.getByRole("dialog", { name: "Leave without saving?" }).getByRole("button", { name: "Cancel" }).click();
  await access.getByRole("button", { name: "Save", exact: true }).click();
  await access.waitFor({ state: "detached" });
  await page.getByText("Limits: 30 requests per minute").waitFor();
  const { workspaces } = await callApi("GET", `/v1/integrations/${slug}/workspaces`);
  assert.deepEqual(workspaces.map((one) => [one.enabled, one.rate_limits]), [[true, [{ type: "requests", unit: "rpm", value: 30 }]]]);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/integrations/${slug}`);
});

test("changes settings of the organisation, and only those", async () => {
  const before = await callApi("GET", "/v1/admin/organisation/settings");
  const { page, context, faults } = await openSignedIn("organisation");
  const sent = await recordBodies(page);
  await page.getByLabel("A session lasts (hours)").fill("24");
  await page.getByRole("checkbox", { name: "Managers change: MCP servers" }).click();
  await save(page);
  const [body] = takeChanges(sent);
  assert.deepEqual(Object.keys(body).sort(), ["security_settings", "session_settings"]);
  assert.deepEqual(body.session_settings, { max_session_ttl: 86_400 });
  assert.deepEqual(body.security_settings, { managersWriteMcpServers: !before.security_settings.managersWriteMcpServers });
  const after = await callApi("GET", "/v1/admin/organisation/settings");
  assert.deepEqual({ ...after, ...body, security_settings: null }, { ...before, ...body, security_settings: null });
  await callApi("PUT", "/v1/admin/organisation/settings", { session_settings: null, security_settings: { managersWriteMcpServers: null } });
  assert.deepEqual(faults, []);
  await context.close();
});

test("changes rules of a workspace and what its roles may do, and only those", async () => {
  const { id } = await callApi("POST", "/v1/workspaces", { name: "Ruled" });
  await callApi("PUT", "/v1/admin/organisation/settings", { security_settings_overrides: { mcp: false } });
  const { page, context, faults } = await openSignedIn(`workspaces/${id}?tab=rules`);
  const sent = await recordBodies(page);
  await until("the choice of the organisation", () => page.getByRole("checkbox", { name: "Managers change: MCP servers" }).isDisabled());
  await page.getByLabel(/^At most, for each user/).fill("3");
  await page.getByLabel(/^Expire after/).fill("30");
  await page.getByLabel(/^Providers, addresses and configs/).selectOption("on");
  await page.getByLabel("Logs contain requests").uncheck();
  await page.getByRole("checkbox", { name: "Members change: Configs" }).check();
  await save(page);
  const settings = { block_inline_config: true, debug_log: 0, user_api_key_count: 3, user_api_key_ttl: 30 * 86_400 };
  assert.deepEqual(takeChanges(sent), [{ settings, security_settings: { membersWriteConfigs: true } }]);
  await page.getByLabel(/^At most, for each user/).fill("");
  await page.getByLabel("Logs contain requests").check();
  await save(page);
  assert.deepEqual(takeChanges(sent), [{ settings: { user_api_key_count: null, debug_log: null } }]);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("PUT", "/v1/admin/organisation/settings", { security_settings_overrides: { mcp: null } });
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Ruled", force_delete: true });
});

test("excludes a workspace from the guardrails of the organisation, and no other", async () => {
  const { id } = await callApi("POST", "/v1/workspaces", { name: "Unchecked" });
  const { page, context, faults } = await openSignedIn("organisation?exclusions=1");
  const sent = await recordBodies(page);
  const dialog = page.getByRole("dialog", { name: "Workspaces without these guardrails" });
  const choose = async (group, isExcluded) => {
    await dialog.getByRole("group", { name: group }).getByLabel("Unchecked").setChecked(isExcluded);
    await dialog.getByRole("button", { name: "Save", exact: true }).click();
    await dialog.waitFor({ state: "detached" });
    await page.getByRole("button", { name: "Workspaces without them" }).click();
  };
  await choose("Requests are not checked in", true);
  await choose("Responses are not checked in", true);
  await choose("Requests are not checked in", false);
  const puts = sent.filter((one) => one.method === "PUT").map((one) => [one.url.split("/").at(-1), JSON.parse(one.body).workspaces]);
  const entry = (excluded) => [{ workspace_id: id, excluded }];
  assert.deepEqual(puts, [["input-guardrails", entry(true)], ["output-guardrails", entry(true)], ["input-guardrails", entry(false)]]);
  assert.ok(sent.filter((one) => one.method === "PUT").every((one) => one.ifMatch));
  const { workspaces } = await callApi("GET", "/v1/workspace-exclusions/output-guardrails");
  assert.ok(workspaces.some((one) => one.workspace_id === id));
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Unchecked", force_delete: true });
});

test("makes a policy for a key by its name, and changes only its conditions", async () => {
  const { page, context, faults } = await openSignedIn("limits?new=1");
  const sent = await recordBodies(page);
  const dialog = page.getByRole("dialog");
  const fill = async (condition, value) => {
    await condition.getByLabel("Value").fill(value);
    await condition.getByLabel("Value").press("Enter");
  };
  await dialog.getByLabel("Name", { exact: true }).fill("of one key");
  await dialog.getByLabel("At most").fill("12");
  await dialog.getByLabel("Starts again").selectOption("days");
  await dialog.getByLabel("Requests in progress").selectOption("hard");
  const first = dialog.getByRole("group", { name: "Condition 1" });
  await first.getByLabel("Property").selectOption("api_key");
  await settle(page);
  await fill(first, "key of a test");
  await first.getByText("key of a test").waitFor();
  const second = dialog.getByRole("group", { name: "Group 2" });
  await dialog.getByRole("button", { name: "Add a property" }).click();
  await second.getByLabel("Property", { exact: true }).selectOption("metadata");
  assert.ok(await dialog.getByRole("button", { name: "Create" }).isDisabled());
  await second.getByLabel(/name of the metadata field/).fill("team");
  await dialog.getByRole("button", { name: "Create" }).click();
  await page.getByRole("link", { name: "of one key" }).click();
  const [made] = takeChanges(sent);
  const conditions = [{ key: "api_key", value: KEY_ID }];
  assert.deepEqual(made.conditions, conditions);
  assert.deepEqual([made.group_by, made.periodic_reset_days, made.enforcement], [[{ key: "api_key" }, { key: "metadata.team" }], 30, "hard"]);

  await page.getByRole("button", { name: "Add a condition" }).click();
  const added = page.getByRole("group", { name: "Condition 2" });
  await added.getByLabel("Property").selectOption("metadata");
  await added.getByLabel(/name of the metadata field/).fill("team");
  await added.getByLabel("Comparison").selectOption("is not");
  await fill(added, "research");
  await fill(added, "sales");
  await save(page);
  const excluded = { key: "metadata.team", value: ["research", "sales"], excludes: true };
  assert.deepEqual(takeChanges(sent), [{ conditions: [...conditions, excluded] }]);
  await page.getByRole("button", { name: "Remove condition 1" }).click();
  await page.getByRole("group", { name: "Condition 1" }).getByRole("button", { name: "Remove sales" }).click();
  await save(page);
  assert.deepEqual(takeChanges(sent), [{ conditions: [{ ...excluded, value: "research" }] }]);
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await confirmDeletion(page);
  assert.deepEqual(faults, []);
  await context.close();
});

test("saves only the default guardrails again if nothing else was rejected", async () => {
  const { page, context } = await openSignedIn();
  const guardrail = { id: "0199aaaa-0000-7000-8000-000000000017", name: "for everybody", status: "active", workspace_id: null };
  await page.route(/\/v1\/guardrails\?.*organisation_id=/, (route) => route.fulfill({ json: { data: [guardrail], total: 1 } }));
  const outcomes = [{ status: 409, json: { data: { message: "the guardrail was archived" } } }, { status: 200, json: {} }];
  await page.route(/\/v1\/admin\/organisation\/defaults$/, (route) => (route.request().method() === "PUT" ? route.fulfill(outcomes.shift()) : route.fallback()));
  await openPage(page, "organisation");
  const sent = await recordBodies(page);
  await page.getByLabel("A session lasts (hours)").fill("6");
  await page.getByRole("group", { name: "Check each request" }).getByLabel("for everybody").check();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByText("the guardrail was archived").waitFor();
  await save(page);
  const puts = sent.filter((one) => one.method === "PUT");
  const defaults = { input_guardrails: [guardrail.id] };
  assert.deepEqual(puts.map((one) => JSON.parse(one.body)), [{ session_settings: { max_session_ttl: 21_600 } }, defaults, defaults]);
  assert.equal(puts[2].ifMatch, puts[1].ifMatch);
  await context.close();
  await callApi("PUT", "/v1/admin/organisation/settings", { session_settings: null });
});

test("chooses the time step of analytics, and keeps it in the address", async () => {
  const { page, context, faults } = await openSignedIn("analytics?range=24h");
  const step = page.getByLabel("Time step");
  const isMinutes = (response) => /graphs\/requests\?.*rollup=1m/.test(response.url());
  const [response] = await Promise.all([page.waitForResponse(isMinutes), step.selectOption("1m")]);
  assert.equal((await response.json()).data_points.length, 24 * 60 + 1);
  await page.waitForURL(/rollup=1m/);
  await page.reload();
  assert.equal(await step.inputValue(), "1m");
  // A month has too many minutes for a graph with one bucket for each.
  await page.getByLabel("Range of time").selectOption("30d");
  await expectCount(step.locator("option[value='1m']"), 0);
  await settle(page);
  assert.equal(await step.inputValue(), "");
  assert.deepEqual(faults, []);
  await context.close();
});

test("says in the summary of a log why the request failed, and where", async () => {
  const { page, context, faults } = await openSignedIn(`logs/${FAILED_LOG}`);
  const failure = page.getByRole("region", { name: "Error" });
  await expectText(failure, /503.*@mock-main at 127\.0\.0\.1.*\w+/s);
  await expectText(failure.locator("p"), /asked to fail/);
  assert.deepEqual(faults, []);
  await context.close();
});

test("finds the new pages with the search", async () => {
  const { page, context } = await openSignedIn();
  for (const [words, url] of [["partials", /\/prompts\/partials$/], ["organisation", /\/organisation$/], ["@mock-main", new RegExp(`/providers/${PROVIDER}$`)]]) {
    await page.keyboard.press("Control+k");
    await page.keyboard.type(words);
    await page.getByRole("option", { name: new RegExp(words, "i") }).first().waitFor();
    await page.keyboard.press("Enter");
    await page.waitForURL(url);
    await settle(page);
  }
  await openPage(page, "");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("openai key");
  await page.getByRole("option", { name: /openai key/i }).first().waitFor();
  await page.keyboard.press("Enter");
  await page.waitForURL(new RegExp(`/secrets/${SECRET}$`));
  await context.close();
});

test("drops values of conditions that name objects of another workspace", async () => {
  const { id, slug } = await callApi("POST", "/v1/workspaces", { name: "Other policies" });
  const { page, context, faults } = await openSignedIn("limits?new=1");
  const dialog = page.getByRole("dialog");
  const first = dialog.getByRole("group", { name: "Condition 1" });
  await dialog.getByRole("button", { name: "Add a condition" }).click();
  const second = dialog.getByRole("group", { name: "Condition 2" });
  await second.getByLabel("Property").selectOption("config");
  await second.getByLabel("Value").fill("main-config");
  await second.getByLabel("Value").press("Enter");
  await second.getByRole("button", { name: "Remove main-config" }).waitFor();
  await dialog.getByRole("combobox", { name: /^Workspace/ }).selectOption(slug);
  await expectCount(second.getByRole("button", { name: "Remove main-config" }), 0);
  await expectCount(first.getByRole("button", { name: "Remove *", exact: true }), 1);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Other policies", force_delete: true });
});

test("shows admins of a workspace what the organisation decides", async () => {
  const { id } = await callApi("POST", "/v1/workspaces", { name: "Decided above" });
  await callApi("PUT", "/v1/admin/organisation/settings", { security_settings_overrides: { mcp: false } });
  const { page, context, faults } = await openAsUser("admin-below@example.com", [{ id, role: "admin" }], `workspaces/${id}?tab=rules`);
  assert.ok(await page.getByRole("checkbox", { name: "Managers change: MCP servers" }).isDisabled());
  assert.ok(await page.getByRole("checkbox", { name: "Members change: Configs" }).isEnabled());
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("PUT", "/v1/admin/organisation/settings", { security_settings_overrides: { mcp: null } });
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Decided above", force_delete: true });
});
