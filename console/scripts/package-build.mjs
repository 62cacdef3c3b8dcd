// Compresses the build, checks its size, and copies it to the Python package.
import { mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const BUILD = new URL("../dist/", import.meta.url);
const PACKAGE = new URL("../../python/penstock/console/", import.meta.url);
/** Lets the browser request who is signed in while the scripts load. */
const PRELOAD = '<link rel="preload" as="fetch" crossorigin href="./../v1/auth/self" />';
const MAX_FIRST_LOAD_BYTES = 90 * 1024;
const MAX_BUNDLE_BYTES = 400 * 1024;

const names = (await readdir(BUILD, { recursive: true, withFileTypes: true }))
  .filter((entry) => entry.isFile() && entry.name !== ".vite")
  .map((entry) => `${entry.parentPath}/${entry.name}`.slice(fileURLToPath(BUILD).length).replace(/^\/+/, ""));
const manifest = JSON.parse(await readFile(new URL(".vite/manifest.json", BUILD), "utf8"));

/** Adds the scripts that an entry imports statically. */
function firstLoad(key, found = new Set()) {
  const chunk = manifest[key];
  if (found.has(chunk.file)) return found;
  found.add(chunk.file);
  for (const other of chunk.imports ?? []) firstLoad(other, found);
  return found;
}

await rm(PACKAGE, { recursive: true, force: true });
await mkdir(PACKAGE, { recursive: true });
const sizes = new Map();
for (const name of names.filter((one) => !one.startsWith(".vite/"))) {
  const target = new URL(name, PACKAGE);
  await mkdir(new URL(".", target), { recursive: true });
  if (name === "index.html") {
    const document = await readFile(new URL(name, BUILD), "utf8");
    await writeFile(target, document.replace("</head>", `  ${PRELOAD}\n  </head>`));
  } else {
    const compressed = gzipSync(await readFile(new URL(name, BUILD)), { level: 9 });
    sizes.set(name, compressed.length);
    await writeFile(new URL(`${name}.gz`, PACKAGE), compressed);
  }
}

const sum = (list) => list.reduce((total, name) => total + (sizes.get(name) ?? 0), 0);
const first = sum([...firstLoad("index.html")]);
const bundle = sum([...sizes.keys()]);
console.log(`first load: ${first} bytes of compressed JavaScript; bundle: ${bundle} bytes`);
if (first > MAX_FIRST_LOAD_BYTES || bundle > MAX_BUNDLE_BYTES) {
  console.error(`the console is too large: expected at most ${MAX_FIRST_LOAD_BYTES} and ${MAX_BUNDLE_BYTES} bytes`);
  process.exit(1);
}
