import { beforeEach, describe, expect, test } from "vitest";

import type { NodeRecord } from "../api/types";
import { NodeTree } from "../model/node_tree.svelte";
import { TreeView, type TreeDocument } from "./tree_view.svelte";

class Document implements TreeDocument {
  readonly id = "d";
  readonly tree = new NodeTree();
  currentId: number | null = null;

  get structureVersion(): number {
    return this.tree.structureVersion;
  }

  get currentPath(): readonly number[] {
    return this.tree.path(this.currentId);
  }

  node(id: number): NodeRecord | undefined {
    return this.tree.node(id);
  }

  children(id: number | null): readonly number[] {
    return this.tree.children(id);
  }

  put(id: number, parent: number | null, values: Partial<NodeRecord> = {}): void {
    const version = (this.tree.node(id)?.version ?? 0) + 1;
    const node = { id, parent, position: id, version, state: "done", text: `text ${id}`, label: "", note: "", ...values };
    this.tree.put([{ is_bookmarked: false, is_trashed: false, ...node } as NodeRecord]);
  }
}

class Store {
  readonly values = new Map<string, string>();

  getItem(key: string): string | null {
    return this.values.get(key) ?? null;
  }

  setItem(key: string, value: string): void {
    this.values.set(key, value);
  }
}

let doc: Document;
let view: TreeView;

/** 1 has the children 2 and 3; 2 is continued by 4, and that by 5. */
beforeEach(() => {
  doc = new Document();
  for (const [id, parent] of [
    [1, null],
    [2, 1],
    [3, 1],
    [4, 2],
    [5, 4],
  ] as const) {
    doc.put(id, parent);
  }
  view = new TreeView(doc);
});

const ids = (shown = view) => shown.rows.map((row) => row.id);

/** Returns a document with a chain of nodes, too many to be expanded at first. */
function large(): Document {
  const chain = new Document();
  for (let id = 1; id <= 400; id += 1) chain.put(id, id > 1 ? id - 1 : null);
  return chain;
}

describe("A tree", () => {
  test("of few nodes is expanded, and stays so when it grows", () => {
    expect(ids()).toEqual([1, 2, 4, 5, 3]);
    for (let id = 6; id <= 400; id += 1) doc.put(id, 3);
    expect(ids().length).toBe(400);
  });

  test("of many nodes shows the path to the current node and its children", () => {
    const chain = large();
    chain.currentId = 3;
    const shown = new TreeView(chain);
    expect(ids(shown)).toEqual([1]);
    shown.revealCurrent();
    expect(ids(shown)).toEqual([1, 2, 3, 4]);
    expect(shown.rows.at(-1)?.nHidden).toBe(396);
  });

  test("leaves out what is in the trash", () => {
    doc.put(2, 1, { is_trashed: true });
    expect(ids()).toEqual([1, 3]);
  });

  test("keeps the current node collapsed if the user collapsed it", () => {
    doc.currentId = 4;
    view.setExpanded([4], false);
    view.revealCurrent();
    expect(ids()).toEqual([1, 2, 4, 3]);
  });

  test("expands and collapses all below a node, and all siblings", () => {
    view.setAllExpanded(1, false);
    expect(ids()).toEqual([1]);
    view.setExpanded([1], true);
    view.focus(3);
    view.expandSiblings();
    expect(ids()).toEqual([1, 2, 4, 3]);
  });
});

describe("The focus", () => {
  test("is at the current node, and goes to an ancestor if its node is hidden", () => {
    doc.currentId = 5;
    expect(view.focusedId).toBe(5);
    view.setExpanded([2], false);
    expect(view.focusedId).toBe(2);
  });

  test("shows the node that it goes to", () => {
    view.setAllExpanded(null, false);
    view.focus(5);
    expect([view.focusedId, ids()]).toEqual([5, [1, 2, 4, 5, 3]]);
  });

  test("goes to the row whose title is typed, and on at each repeated character", () => {
    doc.put(3, 1, { label: "Tea" });
    view.focus(1);
    for (const character of "tea") view.typeCharacter(character, 0);
    expect(view.focusedId).toBe(3);
    view.typeCharacter("t", 5000);
    expect(view.focusedId).toBe(1);
    view.typeCharacter("t", 5100);
    expect(view.focusedId).toBe(2);
    expect(view.typeCharacter("z", 9000)).toBe(false);
  });
});

describe("Hoisting", () => {
  test("shows a node and all below, until another node is shown", () => {
    view.hoist(2);
    expect(ids()).toEqual([2, 4, 5]);
    view.focus(3);
    expect(ids()).toEqual([1, 2, 4, 5, 3]);
  });

  test("ends when the node goes to the trash", () => {
    view.hoist(4);
    doc.put(2, 1, { is_trashed: true });
    expect([view.top, ids()]).toEqual([null, [1, 3]]);
  });
});

test("A filter shows matches with their ancestors, below the hoisted node", () => {
  view.filter = { query: "text 5", kind: "all" };
  expect(ids()).toEqual([1, 2, 4, 5]);
  view.hoist(3);
  expect([ids(), view.filtered?.matches.size]).toEqual([[], 0]);
});

test("Collapsed nodes and hoisting survive a reload", () => {
  const store = new Store();
  const before = new TreeView(doc, store);
  before.setExpanded([4], false);
  before.hoist(2);
  expect(ids(new TreeView(doc, store))).toEqual([2, 4]);
  store.setItem("weft.tree.d", "no JSON");
  expect(ids(new TreeView(doc, store)).length).toBe(5);
});
