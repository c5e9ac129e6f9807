import { describe, expect, it } from "vitest";
import { apply, difference, type EditPlan, type PathSegment, planEdit, textOf } from "./path_text";

const NOTHING = { canChange: () => false, canExtend: () => true };
const EVERYTHING = { canChange: () => true, canExtend: () => true };

function path(...texts: string[]): PathSegment[] {
  return texts.map((text, index) => ({ node: index + 1, text }));
}

/** Returns the text of the column after a plan was carried out. */
function result(segments: readonly PathSegment[], plan: EditPlan): string {
  if (plan.kind === "change") return segments.map(({ text }, index) => apply(text, plan.changes.get(index) ?? [])).join("");
  return textOf(segments.slice(0, plan.n_kept)) + plan.text + plan.rest;
}

describe("planEdit", () => {
  it("changes a node that was written by hand", () => {
    const plan = planEdit(path("ab", "cd"), [{ from: 4, to: 4, insert: "!" }], EVERYTHING);
    expect(plan).toEqual({ kind: "change", changes: new Map([[1, [{ from: 2, to: 2, insert: "!" }]]]) });
  });

  it("adds a node after a generated one", () => {
    const plan = planEdit(path("ab", "cd"), [{ from: 4, to: 4, insert: "!" }], NOTHING);
    expect(plan).toEqual({ kind: "create", n_kept: 2, replaces: null, text: "!", rest: "" });
  });

  it("adds a node between two generated ones, and copies the rest", () => {
    const plan = planEdit(path("ab", "cd"), [{ from: 2, to: 2, insert: "!" }], NOTHING);
    expect(plan).toEqual({ kind: "create", n_kept: 1, replaces: null, text: "!", rest: "cd" });
  });

  it("makes a variant of a generated node, and copies the rest", () => {
    const plan = planEdit(path("ab", "cd", "ef"), [{ from: 3, to: 4, insert: "X" }], NOTHING);
    expect(plan).toEqual({ kind: "create", n_kept: 1, replaces: 1, text: "cX", rest: "ef" });
  });

  it("makes a variant of a node that a branch is writing, also at its end", () => {
    const plan = planEdit(path("ab", "cd"), [{ from: 4, to: 4, insert: "!" }], { ...NOTHING, canExtend: () => false });
    expect(plan).toEqual({ kind: "create", n_kept: 1, replaces: 1, text: "cd!", rest: "" });
  });

  const writing = (node: number) => ({ ...NOTHING, canExtend: (other: number) => other !== node });

  it.each(["", "cd"])("adds a node beside one that a branch is writing, whose text is %j so far", (text) => {
    const plan = planEdit(path("ab", text), [{ from: 2, to: 2, insert: "!" }], writing(2));
    expect(plan).toEqual({ kind: "create", n_kept: 1, replaces: null, text: "!", rest: "" });
  });

  it("does not copy text that is being written behind an edit", () => {
    const plan = planEdit(path("ab", "cd", "ef"), [{ from: 1, to: 2, insert: "B" }], writing(3));
    expect(plan).toEqual({ kind: "create", n_kept: 0, replaces: 0, text: "aB", rest: "cd" });
  });

  it("joins the nodes that a replacement spans in one variant", () => {
    const plan = planEdit(path("ab", "cd", "ef"), [{ from: 1, to: 3, insert: "-" }], EVERYTHING);
    expect(plan).toEqual({ kind: "create", n_kept: 0, replaces: 0, text: "a-d", rest: "ef" });
  });

  it("changes several nodes in place at once", () => {
    const changes = [
      { from: 0, to: 1, insert: "A" },
      { from: 2, to: 3, insert: "C" },
    ];
    expect(planEdit(path("ab", "cd"), changes, EVERYTHING)).toEqual({
      kind: "change",
      changes: new Map([
        [0, [changes[0]]],
        [1, [{ from: 0, to: 1, insert: "C" }]],
      ]),
    });
  });

  it("creates the first node of an empty document", () => {
    const plan = planEdit([], [{ from: 0, to: 0, insert: "a" }], EVERYTHING);
    expect(plan).toEqual({ kind: "create", n_kept: 0, replaces: null, text: "a", rest: "" });
  });

  it("keeps the text on screen for any edit, except text that is being written behind it", () => {
    let seed = 7;
    const random = (limit: number) => {
      seed = (seed * 1103515245 + 12345) % 2147483648;
      return seed % limit;
    };
    for (let round = 0; round < 2_000; round++) {
      const segments = path(...Array.from({ length: random(5) }, () => "abcdef".slice(0, random(4))));
      const text = textOf(segments);
      const from = random(text.length + 1);
      const to = from + random(text.length - from + 1);
      const changes = [{ from, to, insert: "XYZ".slice(0, random(4)) }];
      const changeable = random(8);
      const written = random(2) * segments.length;
      const rules = { ...writing(written), canChange: (node: number) => node !== written && (changeable & node) !== 0 };
      const plan = planEdit(segments, changes, rules);
      const last = written === 0 ? "" : segments.at(-1)!.text;
      const isLeft = plan.kind === "create" && text.length - last.length >= to;
      expect(result(segments, plan)).toBe(apply(text, changes).slice(0, isLeft && last !== "" ? -last.length : undefined));
    }
  });
});

describe("difference", () => {
  it.each([
    ["abc", "abc"],
    ["", "a"],
    ["aaa", "aa"],
    ["a fox", "a red fox"],
    ["a red fox", "a fox"],
  ])("of %j and %j makes the second of the first", (before, after) => {
    const change = difference(before, after);
    expect(change === null ? before : apply(before, [change])).toBe(after);
  });
});
