// The `opencode` program, as one types it: it does a task with its tools, over OpenAI's chats.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { feature, run, task, url } from "./report.mjs";

const SETTINGS = {
  provider: {
    weft: {
      npm: "@ai-sdk/openai-compatible",
      name: "weft",
      options: { baseURL: `${url}/v1`, apiKey: "none" },
      models: { weft: { name: "weft", tool_call: true, limit: { context: 60_000, output: 2_000 } } },
    },
  },
  model: "weft/weft",
  small_model: "weft/weft",
  autoupdate: false,
  share: "disabled",
  permission: "allow",
};

/** What opencode says; its folder is looked at before it goes. */
function asked(prompt, look = () => {}) {
  const folder = mkdtempSync(join(tmpdir(), "opencode-"));
  try {
    const home = join(folder, "home");
    mkdirSync(home);
    writeFileSync(join(folder, "opencode.json"), JSON.stringify(SETTINGS));
    const quiet = { PWD: folder, HOME: home, XDG_DATA_HOME: home, XDG_CONFIG_HOME: home, XDG_CACHE_HOME: home, XDG_STATE_HOME: home };
    const ran = spawnSync(join(process.cwd(), "node_modules/.bin/opencode"), ["run", "--model", "weft/weft", prompt], {
      cwd: folder,
      encoding: "utf8",
      timeout: 150_000,
      input: "",
      env: { ...process.env, ...quiet, OPENCODE_DISABLE_MODELS_FETCH: "1", OPENCODE_DISABLE_AUTOUPDATE: "1", OPENCODE_DISABLE_LSP_DOWNLOAD: "1" },
    });
    assert.equal(ran.status, 0, ran.stdout.slice(-1500) + ran.stderr.slice(-3000));
    look(folder);
    return ran.stdout;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

feature("stream", () => {
  assert.match(asked("Hello!"), /You said: "?Hello!/);
});

feature("tools in a stream", () => {
  const call = 'bash({"command": "echo hello > hello.txt", "description": "Writes a file"})';
  asked(`Write a file: ${call}`, (folder) => {
    assert.equal(readFileSync(join(folder, "hello.txt"), "utf8"), "hello\n");
  });
});

feature("long task", () => {
  const bash = (nth) => `bash({"command": "echo ${nth} >> steps.txt; seq ${nth} ${nth * 3}", "description": "Counts"})`;
  const others = ["one", "two", "three", "four"].map((name) => `task({"description": "Greets", "prompt": "Good day, ${name}!", "subagent_type": "general"})`);
  const steps = Array.from({ length: 15 }, (_, nth) => (nth === 9 ? others : bash(nth)));
  const said = asked(task(steps), (folder) => {
    assert.equal(readFileSync(join(folder, "steps.txt"), "utf8").trim().split("\n").length, 14);
  });
  assert.match(said, /All 15 steps are done/);
});

await run();
