import { describe, expect, test } from "vitest";

import {
  bookmarks,
  chapters,
  descendantCounts,
  distinctTitle,
  documentOrder,
  dropDestination,
  dropZone,
  filterNodes,
  indentBase,
  indexAmongAll,
  isWithin,
  parentIndex,
  pathTo,
  rowTitle,
  stepDestination,
  treeRows,
  typeAhead,
  type Filter,
  type TreeNode,
  type TreeRow,
  type TreeSource,
} from "./tree_rows";

class Tree implements TreeSource {
  readonly nodes = new Map<number, TreeNode>();
  readonly below = new Map<number | null, number[]>([[null, []]]);

  add(id: number, parent: number | null, values: Partial<TreeNode> = {}): this {
    const defaults = { text: `text ${id}`, label: "", note: "", state: "done", is_bookmarked: false } as const;
    this.nodes.set(id, { ...defaults, ...values, id, parent });
    this.below.set(id, []);
    this.children(parent).push(id);
    return this;
  }

  node(id: number) {
    return this.nodes.get(id);
  }

  children(id: number | null): number[] {
    return this.below.get(id) ?? [];
  }
}

/** 1 has the children 2, 3 and 4; 2 is continued by 5 and 6 in a row; 3 has the children 7 and 8. */
function sample(): Tree {
  return new Tree().add(1, null).add(2, 1).add(3, 1).add(4, 1).add(5, 2).add(6, 5).add(7, 3).add(8, 3);
}

function rowsOf(source: TreeSource, values: Partial<Parameters<typeof treeRows>[1]> = {}): TreeRow[] {
  const counts = descendantCounts(source);
  const nDescendants = (id: number) => counts.get(id) ?? 0;
  return treeRows(source, { top: null, isExpanded: () => true, nDescendants, shown: null, ...values });
}

function found(source: TreeSource, filter: Partial<Filter>): number[] {
  return [...filterNodes(source, null, { query: "", kind: "all", ...filter }).matches];
}

describe("rows", () => {
  test("stand in the order of the document with level, size and position of their siblings", () => {
    const rows = rowsOf(sample());
    expect(rows.map((each) => each.id)).toEqual([1, 2, 5, 6, 3, 7, 8, 4]);
    expect(rows.map((each) => each.level)).toEqual([1, 2, 3, 4, 2, 3, 3, 2]);
    expect(rows.map((each) => [each.position, each.nSiblings])).toEqual([
      [1, 1],
      [1, 3],
      [1, 1],
      [1, 1],
      [2, 3],
      [1, 2],
      [2, 2],
      [3, 3],
    ]);
  });

  test("of only children are not indented further", () => {
    const rows = rowsOf(sample());
    expect(rows.map((each) => each.indent)).toEqual([0, 1, 1, 1, 1, 2, 2, 1]);
    expect(rows.filter((each) => each.isContinuation).map((each) => each.id)).toEqual([5, 6]);
  });

  test("that are collapsed count the descendants they hide", () => {
    const rows = rowsOf(sample(), { isExpanded: (id) => id !== 2 });
    expect(rows.map((each) => each.id)).toEqual([1, 2, 3, 7, 8, 4]);
    expect(rows[1]).toMatchObject({ isExpanded: false, nHidden: 2 });
    expect(rows.at(-1)?.isExpanded).toBeNull();
  });

  test("of a hoisted node begin with it at level 1", () => {
    expect(rowsOf(sample(), { top: 3 }).map((each) => [each.id, each.level, each.nSiblings])).toEqual([
      [3, 1, 1],
      [7, 2, 2],
      [8, 2, 2],
    ]);
  });

  test("of a filter are expanded and count only siblings that are shown", () => {
    const source = sample();
    const { matches, shown } = filterNodes(source, null, { query: "text 8", kind: "all" });
    const rows = rowsOf(source, { shown, isExpanded: () => false });
    expect([...matches]).toEqual([8]);
    expect(rows.map((each) => [each.id, each.isExpanded, each.nSiblings])).toEqual([
      [1, true, 1],
      [3, true, 1],
      [8, null, 1],
    ]);
  });

  test("of a chain of 100,000 nodes need no recursion and no indentation", { timeout: 60_000 }, () => {
    const source = new Tree();
    for (let id = 1; id <= 100_000; id += 1) source.add(id, id > 1 ? id - 1 : null);
    const rows = rowsOf(source);
    expect(rows.length).toBe(100_000);
    expect(rows.at(-1)).toMatchObject({ level: 100_000, indent: 0 });
    expect(descendantCounts(source).get(1)).toBe(99_999);
    expect(pathTo(source, 100_000).length).toBe(100_000);
  });

  test("far from the left edge shift by whole steps", () => {
    const rows = rowsOf(sample());
    expect(indentBase(rows, 0, rows.length)).toBe(0);
    const deep = rows.map((each) => ({ ...each, indent: each.indent + 8 }));
    expect(indentBase(deep, 0, deep.length)).toBe(8);
    expect(indentBase(deep, 5, 7)).toBe(8);
    expect(indentBase([], 0, 0)).toBe(0);
  });
});

test("a title is the label, or the beginning of the text on one line", () => {
  const source = new Tree().add(1, null, { text: "\n\n  Once\tupon\n a time " }).add(2, null, { label: "The fox" });
  expect([1, 2].map((id) => rowTitle(source.node(id) as TreeNode))).toEqual(["Once upon a time", "The fox"]);
});

test("an order of a subtree holds the node and all below", () => {
  expect(documentOrder(sample(), 2)).toEqual([2, 5, 6]);
});

describe("a filter", () => {
  const source = new Tree()
    .add(1, null, { text: "A DÉJÀ vu", is_bookmarked: true })
    .add(2, 1, { note: "of the déjà", state: "running" })
    .add(3, 1, { label: "Deja", state: "interrupted" })
    .add(4, 1);

  test("finds text, note and label without regard to case and diacritics", () => {
    expect(found(source, { query: " dEja " })).toEqual([1, 2, 3]);
  });

  test.each([
    ["bookmarked", [1]],
    ["labelled", [3]],
    ["noted", [2]],
    ["running", [2]],
    ["interrupted", [3]],
  ] as const)("leaves nodes that are %s", (kind, ids) => {
    expect(found(source, { kind })).toEqual(ids);
  });

  test("shows no ancestors above the hoisted node", () => {
    const { shown } = filterNodes(sample(), 3, { query: "text 8", kind: "all" });
    expect([...shown].sort()).toEqual([3, 8]);
  });

  test("is the source of chapters and bookmarks", () => {
    expect(chapters(source)).toEqual([{ id: 3, title: "Deja", isBookmarked: false }]);
    expect(bookmarks(source).map((each) => each.id)).toEqual([1]);
  });
});

describe("keys", () => {
  const rows = rowsOf(sample());
  const title = (id: number) => rowTitle(sample().node(id) as TreeNode);

  test("find the row of the parent", () => {
    expect(rows.map((_, index) => parentIndex(rows, index))).toEqual([-1, 0, 1, 2, 0, 4, 4, 0]);
  });

  test("that repeat one character go on to the next row", () => {
    expect(typeAhead(rows, title, 0, "t")).toBe(1);
    expect(typeAhead(rows, title, rows.length - 1, "T")).toBe(0);
  });

  test("that spell a word stay at a row that begins with it", () => {
    expect(typeAhead(rows, title, 4, "text 3")).toBe(4);
    expect(typeAhead(rows, title, 4, "text 2")).toBe(1);
    expect(typeAhead(rows, title, 4, "none")).toBe(-1);
    expect(typeAhead([], title, -1, "a")).toBe(-1);
  });
});

describe("a step", () => {
  test.each([
    [3, "up", { parent: 1, index: 0 }],
    [2, "up", null],
    [3, "down", { parent: 1, index: 2 }],
    [4, "down", null],
    [7, "out", { parent: 1, index: 2 }],
    [2, "out", { parent: null, index: 1 }],
    [1, "out", null],
    [3, "in", { parent: 2, index: 1 }],
    [2, "in", null],
  ] as const)("of node %d %s", (id, direction, destination) => {
    expect(stepDestination(sample(), id, direction)).toEqual(destination);
  });
});

describe("a drop", () => {
  const source = sample();
  const rows = rowsOf(source);
  const row = (id: number) => rows.find((each) => each.id === id) as TreeRow;
  const drop = (dragged: number, target: number, zone: "before" | "into" | "after") =>
    dropDestination(source, dragged, row(target), zone);

  test("lies before, in or after a row", () => {
    expect([2, 14, 26].map((offset) => dropZone(offset, 28))).toEqual(["before", "into", "after"]);
  });

  test.each([
    [4, 3, "before", { parent: 1, index: 1 }],
    [2, 4, "after", { parent: 1, index: 2 }],
    [2, 3, "into", { parent: 3, index: 2 }],
    [4, 3, "after", { parent: 3, index: 0 }],
    [2, 1, "into", { parent: 1, index: 2 }],
  ] as const)("of node %d at node %d, %s", (dragged, target, zone, destination) => {
    expect(drop(dragged, target, zone)).toEqual({ kind: "move", destination });
  });

  test("below the node itself is refused", () => {
    expect(drop(1, 3, "into")).toEqual({ kind: "refused" });
    expect(drop(2, 5, "after")).toEqual({ kind: "refused" });
    expect(isWithin(source, 6, 2)).toBe(true);
    expect(isWithin(source, 7, 2)).toBe(false);
  });

  test("where the node is changes nothing", () => {
    expect(drop(3, 3, "into")).toEqual({ kind: "same" });
    expect(drop(3, 4, "before")).toEqual({ kind: "same" });
    expect(drop(3, 3, "before")).toEqual({ kind: "same" });
    expect(drop(4, 1, "into")).toEqual({ kind: "same" });
  });

  test("counts siblings in the trash", () => {
    expect(indexAmongAll([1, 2, 3, 4], [1, 3, 4], 4, 1)).toBe(2);
    expect(indexAmongAll([1, 2, 3, 4], [1, 3, 4], 1, 2)).toBe(3);
    expect(indexAmongAll([1, 2], [1], 1, 0)).toBe(1);
  });
});

describe("titles of siblings", () => {
  const beginning = "The old lighthouse keeper climbed the stairs and";

  test("that begin alike start at the word of the first difference", () => {
    const tree = new Tree()
      .add(1, null)
      .add(2, 1, { text: `${beginning} sang.` })
      .add(3, 1, { text: `${beginning} sat down.` })
      .add(4, 1, { text: "Another beginning." });
    const title = (id: number) => distinctTitle(tree, tree.node(id)!, tree.children(1));
    expect([2, 3, 4].map(title)).toEqual(["… sang.", "… sat down.", "Another beginning."]);
  });

  test("show differences far behind the beginning", () => {
    const long = `${beginning} `.repeat(10);
    const tree = new Tree().add(1, null, { text: `${long}sang.` }).add(2, null, { text: `${long}wept.` });
    expect(distinctTitle(tree, tree.node(2)!, [1, 2])).toBe("… wept.");
  });

  test("are labels, and stay whole for equal texts", () => {
    const tree = new Tree().add(1, null, { text: beginning, label: "Chapter" }).add(2, null, { text: beginning });
    tree.add(3, null, { text: beginning });
    expect([1, 2].map((id) => distinctTitle(tree, tree.node(id)!, [1, 2, 3]))).toEqual(["Chapter", beginning]);
  });
});
