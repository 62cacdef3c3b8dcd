// Runs Portkey's transformation of Anthropic's stream, event by event.
// It prints the transformed text once, then the nanoseconds of each round.
// Portkey's package is one bundle that starts a server, so this script writes a copy that also exposes the function.
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [bundle, rounds] = process.argv.slice(2);
const source = readFileSync(bundle, "utf8");
const named = /([\w$]+)=e=>\(t,a,r,n\)=>\{null==r\.toolIndex/.exec(source);
if (!named) throw new Error("the transformation is not where it was");
const copy = bundle.replace(/\.js$/, ".open.mjs");
writeFileSync(copy, `${source}\n;globalThis.transformation=${named[1]};`);
const { log } = console;
console.log = () => {};
const { write } = process.stdout;
process.stdout.write = () => true;
await import(pathToFileURL(copy));
process.stdout.write = write;
console.log = log;
rmSync(copy);

const events = readFileSync(0, "utf8").split("\n\n").filter(Boolean);
const transform = globalThis.transformation("anthropic");
const encoder = new TextEncoder();
const translate_once = () => {
  const state = {};
  return events.map((event) => encoder.encode(transform(event, "anthropic-1", state, true) ?? ""));
};
const decoder = new TextDecoder();
log(JSON.stringify(translate_once().map((bytes) => decoder.decode(bytes)).join("")));
for (let round = 0; round < Number(rounds); round += 1) {
  const begun = process.hrtime.bigint();
  translate_once();
  log(String(process.hrtime.bigint() - begun));
}
// The bundle's server would keep the process running, so exit explicitly.
process.stdout.write("", () => process.exit(0));
