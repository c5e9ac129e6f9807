import { Text } from "@codemirror/state";
import { ChangeSet } from "@codemirror/state";
import { describe, expect, it } from "vitest";
import { textOf } from "../model/path_text";
import type { ShownSegment } from "../model/typing.svelte";
import { planSync } from "./sync";

function path(...parts: [key: number, text: string][]): ShownSegment[] {
  return parts.map(([key, text]) => ({ node: key, key, text }));
}

function synced(shown: ShownSegment[], next: ShownSegment[]): string {
  const text = textOf(shown);
  const { changes } = planSync(shown, next);
  return changes === null
    ? text
    : ChangeSet.of(changes, text.length)
        .apply(Text.of([text]))
        .toString();
}

describe("planSync", () => {
  it("makes the text of any path that of another one", () => {
    let seed = 11;
    const random = (limit: number) => (seed = (seed * 1103515245 + 12345) % 2147483648) % limit;
    const any = () =>
      path(...Array.from({ length: random(5) }, (): [number, string] => [random(6), "abcabc".slice(random(3), random(6))]));
    for (let round = 0; round < 2_000; round++) {
      const [shown, next] = [any(), any()];
      expect(synced(shown, next)).toBe(textOf(next));
    }
  });

  it("only appends live text", () => {
    const plan = planSync(path([1, "ab"], [2, "c"]), path([1, "ab"], [2, "cd"]));
    expect(plan).toMatchObject({ changes: { from: 3, to: 3, insert: "d" }, divergence: null, isGrowth: true });
  });

  it("finds where another branch diverges", () => {
    const plan = planSync(path([1, "ab"], [2, "c"]), path([1, "ab"], [3, "d"]));
    expect(plan).toMatchObject({ divergence: 2, isGrowth: false });
  });

  it("changes no text when typed text becomes a node", () => {
    const typed = [{ node: null, key: "new-1", text: "ab" }];
    expect(planSync(typed, path([1, "ab"]))).toMatchObject({ changes: null, segments: [{ node: 1, from: 0, to: 2 }] });
  });
});
