// Runs files of browser tests, several at a time, in one Chromium. Usage: node run-console.mjs ARGUMENT-OF-NODE… FILE…
import { spawn } from "node:child_process";

import { chromium } from "playwright-core";

const server = await chromium.launchServer({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const reporter = ["--test-reporter=./console-reporter.mjs", "--test-reporter-destination=stdout"];
const tests = spawn(process.execPath, ["--test", ...reporter, ...process.argv.slice(2)], {
  stdio: "inherit",
  env: { ...process.env, BROWSER: server.wsEndpoint() },
});
const code = await new Promise((resolve) => tests.on("close", resolve));
await server.close();
process.exitCode = code ?? 1;
