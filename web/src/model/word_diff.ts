/** Differences between two texts by words. No I/O here. */

/** A part of two texts: the same in both, or different. `first` and `second` are the texts in each; one may be empty. */
export interface DiffPart {
  isEqual: boolean;
  first: string;
  second: string;
}

/** Edits that are searched for between two anchors; beyond this a part counts as entirely different. */
const MAX_EDITS = 400;

const WORDS = /\p{L}[\p{L}\p{M}\p{N}'’]*|\p{N}+|[^\S\n]+|\n|[^\p{L}\p{N}\s]/gu;

/** Returns the words of a text, with spaces, line breaks and punctuation as words of their own; together they are the text. */
export function words(text: string): string[] {
  const found: string[] = [];
  let end = 0;
  for (const match of text.matchAll(WORDS)) {
    // What no pattern matches, as a mark without a letter, is a word too.
    if (match.index > end) found.push(text.slice(end, match.index));
    found.push(match[0]);
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push(text.slice(end));
  return found;
}

/** Returns the parts of two texts, in order. */
export function wordDiff(first: string, second: string): DiffPart[] {
  const one = words(first);
  const other = words(second);
  const pairs = cleaned(one, other, matches(one, other));
  const parts: DiffPart[] = [];
  let [a, b] = [0, 0];
  let n = 0;
  while (n < pairs.length || a < one.length || b < other.length) {
    const [nextA, nextB] = pairs[n] ?? [one.length, other.length];
    if (a < nextA || b < nextB) {
      parts.push({ isEqual: false, first: one.slice(a, nextA).join(""), second: other.slice(b, nextB).join("") });
      [a, b] = [nextA, nextB];
      continue;
    }
    const from = a;
    while (n < pairs.length && pairs[n]?.[0] === a && pairs[n]?.[1] === b) [n, a, b] = [n + 1, a + 1, b + 1];
    const text = one.slice(from, a).join("");
    parts.push({ isEqual: true, first: text, second: text });
  }
  return parts;
}

type Pair = readonly [number, number];

/** Returns the indices of equal words, in order. */
function matches(one: readonly string[], other: readonly string[]): Pair[] {
  const pairs: Pair[] = [];
  // An explicit stack, since long texts would nest deeply.
  const regions: [number, number, number, number][] = [[0, one.length, 0, other.length]];
  while (regions.length) {
    let [a, aEnd, b, bEnd] = regions.pop() as [number, number, number, number];
    while (a < aEnd && b < bEnd && one[a] === other[b]) pairs.push([a++, b++]);
    while (a < aEnd && b < bEnd && one[aEnd - 1] === other[bEnd - 1]) pairs.push([--aEnd, --bEnd]);
    if (a === aEnd || b === bEnd) continue;
    const found = shortestEdit(one.slice(a, aEnd), other.slice(b, bEnd));
    if (found) {
      for (const [i, j] of found) pairs.push([a + i, b + j]);
      continue;
    }
    const anchors = uniqueCommon(one, a, aEnd, other, b, bEnd);
    for (const [i, j] of [...anchors, [aEnd, bEnd] as const]) {
      if (anchors.length) regions.push([a, i, b, j]);
      if (i < aEnd) pairs.push([i, j]);
      [a, b] = [i + 1, j + 1];
    }
  }
  return pairs.sort(([i], [j]) => i - j);
}

/** Returns the matches of the shortest edit (Myers 1986), or null if it is longer than `MAX_EDITS`. */
function shortestEdit(one: readonly string[], other: readonly string[]): Pair[] | null {
  const [n, m] = [one.length, other.length];
  const max = Math.min(n + m, MAX_EDITS);
  const reach = new Int32Array(2 * max + 3);
  const middle = max + 1;
  const steps: Int32Array[] = [];
  for (let edits = 0; edits <= max; edits += 1) {
    steps.push(reach.slice(middle - edits - 1, middle + edits + 2));
    for (let diagonal = -edits; diagonal <= edits; diagonal += 2) {
      const [below, above] = [reach[middle + diagonal - 1] as number, reach[middle + diagonal + 1] as number];
      let x = diagonal === -edits || (diagonal !== edits && below < above) ? above : below + 1;
      let y = x - diagonal;
      while (x < n && y < m && one[x] === other[y]) [x, y] = [x + 1, y + 1];
      reach[middle + diagonal] = x;
      if (x >= n && y >= m) return traced(one, other, steps);
    }
  }
  return null;
}

/** Returns the matches from the furthest points of each number of edits. */
function traced(one: readonly string[], other: readonly string[], steps: readonly Int32Array[]): Pair[] {
  const pairs: Pair[] = [];
  let [x, y] = [one.length, other.length];
  for (let edits = steps.length - 1; edits >= 0; edits -= 1) {
    const reach = steps[edits] as Int32Array;
    // Index 0 of a step is the diagonal before its first one.
    const at = (diagonal: number) => reach[diagonal + edits + 1] as number;
    const diagonal = x - y;
    const isDown = diagonal === -edits || (diagonal !== edits && at(diagonal - 1) < at(diagonal + 1));
    const before = isDown ? diagonal + 1 : diagonal - 1;
    const fromX = edits === 0 ? 0 : at(before);
    const fromY = fromX - before;
    const startX = edits === 0 ? 0 : isDown ? fromX : fromX + 1;
    while (x > startX) pairs.push([--x, --y]);
    [x, y] = edits === 0 ? [0, 0] : [fromX, fromY];
  }
  return pairs.reverse();
}

/** Returns words that stand once in each of two regions, as far as they are in the same order (patience diff). */
function uniqueCommon(
  one: readonly string[],
  aStart: number,
  aEnd: number,
  other: readonly string[],
  bStart: number,
  bEnd: number,
): Pair[] {
  const places = new Map<string, { n: number; a: number; m: number; b: number }>();
  for (let a = aStart; a < aEnd; a += 1) {
    const place = places.get(one[a] as string);
    if (place) place.n += 1;
    else places.set(one[a] as string, { n: 1, a, m: 0, b: 0 });
  }
  for (let b = bStart; b < bEnd; b += 1) {
    const place = places.get(other[b] as string);
    if (!place) continue;
    place.m += 1;
    place.b = b;
  }
  const common = [...places.values()].filter(({ n, m }) => n === 1 && m === 1).map(({ a, b }): Pair => [a, b]);
  return longestIncreasing(common);
}

/** Returns the longest sequence of pairs whose second numbers increase; the first ones do already. */
function longestIncreasing(pairs: readonly Pair[]): Pair[] {
  const tails: number[] = [];
  const before: number[] = [];
  for (const [index, [, b]] of pairs.entries()) {
    let low = 0;
    let high = tails.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((pairs[tails[middle] as number]?.[1] ?? 0) < b) low = middle + 1;
      else high = middle;
    }
    before.push(low > 0 ? (tails[low - 1] as number) : -1);
    tails[low] = index;
  }
  const found: Pair[] = [];
  for (let index = tails.at(-1) ?? -1; index >= 0; index = before[index] as number) found.push(pairs[index] as Pair);
  return found.reverse();
}

/** Leaves out matches that only tear a change apart: spaces, then single words, between longer changes. */
function cleaned(one: readonly string[], other: readonly string[], pairs: readonly Pair[]): readonly Pair[] {
  let kept = pairs;
  for (const nMost of [0, 2]) {
    for (let n = -1; n !== kept.length;) {
      n = kept.length;
      kept = withoutFragments(one, other, kept, nMost);
    }
  }
  return kept;
}

/** Leaves out runs of matches of at most `nMost` words if the changes around them are longer. */
function withoutFragments(one: readonly string[], other: readonly string[], pairs: readonly Pair[], nMost: number): Pair[] {
  const runs: Pair[][] = [];
  for (const pair of pairs) {
    const run = runs.at(-1);
    const last = run?.at(-1);
    if (run && last && last[0] + 1 === pair[0] && last[1] + 1 === pair[1]) run.push(pair);
    else runs.push([pair]);
  }
  const isWord = (text: string) => /[\p{L}\p{N}]/u.test(text);
  const nWords = (words: readonly string[]) => words.filter(isWord).length;
  const kept = runs.filter((run, nth) => {
    const [first, last] = [run[0]!, run.at(-1)!];
    const isAtBorder = (first[0] === 0 && first[1] === 0) || (last[0] + 1 === one.length && last[1] + 1 === other.length);
    const n = nWords(run.map(([index]) => one[index]!));
    if (isAtBorder || n > nMost) return true;
    const [beforeOne, beforeOther] = runs[nth - 1]?.at(-1) ?? [-1, -1];
    const [afterOne, afterOther] = runs[nth + 1]?.[0] ?? [one.length, other.length];
    const before = Math.max(nWords(one.slice(beforeOne + 1, first[0])), nWords(other.slice(beforeOther + 1, first[1])));
    const after = Math.max(nWords(one.slice(last[0] + 1, afterOne)), nWords(other.slice(last[1] + 1, afterOther)));
    return Math.min(before, after) < 2 * n + 1;
  });
  return kept.flat();
}
