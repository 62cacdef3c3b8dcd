// Every page of the console: opens without errors, is accessible in both themes, and fits a narrow window.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { describe, test } from "node:test";

import { callApi, openPage, openSignedIn, until } from "./console-kit.mjs";

const { CONFIG, FAILED_LOG, GUARDRAIL, INTEGRATION, KEY_ID, LOG, PARTIAL, PICTURES, POLICY, PROMPT, PROVIDER, SECRET, WORKSPACE } = process.env;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const WIDE = { width: 1280, height: 860 };
const NARROW = { width: 390, height: 844 };
/** Size of a window in CSS pixels at a zoom of 200 %. */
const ZOOMED = { width: 640, height: 430 };
const PAGES = [
  "overview", "logs", `logs/${LOG}`, `logs/${LOG}?tab=request`, "traces", "analytics", "playground?pair=1", "prompts", `prompts/${PROMPT}`,
  "prompts/partials", `prompts/partials/${PARTIAL}`, `prompts/partials/${PARTIAL}?tab=versions`, "prompts/partials?new=1", `logs/${FAILED_LOG}`, "analytics?rollup=1h&range=7d",
  "secrets", `secrets/${SECRET}`, "secrets?new=1", "organisation", `providers/integrations/${INTEGRATION}`, `providers/integrations/${INTEGRATION}?tab=models&model=mock`, `providers/integrations/${INTEGRATION}?tab=workspaces`,
  "configs", `configs/${CONFIG}`, "configs?new=1", "guardrails", "guardrails/new", "guardrails/new?add=1", "guardrails/partners?new=1", `guardrails/${GUARDRAIL}`,
  `guardrails/${GUARDRAIL}?tab=versions`, "providers", "providers?new=1", "providers/integrations", "models", "keys", "keys?new=1",
  "limits", "limits?tab=usage", "limits?tab=refusals", "limits?new=1", `limits/${POLICY}`, `keys/${KEY_ID}`, `providers/${PROVIDER}`, `configs/${CONFIG}?tab=versions`, `configs/${CONFIG}?tab=explain`, "traces/order-17", "users", "users/invites", "users?new=1", "workspaces", `workspaces/${WORKSPACE}`, `workspaces/${WORKSPACE}?tab=defaults`, "batches", "logs?exports=1", "audit", "system",
];
const PARTS = 2;
/** Rules whose findings depend on the theme. */
const COLOUR_RULES = ["color-contrast", "link-in-text-block"];

/** Returns the serious findings of axe on a page. */
async function findBarriers(page, options = {}) {
  const { violations } = await page.evaluate((given) => window.axe.run(document, { resultTypes: ["violations"], ...given }), options);
  return violations
    .filter((found) => ["serious", "critical"].includes(found.impact))
    .map((found) => `${found.id} ${found.nodes.slice(0, 3).map((node) => node.html.slice(0, 150)).join(" | ")}`);
}

/** Returns by how many pixels a page, or its dialog, is wider than its window. Tables and code scroll on their own. */
function excessWidth(page) {
  return page.evaluate(() => {
    const parts = [document.documentElement, ...document.querySelectorAll("main, dialog[open], dialog[open] .body")];
    return Math.max(...parts.map((part) => part.scrollWidth - part.clientWidth));
  });
}

async function checkPage(page, path) {
  const problems = [];
  const takePicture = async (name) => {
    if (PICTURES) await page.screenshot({ path: `${PICTURES}/${path.replace(/\W+/g, "-")}-${name}.png` });
  };
  await page.setViewportSize(WIDE);
  await openPage(page, path);
  const main = await page.textContent("main");
  if (/could not be loaded|no such page|no access/.test(main)) problems.push(main);
  // Run by the debugger, because the Content-Security-Policy allows no script of the test.
  await page.evaluate(AXE);
  problems.push(...(await findBarriers(page)));
  await takePicture("light");
  await page.emulateMedia({ colorScheme: "dark" });
  problems.push(...(await findBarriers(page, { runOnly: COLOUR_RULES })).map((problem) => `dark: ${problem}`));
  await takePicture("dark");
  await page.emulateMedia({ colorScheme: "light" });
  for (const [name, size] of Object.entries({ zoomed: ZOOMED, narrow: NARROW })) {
    await page.setViewportSize(size);
    // Charts and editors follow the width of the window a moment later.
    await until("the page fits", async () => (await excessWidth(page)) <= 0, 5000).catch(async () => problems.push(`${await excessWidth(page)} pixels too wide for ${size.width}`));
    await takePicture(name);
  }
  if (PICTURES) {
    await page.emulateMedia({ colorScheme: "dark" });
    await takePicture("narrow-dark");
    await page.emulateMedia({ colorScheme: "light" });
  }
  return problems.map((problem) => `${path}: ${problem}`);
}

describe("pages", { concurrency: PARTS }, () => {
  for (let part = 0; part < PARTS; part += 1) {
    test(`every page opens, without barriers in both themes, and fits a narrow window (${part + 1} of ${PARTS})`, async () => {
      const { page, context, faults } = await openSignedIn("", undefined, { colorScheme: "light", reducedMotion: "reduce" });
      const problems = [];
      for (const path of PAGES.filter((_, index) => index % PARTS === part)) {
        problems.push(...(await checkPage(page, path)));
        problems.push(...faults.splice(0).map((fault) => `${path}: ${fault}`));
      }
      assert.deepEqual(problems, []);
      await context.close();
    });
  }
});

test("pages say what to do when a workspace is empty", async () => {
  const { id, slug } = await callApi("POST", "/v1/workspaces", { name: "Empty" });
  const { page, context, faults } = await openSignedIn("", undefined, { reducedMotion: "reduce" });
  for (const path of ["overview", "logs", "traces", "playground", "prompts", "configs", "guardrails", "providers", "keys", "limits", "prompts/partials"]) {
    await openPage(page, `${path}?ws=${slug}`);
    assert.ok(await page.locator("main .empty, main ol").count(), path);
    assert.ok(await page.locator("main .empty p, main ol p").count(), `${path} says what to do`);
  }
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Empty", force_delete: true });
});
