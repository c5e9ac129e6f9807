// The `codex` program, as one types it: it does a task with a shell, over OpenAI's responses.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { feature, run, task, url } from "./report.mjs";

/** What codex says at last; its folder is looked at before it goes. */
function asked(prompt, look = () => {}) {
  const folder = mkdtempSync(join(tmpdir(), "codex-"));
  try {
    const home = join(folder, "home");
    mkdirSync(home);
    const provider = { name: "weft", base_url: `${url}/v1`, wire_api: "responses", request_max_retries: 0, stream_max_retries: 0 };
    const settings = Object.entries(provider).map(([name, value]) => `model_providers.weft.${name}=${JSON.stringify(value)}`);
    const flags = ["model_provider=weft", 'web_search="disabled"', ...settings].flatMap((setting) => ["-c", setting]);
    const sandbox = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--ephemeral"];
    const last = join(folder, "last.txt");
    const ran = spawnSync(
      "node_modules/.bin/codex",
      ["exec", ...flags, ...sandbox, "-m", "weft", "-C", folder, "-o", last, prompt],
      { encoding: "utf8", timeout: 120_000, env: { ...process.env, CODEX_HOME: home, HOME: home }, input: "" },
    );
    assert.equal(ran.status, 0, ran.stdout.slice(-1500) + ran.stderr.slice(-3000));
    look(folder);
    return readFileSync(last, "utf8");
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

feature("stream", () => {
  assert.equal(asked("Hello!").trim(), "You said: Hello!");
});

feature("tools in a stream", () => {
  const call = 'exec_command({"cmd": "echo hello > hello.txt", "yield_time_ms": 5000})';
  const said = asked(`Write a file: ${call}`, (folder) => {
    assert.equal(readFileSync(join(folder, "hello.txt"), "utf8"), "hello\n");
  });
  assert.match(said, /^The tool said: /);
});

feature("long task", () => {
  const steps = Array.from({ length: 20 }, (_, nth) => `exec_command({"cmd": "echo ${nth} >> steps.txt; seq ${nth} ${nth * 3}", "yield_time_ms": 5000})`);
  const said = asked(task(steps), (folder) => {
    assert.equal(readFileSync(join(folder, "steps.txt"), "utf8").trim().split("\n").length, 20);
  });
  assert.match(said, /All 20 steps are done/);
});

await run();
