// The `claude` program, as one types it: it does a task with its tools, and has others do it, over Anthropic's messages.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { feature, run, task, url } from "./report.mjs";

/** What Claude Code says; its folder is looked at before it goes. */
function asked(prompt, look = () => {}) {
  const folder = mkdtempSync(join(tmpdir(), "claude-code-"));
  try {
    const home = join(folder, "home");
    mkdirSync(home);
    // Nothing of the caller's own settings, and none of its keys.
    const env = {
      PATH: process.env.PATH,
      HOME: home,
      TERM: "dumb",
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_AUTH_TOKEN: "none",
      ANTHROPIC_MODEL: "weft",
      ANTHROPIC_SMALL_FAST_MODEL: "weft",
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
      DISABLE_AUTOUPDATER: "1",
      // It does what it is told without asking, also for who is root.
      IS_SANDBOX: "1",
    };
    const program = join(process.cwd(), "node_modules/.bin/claude");
    const ran = spawnSync(program, ["-p", "--dangerously-skip-permissions", prompt], {
      cwd: folder,
      encoding: "utf8",
      timeout: 150_000,
      input: "",
      env,
    });
    assert.equal(ran.status, 0, ran.stdout.slice(-1500) + ran.stderr.slice(-3000));
    look(folder);
    return ran.stdout;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

feature("stream", () => {
  assert.match(asked("Hello!"), /^You said: .*Hello!/s);
});

feature("tools in a stream", () => {
  const said = asked('Write a file: Bash({"command": "echo hello > hello.txt; echo done", "description": "Writes a file"})', (folder) => {
    assert.equal(readFileSync(join(folder, "hello.txt"), "utf8"), "hello\n");
  });
  assert.match(said, /^The tool said: .*done/);
});

feature("parallel tools", () => {
  const call = (name) => `Bash({"command": "echo ${name} > ${name}.txt", "description": "Writes a file"})`;
  asked(`Write two files: ${call("one")} and ${call("two")}`, (folder) => {
    for (const name of ["one", "two"]) assert.equal(readFileSync(join(folder, `${name}.txt`), "utf8"), `${name}\n`);
  });
});

feature("sub-agent", () => {
  const said = asked('Ask another: Agent({"description": "Greets", "prompt": "Good day!", "subagent_type": "general-purpose", "run_in_background": false})');
  assert.match(said, /^The tool said: .*You said: .*Good day!/s);
});

feature("long task", () => {
  const bash = (nth) => `Bash({"command": "echo ${nth} >> steps.txt; seq ${nth} ${nth * 3}", "description": "Counts"})`;
  const others = ["one", "two", "three", "four"].map((name) => `Agent({"description": "Greets", "prompt": "Good day, ${name}!", "subagent_type": "general-purpose", "run_in_background": false})`);
  const steps = Array.from({ length: 15 }, (_, nth) => (nth === 9 ? others : bash(nth)));
  const said = asked(task(steps), (folder) => {
    assert.equal(readFileSync(join(folder, "steps.txt"), "utf8").trim().split("\n").length, 14);
  });
  assert.match(said, /All 15 steps are done/);
});

await run();
