import { expect, test } from "vitest";

import type { NodeChange, NodeChanged, NodeRecord } from "../api/types";
import type { OpenDocument } from "./document.svelte";
import { areCurrent, inverseParts, partsOf, replaceParts } from "./replace_texts";
import type { Workspace } from "./workspace.svelte";

/** Nodes of a document, and the server that stores them. */
class Nodes {
  readonly records = new Map<number, NodeRecord>();
  /** Nodes that were changed elsewhere. */
  readonly stale = new Set<number>();
  /** Requests that succeed before all others fail. */
  nAnswered = Number.POSITIVE_INFINITY;

  constructor(...texts: string[]) {
    for (const [nth, text] of texts.entries()) this.records.set(nth + 1, { id: nth + 1, version: 1, text } as NodeRecord);
  }

  get document(): OpenDocument {
    const answered = (nodes: NodeRecord[]) => {
      for (const node of nodes) this.records.set(node.id, node);
    };
    return { id: "d", node: (id: number) => this.records.get(id), answered } as unknown as OpenDocument;
  }

  get workspace(): Workspace {
    const changeNode = async (_: string, id: number, { version, text = "" }: NodeChange): Promise<NodeChanged> => {
      if (this.nAnswered <= 0) throw new Error("full");
      this.nAnswered -= 1;
      const node = this.records.get(id) as NodeRecord;
      expect(version).toBe(node.version);
      if (this.stale.has(id)) return { node: { ...node, id: 100 + id, text }, is_sibling: true };
      return { node: { ...node, version: node.version + 1, text }, is_sibling: false };
    };
    return { client: { changeNode } } as unknown as Workspace;
  }

  get texts(): string[] {
    return [...this.records.values()].map(({ text }) => text);
  }
}

const CHANGED = [
  { id: 1, text: "The owl ran." },
  { id: 3, text: "An owl, an owl" },
];

test("Replacements change the texts, and their inverse puts them back", async () => {
  const nodes = new Nodes("The fox ran.", "Rain.", "An fox, an fox");
  const parts = partsOf(nodes.document, CHANGED);
  expect(parts[0]).toEqual({ node: 1, at: 4, removed: "fox", inserted: "owl" });
  const { done, failure } = await replaceParts(nodes.workspace, nodes.document, parts);
  expect([nodes.texts, failure]).toEqual([["The owl ran.", "Rain.", "An owl, an owl"], null]);
  expect(areCurrent(nodes.document, parts)).toBe(false);
  const back = inverseParts(done);
  expect(areCurrent(nodes.document, back)).toBe(true);
  await replaceParts(nodes.workspace, nodes.document, back);
  expect(nodes.texts).toEqual(["The fox ran.", "Rain.", "An fox, an fox"]);
});

test("A failure reports what was replaced before it", async () => {
  const nodes = new Nodes("The fox ran.", "Rain.", "An fox, an fox");
  nodes.nAnswered = 1;
  const { done, failure } = await replaceParts(nodes.workspace, nodes.document, partsOf(nodes.document, CHANGED));
  expect([done.length, (failure as Error).message]).toEqual([1, "full"]);
});

test("A node that was changed elsewhere is not counted", async () => {
  const nodes = new Nodes("The fox ran.", "Rain.", "An fox, an fox");
  nodes.stale.add(3);
  const { done } = await replaceParts(nodes.workspace, nodes.document, partsOf(nodes.document, CHANGED));
  expect(done.map((part) => part.node)).toEqual([1]);
  expect(nodes.texts).toEqual(["The owl ran.", "Rain.", "An fox, an fox", "An owl, an owl"]);
});
