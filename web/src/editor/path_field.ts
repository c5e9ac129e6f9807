import { type EditorState, StateEffect, StateField, Annotation } from "@codemirror/state";
import type { NodeRef } from "../model/steps";

/** The range of a node's text in the text column. */
export interface Segment {
  /** Id of the node; null for typed text that is not stored yet. */
  readonly node: number | null;
  /** The node, or the key of typed text. */
  readonly key: NodeRef;
  readonly from: number;
  readonly to: number;
}

/** Effect that sets the segments of the text column, with the change that makes its text that of the segments. */
export const pathChanged = StateEffect.define<readonly Segment[]>();

/** Marks changes that show text of nodes, and are not edits of the user. */
export const fromModel = Annotation.define<boolean>();

/** The segments of the text column, in order and without gaps. */
export const pathField = StateField.define<readonly Segment[]>({
  create: () => [],
  update(segments, transaction) {
    for (const effect of transaction.effects) if (effect.is(pathChanged)) return effect.value;
    if (!transaction.docChanged) return segments;
    const { changes } = transaction;
    return segments.map((segment) => ({
      ...segment,
      from: changes.mapPos(segment.from, 1),
      to: changes.mapPos(segment.to, -1),
    }));
  },
});

/** Returns the segment that has the character before a position, or the first one; undefined in an empty text. */
export function segmentAt(state: EditorState, position: number): Segment | undefined {
  const segments = state.field(pathField);
  return segments.findLast(({ from }) => from < position) ?? segments[0];
}

/** Returns the segment of a node, if it is on the path. */
export function segmentOf(state: EditorState, node: number): Segment | undefined {
  return state.field(pathField).find((segment) => segment.node === node);
}
