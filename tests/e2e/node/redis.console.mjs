// System page of a gateway whose Redis stops.
import assert from "node:assert/strict";
import { test } from "node:test";

import { openSignedIn, settle, until } from "./console-kit.mjs";

const { REDIS_PID } = process.env;

test("shows the state of Redis", async () => {
  const { page, context, faults } = await openSignedIn("system");
  const parts = page.getByRole("region", { name: "Parts" });
  // The state is that of the last check, so it changes a moment after Redis.
  const waitForState = (state) =>
    until(`Redis ${state}`, async () => {
      await page.reload();
      await settle(page);
      return new RegExp(`Redis\\s*${state}`).test(await parts.textContent());
    });
  await waitForState("up");
  process.kill(Number(REDIS_PID), "SIGKILL");
  await waitForState("down");
  assert.deepEqual(faults, []);
  await context.close();
});
