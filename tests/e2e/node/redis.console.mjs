// System page of a gateway with Redis, which is up or down.
import assert from "node:assert/strict";
import { test } from "node:test";

import { openSignedIn } from "./console-kit.mjs";

const { REDIS_STATE } = process.env;

test("shows the state of Redis", async () => {
  const { page, context, faults } = await openSignedIn("system");
  const parts = page.getByRole("region", { name: "Parts" });
  await parts.getByText(/SQLite|PostgreSQL/).waitFor();
  assert.match(await parts.textContent(), new RegExp(`Redis\\s*${REDIS_STATE}`));
  assert.deepEqual(faults, []);
  await context.close();
});
