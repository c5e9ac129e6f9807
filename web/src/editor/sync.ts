import type { ChangeSpec } from "@codemirror/state";
import { difference, textOf } from "../model/path_text";
import type { ShownSegment } from "../model/typing.svelte";
import type { Segment } from "./path_field";

/** How the text column changes so that it shows other segments. */
export interface SyncPlan {
  changes: ChangeSpec | null;
  segments: Segment[];
  /** Offset at which the first segment begins that differs; null if the text stays or only grows at its end. */
  divergence: number | null;
  /** Whether the text only grows at its end, as live text does. */
  isGrowth: boolean;
}

/** Returns the smallest change that makes the text of some segments that of others. */
export function planSync(shown: readonly ShownSegment[], next: readonly ShownSegment[]): SyncPlan {
  let nSame = 0;
  while (nSame < shown.length && nSame < next.length && isSame(shown[nSame]!, next[nSame]!)) nSame++;
  let nSameEnd = 0;
  const nMost = Math.min(shown.length, next.length) - nSame;
  while (nSameEnd < nMost && shown.at(-1 - nSameEnd)!.text === next.at(-1 - nSameEnd)!.text) nSameEnd++;
  const start = textLength(next.slice(0, nSame));
  const before = textOf(shown.slice(nSame, shown.length - nSameEnd));
  const after = textOf(next.slice(nSame, next.length - nSameEnd));
  const change = after.startsWith(before) ? growth(before, after) : difference(before, after);
  const isSameKey = shown[nSame]?.key === next[nSame]?.key;
  return {
    changes: change && { from: start + change.from, to: start + change.to, insert: change.insert },
    segments: ranges(next),
    divergence: nSame === shown.length && nSame === next.length ? null : isSameKey ? null : start,
    isGrowth: change !== null && nSameEnd === 0 && change.from === before.length,
  };
}

function isSame(one: ShownSegment, other: ShownSegment): boolean {
  return one.key === other.key && one.text === other.text;
}

function growth(before: string, after: string): { from: number; to: number; insert: string } | null {
  if (before.length === after.length) return null;
  return { from: before.length, to: before.length, insert: after.slice(before.length) };
}

function textLength(segments: readonly ShownSegment[]): number {
  return segments.reduce((length, { text }) => length + text.length, 0);
}

function ranges(segments: readonly ShownSegment[]): Segment[] {
  let from = 0;
  return segments.map(({ node, key, text }) => {
    const segment = { node, key, from, to: from + text.length };
    from = segment.to;
    return segment;
  });
}
