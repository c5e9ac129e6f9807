/** The text column as a list of segments, and which of them an edit changes. Offsets are UTF-16 units. */

/** Part of the text column: the text of a node, or text that was typed and is not stored yet (`node` null). */
export interface PathSegment {
  readonly node: number | null;
  readonly text: string;
}

/** Replacement of a part of the text column. */
export interface TextChange {
  readonly from: number;
  readonly to: number;
  readonly insert: string;
}

/** Answers of the tree about the nodes of a path. */
export interface PathRules {
  /** Returns whether an edit may change the node itself: it was written by hand, and nothing generated continues it. */
  canChange(node: number): boolean;
  /** Returns whether text may be added below the node: no branch is writing it. */
  canExtend(node: number): boolean;
}

/** What an edit means for the segments of a path. */
export type EditPlan =
  /** The segments with these indices are changed; offsets are those in their texts. */
  | { kind: "change"; changes: ReadonlyMap<number, readonly TextChange[]> }
  /**
   * The first `n_kept` segments stay; new nodes follow them with `text` and, if it is not empty, `rest`.
   * `replaces` is the index of the segment of which the first new node is a variant, or null if it is an addition.
   */
  | { kind: "create"; n_kept: number; replaces: number | null; text: string; rest: string };

/** Returns the text of a path. */
export function textOf(segments: readonly PathSegment[]): string {
  return segments.map((segment) => segment.text).join("");
}

/** Returns the offset at which each segment begins, and the length of the text. */
export function startsOf(segments: readonly PathSegment[]): number[] {
  let start = 0;
  const starts = segments.map(({ text }) => (start += text.length) - text.length);
  return [...starts, start];
}

/**
 * Decides which nodes an edit changes.
 *
 * @param segments The text column before the edit.
 * @param changes Replacements in order, with offsets in the text before the edit, which do not touch each other.
 */
export function planEdit(segments: readonly PathSegment[], changes: readonly TextChange[], rules: PathRules): EditPlan {
  const inPlace = changesInPlace(segments, changes, rules);
  if (inPlace !== null) return { kind: "change", changes: inPlace };
  const text = textOf(segments);
  const first = changes[0]!;
  const last = changes.at(-1)!;
  const edited = apply(text, changes);
  const end = last.to;
  const starts = startsOf(segments);
  const written = segments.findIndex(({ node }, nth) => starts[nth]! >= end && node !== null && !rules.canExtend(node));
  // Text after the edit that is still written stays with its branch: a copy would end in the middle of it.
  const restEnd = edited.length - (written < 0 ? 0 : text.length - starts[written]!);
  const editedEnd = edited.length - (text.length - end);
  if (changes.length === 1 && first.from === first.to) {
    const before = extendableAt(segments, first.from, rules);
    if (before !== null) {
      return { kind: "create", n_kept: before + 1, replaces: null, text: first.insert, rest: edited.slice(editedEnd, restEnd) };
    }
    const isAtTop = segments.length === 0 || written === 0;
    if (isAtTop) return { kind: "create", n_kept: 0, replaces: null, text: first.insert, rest: "" };
  }
  const begin = containing(segments, first.from, first.to);
  const final = Math.max(begin, endingWithin(segments, end));
  const start = starts[begin]!;
  const restStart = starts[final + 1]!;
  const replacedEnd = editedEnd + (restStart - end);
  return {
    kind: "create",
    n_kept: begin,
    replaces: begin,
    text: edited.slice(start, replacedEnd),
    rest: edited.slice(replacedEnd, restEnd),
  };
}

/** Returns a text with replacements made. */
export function apply(text: string, changes: readonly TextChange[]): string {
  let edited = "";
  let done = 0;
  for (const change of changes) {
    edited += text.slice(done, change.from) + change.insert;
    done = change.to;
  }
  return edited + text.slice(done);
}

/** Returns the smallest replacement that makes one text of another, or null if they are equal. */
export function difference(before: string, after: string): TextChange | null {
  if (before === after) return null;
  const shorter = Math.min(before.length, after.length);
  let start = 0;
  while (start < shorter && before[start] === after[start]) start++;
  let end = 0;
  while (end < shorter - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end++;
  return { from: start, to: before.length - end, insert: after.slice(start, after.length - end) };
}

/** Returns the changes of each segment if every change lies in one that may be changed itself, else null. */
function changesInPlace(
  segments: readonly PathSegment[],
  changes: readonly TextChange[],
  rules: PathRules,
): Map<number, TextChange[]> | null {
  const starts = startsOf(segments);
  const bySegment = new Map<number, TextChange[]>();
  for (const change of changes) {
    const index = segments.findIndex(({ node }, nth) => {
      const isWithin = starts[nth]! <= change.from && change.to <= starts[nth + 1]!;
      return isWithin && (node === null || rules.canChange(node));
    });
    if (index < 0) return null;
    const start = starts[index]!;
    const local = { from: change.from - start, to: change.to - start, insert: change.insert };
    bySegment.set(index, [...(bySegment.get(index) ?? []), local]);
  }
  return bySegment;
}

/** Returns the last segment that ends at an offset and may be continued, or null. */
function extendableAt(segments: readonly PathSegment[], offset: number, rules: PathRules): number | null {
  let end = 0;
  let found: number | null = null;
  for (const [index, { node, text }] of segments.entries()) {
    end += text.length;
    if (end === offset && node !== null && rules.canExtend(node)) found = index;
  }
  return found;
}

/** Returns the segment in which a change begins: the one after `from`, unless nothing there is removed. */
function containing(segments: readonly PathSegment[], from: number, to: number): number {
  let end = 0;
  for (const [index, segment] of segments.entries()) {
    end += segment.text.length;
    if (from < end || (from === end && from === to)) return index;
  }
  return segments.length - 1;
}

/** Returns the segment that has the character before an offset. */
function endingWithin(segments: readonly PathSegment[], offset: number): number {
  let end = 0;
  for (const [index, segment] of segments.entries()) {
    end += segment.text.length;
    if (offset <= end && segment.text.length > 0) return index;
  }
  return segments.length - 1;
}
