/** Undo and redo of branches that begin inside a node, which is split there. */

import type { Client } from "../api/client";
import { characterOfOffset } from "./characters";
import type { OpenDocument } from "./document.svelte";

/** A node that was split by branches. */
export interface Fork {
  /** The part before the branches. */
  node: number;
  /** Its length, in UTF-16 units. */
  at: number;
  /** The part beside the branches. */
  rest: number;
  branches: readonly number[];
}

/**
 * Joins the two parts of a node again. The branches, which are in the trash, move below the second part.
 *
 * The node stays split while its second part is being written, and if other nodes follow the first part.
 */
export async function joinParts(client: Client, document: OpenDocument, { node, rest, branches }: Fork): Promise<void> {
  const parts = [node, rest].map((id) => document.node(id));
  const isWritable = parts.every((part) => part !== undefined && part.state !== "running" && !part.is_trashed);
  const others = document.allChildren(node).filter((id) => !branches.includes(id));
  if (!isWritable || others.length !== 1 || others[0] !== rest) return;
  await moveBelow(client, document, branches, rest);
  const { nodes, deleted } = await client.mergeNode(document.id, node);
  document.answered(nodes, deleted);
  if (document.currentId === null || deleted.includes(document.currentId)) document.go(node);
}

/**
 * Splits a node again, and moves its branches back, which stay in the trash.
 *
 * Returns the id of the second part; null if the document was changed so that this is not possible.
 */
export async function splitAgain(client: Client, document: OpenDocument, fork: Fork): Promise<number | null> {
  const { node, at, branches } = fork;
  const text = document.node(node)?.text ?? "";
  if (branches.some((id) => document.node(id) === undefined)) return null;
  let { rest } = fork;
  if (document.node(rest)?.parent !== node) {
    if (at >= text.length) return null;
    const { nodes } = await client.splitNode(document.id, node, { character: characterOfOffset(text, at) });
    document.answered(nodes);
    rest = nodes[1]!.id;
  }
  await moveBelow(client, document, branches, node);
  return rest;
}

async function moveBelow(client: Client, document: OpenDocument, ids: readonly number[], parent: number): Promise<void> {
  for (const id of ids) {
    const node = document.node(id);
    if (node === undefined || node.parent === parent) continue;
    const { nodes } = await client.moveNode(document.id, id, parent);
    document.answered(nodes);
  }
}
