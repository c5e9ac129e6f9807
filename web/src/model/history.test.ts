import { describe, expect, it } from "vitest";
import { History } from "./history.svelte";
import { MemoryStorage } from "./memory_storage";
import { inverse, joined, type TextStep } from "./steps";

function text(at: number, removed: string, inserted: string, node: number | string = 1): TextStep {
  return { kind: "text", node, leaf: node, at, removed, inserted };
}

function replace(value: string, step: TextStep): string {
  expect(value.slice(step.at, step.at + step.removed.length)).toBe(step.removed);
  return value.slice(0, step.at) + step.inserted + value.slice(step.at + step.removed.length);
}

describe("joined", () => {
  it("does what both replacements do, and its inverse undoes both", () => {
    let seed = 3;
    const random = (limit: number) => (seed = (seed * 1103515245 + 12345) % 2147483648) % limit;
    let nJoined = 0;
    for (let round = 0; round < 2_000; round++) {
      const before = "abcdefgh";
      const edit = (value: string) => {
        const at = random(value.length + 1);
        return text(at, value.slice(at, at + random(4)), "XYZ".slice(0, random(4)));
      };
      const first = edit(before);
      const between = replace(before, first);
      const second = edit(between);
      const after = replace(between, second);
      const both = joined(first, second);
      if (both === null) continue;
      nJoined++;
      expect(replace(before, both)).toBe(after);
      expect(replace(after, inverse(both))).toBe(before);
    }
    expect(nJoined).toBeGreaterThan(100);
  });
});

describe("History", () => {
  it("joins typing without pauses, and begins a new entry after a pause, elsewhere, and for a paragraph", () => {
    let time = 0;
    const history = new History(new MemoryStorage(), () => time);
    const typed = (step: TextStep) => history.pushText("Typing", "d", step);
    typed(text(0, "", "a"));
    typed(text(1, "", "b"));
    expect(history.nextUndo!.undo).toEqual([text(0, "ab", "")]);
    time += 10_000;
    typed(text(2, "", "c"));
    expect(history.nextUndo!.undo).toEqual([text(2, "c", "")]);
    typed(text(0, "", "d"));
    expect(history.nextUndo!.undo).toEqual([text(0, "d", "")]);
    typed(text(1, "", "\n"));
    expect(history.nextUndo!.undo).toEqual([text(1, "\n", "")]);
  });

  it("counts typing into a new node to the entry that created it", () => {
    const history = new History(new MemoryStorage());
    const entry = { title: "Typing", document: "d", undo: [], redo: [] };
    history.pushCreated(entry, "new");
    history.pushText("Typing", "d", text(1, "", "b", "new"));
    expect(history.nextUndo).toEqual(entry);
  });

  it("survives a reload, with the nodes that typed text has become", () => {
    const storage = new MemoryStorage();
    const history = new History(storage);
    history.pushText("Typing", "d", text(0, "", "a", "new"));
    history.rename("d", "new", 7);
    expect(new History(storage).nextUndo!.undo).toEqual([text(0, "a", "", 7)]);
  });

  it("forgets what was undone when something else is done", () => {
    const history = new History(new MemoryStorage());
    history.pushText("Typing", "d", text(0, "", "a"));
    history.moveToRedo();
    expect(history.nextUndo).toBeUndefined();
    expect(history.nextRedo).toBeDefined();
    history.pushText("Typing", "d", text(0, "", "b"));
    expect(history.nextRedo).toBeUndefined();
  });

  it("keeps the newest entries if the storage is full", () => {
    const storage = new MemoryStorage(2_000);
    const history = new History(storage);
    for (let nth = 0; nth < 50; nth++) {
      history.pushText("Typing", "d", text(0, "", String(nth).repeat(20)));
      history.endTyping();
    }
    expect(new History(storage).nextUndo).toEqual(history.nextUndo);
  });
});
