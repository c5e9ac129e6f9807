import { fileURLToPath } from "node:url";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

/** Server to which `npm run dev` sends requests of the page. */
const SERVER = process.env.WEFT_URL ?? "http://127.0.0.1:8080";

/** Routes of the server that the page calls, for the proxy of `npm run dev`. */
const ROUTES = ["/documents", "/tokenize", "/detokenize", "/props", "/health", "/v1", "/apply-template", "/requests"];

export default defineConfig({
  base: "./",
  plugins: [svelte()],
  resolve: {
    alias: { "style-mod": fileURLToPath(new URL("src/editor/style_mod.ts", import.meta.url)) },
    // Tests run the code of the browser, so that runes work as they do there.
    ...(process.env.VITEST ? { conditions: ["browser"] } : {}),
  },
  build: {
    outDir: "../python/weft/server/web",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    // The policy of the page allows no data: URLs of fonts and no inline code.
    assetsInlineLimit: 0,
    modulePreload: false,
    cssCodeSplit: false,
  },
  server: { proxy: Object.fromEntries(ROUTES.map((route) => [route, { target: SERVER, headers: { origin: SERVER } }])) },
  test: { include: ["src/**/*.test.ts"] },
});
