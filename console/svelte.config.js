// Compiler options of Svelte. A static style attribute violates the Content-Security-Policy, so it fails the build.
import { vitePreprocess } from "@sveltejs/vite-plugin-svelte";

const STYLE_ATTRIBUTE = /<[a-z][^>]*\sstyle=["']/;

export default {
  compilerOptions: { runes: true, modernAst: true },
  preprocess: [
    vitePreprocess({ script: false }),
    {
      markup({ content, filename }) {
        if (!filename.includes("node_modules") && STYLE_ATTRIBUTE.test(content)) {
          throw new Error(`${filename}: a static style attribute violates the Content-Security-Policy; use a class`);
        }
      },
    },
  ],
};
