import { expect, it } from "vitest";
import type { NodeRecord } from "../api/types";
import { NodeTree } from "./node_tree.svelte";

function record(id: number, parent: number | null, position: number, is_trashed: boolean): NodeRecord {
  return {
    id,
    parent,
    position,
    is_trashed,
    version: 1,
    state: "done",
    text: String(id),
    label: "",
    note: "",
    is_bookmarked: false,
  } as NodeRecord;
}

it("has the children of each node in order, whatever changes", () => {
  let seed = 5;
  const random = (limit: number) => (seed = (seed * 1103515245 + 12345) % 2147483648) % limit;
  const tree = new NodeTree();
  const expected = new Map<number, NodeRecord>();
  for (let round = 0; round < 500; round++) {
    if (random(10) === 0) {
      const leaf = [...expected.keys()].find((id) => ![...expected.values()].some(({ parent }) => parent === id));
      if (leaf !== undefined) {
        expected.delete(leaf);
        tree.remove([leaf]);
      }
    } else {
      // Parents have lower ids, so that no cycle can arise.
      const id = 1 + random(40);
      const parents = [null, ...[...expected.keys()].filter((each) => each < id)];
      const node = record(id, parents[random(parents.length)]!, random(5), random(4) === 0);
      expected.set(id, node);
      tree.put([node]);
    }
    for (const parent of [null, ...expected.keys()]) {
      const children = [...expected.values()].filter((node) => node.parent === parent);
      children.sort((left, right) => left.position - right.position || left.id - right.id);
      expect(tree.allChildren(parent)).toEqual(children.map(({ id }) => id));
      expect(tree.children(parent)).toEqual(children.filter(({ is_trashed }) => !is_trashed).map(({ id }) => id));
    }
  }
});

it("changes its structure for the shape of the tree, not for text", () => {
  const tree = new NodeTree();
  tree.put([record(1, null, 0, false)]);
  const before = tree.structureVersion;
  tree.setText(1, "more");
  tree.put([{ ...tree.node(1)!, version: 2, text: "much more" }]);
  expect(tree.structureVersion).toBe(before);
  tree.put([{ ...tree.node(1)!, version: 3, label: "Chapter" }]);
  expect(tree.structureVersion).not.toBe(before);
});
