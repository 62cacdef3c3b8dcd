// System page of a gateway with Redis, which is up or down.
import assert from "node:assert/strict";
import { test } from "node:test";

import { openSignedIn } from "./console-kit.mjs";

const { REDIS_STATE } = process.env;

test("shows the state of Redis", async () => {
  const { page, context, faults } = await openSignedIn("system");
  const parts = page.getByRole("region", { name: "Parts" });
  await parts.getByText(/SQLite|PostgreSQL/).waitFor();
  // A worker whose Redis replied late once shows it as down for a moment.
  const expected = new RegExp(`Redis\\s*${REDIS_STATE}`);
  while (!expected.test(await parts.textContent())) {
    await page.reload();
    await parts.getByText(/SQLite|PostgreSQL/).waitFor();
  }
  assert.deepEqual(faults, []);
  await context.close();
});
