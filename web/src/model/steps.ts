import type { DocumentSettings } from "../api/types";

/** A node in a step: its id, or the key of typed text that has no node yet. */
export type NodeRef = number | string;

/** Replaces a part of a node's text. `removed` must still be there. */
export interface TextStep {
  kind: "text";
  node: NodeRef;
  /** Last node of the path on which it was typed, which is shown again. */
  leaf: NodeRef;
  at: number;
  removed: string;
  inserted: string;
}

/** Replaces a part of a stored node's text, wherever the node is. */
export interface NodePart {
  node: number;
  at: number;
  removed: string;
  inserted: string;
}

/** Reverses, or repeats, the split that branches inside a node have made. The branches are in the trash meanwhile. */
export interface ForkStep {
  kind: "unfork" | "fork";
  /** The part before the branches. */
  node: NodeRef;
  /** Its length. */
  at: number;
  /** The part beside the branches. A new node takes its place in later steps. */
  rest: NodeRef;
  branches: NodeRef[];
}

/**
 * One operation that undo or redo performs. Steps are plain data, so that a tab keeps them over a reload.
 *
 * Offsets are UTF-16 units.
 */
export type Step =
  | TextStep
  /** Replaces parts of several nodes, as find and replace does. */
  | { kind: "parts"; parts: NodePart[] }
  /** Sets fields of a node that the last change wins. */
  | { kind: "fields"; node: NodeRef; fields: { label?: string; note?: string; is_bookmarked?: boolean } }
  /** Moves nodes to the trash, which stops their branches, or back. */
  | { kind: "trash"; nodes: NodeRef[]; is_trashed: boolean }
  | { kind: "move"; node: NodeRef; parent: NodeRef | null; index: number | null }
  /** Splits a node; the new child takes the place of `child` in later steps. */
  | { kind: "split"; node: NodeRef; at: number; child: NodeRef }
  | { kind: "merge"; node: NodeRef }
  | ForkStep
  | { kind: "document"; document: string; change: { title?: string; folder?: string; is_trashed?: boolean } }
  /** Sets keys of the document's settings; keys with null are removed. */
  | { kind: "settings"; document: string; values: DocumentSettings }
  /** Shows the text up to a node, with the cursor at an offset of the text column (null: at its end). */
  | { kind: "go"; node: NodeRef | null; cursor: number | null };

/** One action of the user, as undo and redo see it. */
export interface HistoryEntry {
  /** Name of the action, as "Move to trash". */
  title: string;
  /** Document in which it happened; null for actions on several documents. */
  document: string | null;
  undo: Step[];
  redo: Step[];
}

/** Returns a step with a node replaced by another one, if the step names it. */
export function withNode(step: Step, from: NodeRef, to: NodeRef): Step {
  const map = <Ref extends NodeRef | null>(ref: Ref): Ref | NodeRef => (ref === from ? to : ref);
  switch (step.kind) {
    case "text":
      return { ...step, node: map(step.node), leaf: map(step.leaf) };
    case "fields":
    case "merge":
    case "go":
      return { ...step, node: map(step.node) } as Step;
    case "split":
      return { ...step, node: map(step.node), child: map(step.child) };
    case "move":
      return { ...step, node: map(step.node), parent: map(step.parent) };
    case "trash":
      return { ...step, nodes: step.nodes.map(map) };
    case "unfork":
    case "fork":
      return { ...step, node: map(step.node), rest: map(step.rest), branches: step.branches.map(map) };
    case "parts":
      return typeof to === "number"
        ? { ...step, parts: step.parts.map((part) => (part.node === from ? { ...part, node: to } : part)) }
        : step;
    case "document":
    case "settings":
      return step;
  }
}

/** Returns the step that reverses a replacement. */
export function inverse(step: TextStep): TextStep {
  return { ...step, removed: step.inserted, inserted: step.removed };
}

/** Returns one replacement that does what two do, one after the other; null if they do not touch in the text between them. */
export function joined(first: TextStep, second: TextStep): TextStep | null {
  const firstEnd = first.at + first.inserted.length;
  const secondEnd = second.at + second.removed.length;
  if (first.node !== second.node || second.at > firstEnd || secondEnd < first.at) return null;
  const removedBefore = second.removed.slice(0, Math.max(0, first.at - second.at));
  const removedAfter = second.removed.slice(Math.min(second.removed.length, Math.max(0, firstEnd - second.at)));
  const keptBefore = first.inserted.slice(0, Math.max(0, second.at - first.at));
  const keptAfter = first.inserted.slice(Math.max(0, secondEnd - first.at));
  return {
    ...second,
    at: Math.min(first.at, second.at),
    removed: removedBefore + first.removed + removedAfter,
    inserted: keptBefore + second.inserted + keptAfter,
  };
}
