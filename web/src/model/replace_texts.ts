import type { OpenDocument } from "./document.svelte";
import { difference } from "./path_text";
import type { NodePart } from "./steps";
import type { Workspace } from "./workspace.svelte";

/** Requests that are sent at the same time. */
const N_CONCURRENT = 4;

/** Returns the parts of nodes that new texts replace. */
export function partsOf(document: OpenDocument, texts: readonly { id: number; text: string }[]): NodePart[] {
  return texts.flatMap(({ id, text }) => {
    const before = document.node(id)?.text ?? "";
    const change = difference(before, text);
    if (change === null) return [];
    return [{ node: id, at: change.from, removed: before.slice(change.from, change.to), inserted: change.insert }];
  });
}

/** Returns the parts that put back what others have replaced. */
export function inverseParts(parts: readonly NodePart[]): NodePart[] {
  return parts.map((part) => ({ ...part, removed: part.inserted, inserted: part.removed }));
}

/** Returns whether each part still has the text that is to be replaced. */
export function areCurrent(document: OpenDocument, parts: readonly NodePart[]): boolean {
  return parts.every(({ node, at, removed }) => document.node(node)?.text.startsWith(removed, at) === true);
}

/**
 * Replaces parts of several nodes in place. Returns the parts that were replaced before a failure, and the failure.
 *
 * The text of a node that was changed elsewhere meanwhile becomes a sibling, which is not counted.
 */
export async function replaceParts(
  { client }: Workspace,
  document: OpenDocument,
  parts: readonly NodePart[],
): Promise<{ done: NodePart[]; failure: unknown }> {
  const waiting = [...parts];
  const done: NodePart[] = [];
  let failure: unknown = null;
  async function work(): Promise<void> {
    for (let part = waiting.shift(); part !== undefined && failure === null; part = waiting.shift()) {
      const node = document.node(part.node);
      if (node === undefined) continue;
      const text = node.text.slice(0, part.at) + part.inserted + node.text.slice(part.at + part.removed.length);
      try {
        const answer = await client.changeNode(document.id, part.node, { version: node.version, text });
        document.answered([answer.node]);
        if (!answer.is_sibling) done.push(part);
      } catch (error) {
        failure ??= error;
      }
    }
  }
  await Promise.all(Array.from({ length: N_CONCURRENT }, work));
  return { done, failure };
}
