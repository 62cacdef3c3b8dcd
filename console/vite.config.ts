// Build of the console. Relative addresses make it work below any path; no file may be inlined, because the
// Content-Security-Policy forbids scripts and fonts from data URLs.
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  plugins: [svelte()],
  build: {
    assetsInlineLimit: 0,
    manifest: true,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    target: "es2022",
  },
});
