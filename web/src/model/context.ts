/**
 * The prompt in parts: what stands before the text, what is inserted into it, what falls out, and what a change recomputes.
 *
 * Texts are divided into units, which are not cut: tokens, or groups of tokens that share a character. No I/O here.
 */

import type { Depth } from "./settings";

/** The smallest piece of text that is not cut. */
export interface Unit {
  text: string;
  nTokens: number;
  /** Token ids that are sent; null if the text is sent. */
  ids: readonly number[] | null;
  /** Node of the text. */
  node: number;
}

/** One token of a node's text, or a part of it without known tokens; as `GET …/tokens` returns it. */
export interface KnownToken {
  id: number | null;
  nBytes: number;
  /** Characters (code points) of the node's text that are complete at its end. */
  end: number;
}

/** A token of a text that was tokenized. */
export interface TextToken {
  id: number;
  /** UTF-16 offset of its end in the text; a token that ends inside a character has the offset before it. */
  end: number;
}

export type PartKind = "template" | "memory" | "lore" | "note" | "text";

/** Text that stands before or in the text of the path. */
export interface Block {
  kind: Exclude<PartKind, "text">;
  /** Index of a lore entry in the document's list. */
  index?: number;
  text: string;
  nTokens: number;
  /** Token ids that are sent in place of the text. */
  ids?: readonly number[];
}

/** A block at a depth from the end. */
export interface Insert extends Block, Depth {}

/** Units of the end of a path. */
export interface PathText {
  units: readonly Unit[];
  /** Characters (UTF-16) of the path before the first unit. */
  nCharactersBefore: number;
}

/** A part of the prompt. */
export interface Part {
  kind: PartKind;
  index?: number;
  text: string;
  nTokens: number;
  ids?: readonly number[];
  /** Units of a part of the path's text. */
  units?: readonly Unit[];
  /** Tokens of the path's text between an inserted block and the end of the prompt. */
  depth?: number;
}

export interface Layout {
  /** Parts that are sent, in order. */
  parts: Part[];
  /** Characters of the path that fell out, from its beginning. */
  nCharactersOut: number;
  nTokens: number;
  /** True if memory, lore and note leave no space for the text. */
  isTooLong: boolean;
}

/** The text is kept at least this long, in tokens; otherwise the other parts are too long. */
const MIN_TEXT_TOKENS = 16;

/** Borders move in steps, so that most continuations find the beginning of their prompt in the cache. */
const CHARACTERS_PER_TOKEN = 4;
const CUT_STEPS = 8;
const DEPTH_STEPS = 4;
const MIN_STEP = 64;

const BORDER = { none: 0, word: 1, sentence: 2, line: 3 } as const;
type Border = (typeof BORDER)[keyof typeof BORDER];

/**
 * Returns the units of a node whose tokens are known. Its parts without known tokens are returned as texts, to be tokenized.
 */
export function knownUnits(node: number, text: string, tokens: readonly KnownToken[]): (Unit | string)[] {
  const units: (Unit | string)[] = [];
  let start = 0;
  let at: Position = { codePoints: 0, offset: 0, nBytes: 0 };
  let nBytes = 0;
  let ids: (number | null)[] = [];
  for (const token of tokens) {
    ids.push(token.id);
    nBytes += token.nBytes;
    at = advance(text, at, token.end);
    // The token ends inside a character, which the next ones complete.
    if (nBytes > at.nBytes) continue;
    const piece = text.slice(start, at.offset);
    start = at.offset;
    if (ids.every((id) => id !== null)) units.push({ text: piece, nTokens: ids.length, ids, node });
    else if (piece) units.push(piece);
    ids = [];
  }
  if (start < text.length) units.push(text.slice(start));
  return units;
}

/** Returns the units of a text that was tokenized. */
export function textUnits(node: number, text: string, tokens: readonly TextToken[]): Unit[] {
  const units: Unit[] = [];
  let start = 0;
  let nTokens = 0;
  for (const token of tokens) {
    nTokens += 1;
    if (token.end <= start) continue;
    units.push({ text: text.slice(start, token.end), nTokens, ids: null, node });
    start = token.end;
    nTokens = 0;
  }
  if (start < text.length) units.push({ text: text.slice(start), nTokens: Math.max(nTokens, 1), ids: null, node });
  else if (nTokens && units.length) {
    const last = units[units.length - 1] as Unit;
    units[units.length - 1] = { ...last, nTokens: last.nTokens + nTokens };
  }
  return units;
}

/**
 * Divides a long text into chunks at line breaks or spaces. Text that is appended changes only the last chunk, so that the
 * tokens of the others stay cached.
 */
export function chunks(text: string, nCharacters = 4000): string[] {
  const found: string[] = [];
  let start = 0;
  while (text.length - start > nCharacters) {
    const end = start + nCharacters;
    const line = text.lastIndexOf("\n", end - 1) + 1;
    const space = text.lastIndexOf(" ", end - 1);
    let cut = line > start ? line : space > start ? space : end;
    if (isLowSurrogate(text.charCodeAt(cut))) cut -= 1;
    found.push(text.slice(start, cut));
    start = cut;
  }
  if (start < text.length) found.push(text.slice(start));
  return found;
}

/**
 * Composes the prompt.
 *
 * @param front Blocks before the text.
 * @param path Text of the path; at least as many of its last units as fit into the limit.
 * @param inserts Blocks at a depth.
 * @param limit Maximum tokens of the prompt.
 */
export function layOut(front: readonly Block[], path: PathText, inserts: readonly Insert[], limit: number): Layout {
  const { units } = path;
  const blocks = lines(front);
  const fixed = total(blocks) + total(inserts);
  const room = limit - fixed;
  const nAll = total(units);
  const isTooLong = room < Math.min(MIN_TEXT_TOKENS, nAll);
  const first = firstUnit(path, Math.max(room, 0), limit);
  const starts = offsets(path);
  const placed = inserts
    .map((block, nth) => ({ block, nth, at: position(path, starts, first, block) }))
    .sort(
      (one, other) =>
        one.at - other.at || Number(one.block.kind === "note") - Number(other.block.kind === "note") || one.nth - other.nth,
    );
  const parts: Part[] = [...blocks];
  let from = first;
  let isLineStart = blocks.length === 0 || endsLine(blocks.at(-1)?.text ?? "");
  const addText = (to: number) => {
    if (to <= from) return;
    const kept = units.slice(from, to);
    const text = kept.map((unit) => unit.text).join("");
    parts.push({ kind: "text", text, nTokens: total(kept), units: kept });
    isLineStart = endsLine(text);
    from = to;
  };
  for (const { block, at } of placed) {
    addText(at);
    const text = (isLineStart ? "" : "\n") + (endsLine(block.text) ? block.text : `${block.text}\n`);
    const { kind, index, nTokens } = block;
    parts.push({ kind, ...(index !== undefined && { index }), text, nTokens, depth: total(units.slice(at)) });
    isLineStart = true;
  }
  addText(units.length);
  return {
    parts,
    nCharactersOut: starts[first] ?? path.nCharactersBefore,
    nTokens: parts.reduce((sum, part) => sum + part.nTokens, 0),
    isTooLong,
  };
}

/**
 * Divides the tokens of a rendered template into parts: memory and lore where the template contains them unchanged, and the rest.
 *
 * @param contained Blocks that the template was rendered with, in their order.
 */
export function templateBlocks(text: string, tokens: readonly TextToken[], contained: readonly Omit<Block, "ids">[]): Block[] {
  const ranges: { kind: Block["kind"]; index?: number; end: number }[] = [];
  let start = 0;
  for (const { kind, index, text: wanted } of contained) {
    const at = wanted ? text.indexOf(wanted, start) : -1;
    if (at < 0) continue;
    if (at > start) ranges.push({ kind: "template", end: at });
    start = at + wanted.length;
    ranges.push({ kind, ...(index !== undefined && { index }), end: start });
  }
  if (start < text.length) ranges.push({ kind: "template", end: text.length });
  const blocks: Block[] = [];
  let nth = 0;
  let from = 0;
  for (const [position, { kind, index, end }] of ranges.entries()) {
    const ids: number[] = [];
    let to = from;
    // A token that spans a border belongs to the part in which it begins.
    for (; nth < tokens.length; nth += 1) {
      const token = tokens[nth] as TextToken;
      if (to >= end && position < ranges.length - 1) break;
      ids.push(token.id);
      to = Math.max(to, token.end);
    }
    if (position === ranges.length - 1) to = text.length;
    blocks.push({ kind, ...(index !== undefined && { index }), text: text.slice(from, to), nTokens: ids.length, ids });
    from = to;
  }
  return blocks;
}

/** Returns the pieces of a prompt as they are sent: token ids, and texts between them, which are tokenized each by itself. */
export function pieces(parts: readonly Part[]): (string | number)[] {
  const found: (string | number)[] = [];
  const add = (piece: string | number) => {
    if (piece === "") return;
    const last = found.at(-1);
    if (typeof piece === "string" && typeof last === "string") found[found.length - 1] = last + piece;
    else found.push(piece);
  };
  for (const part of parts) {
    if (part.ids) part.ids.forEach(add);
    else if (part.units) for (const unit of part.units) unit.ids ? unit.ids.forEach(add) : add(unit.text);
    else add(part.text);
  }
  return found;
}

/** Tokens of a prompt, with the part in which each begins. */
export interface ExactTokens {
  ids: number[];
  /** Number of tokens of each part. */
  nTokens: number[];
  /** True for tokens that a model generated. */
  isGenerated: boolean[];
}

/**
 * Returns the tokens of the parts as the server will have them.
 *
 * @param tokenize Returns the tokens of one text of `pieces`; `isFirst` is true for a text at the beginning of the prompt.
 */
export async function exactTokens(
  parts: readonly Part[],
  tokenize: (text: string, isFirst: boolean) => Promise<readonly TextToken[]>,
): Promise<ExactTokens> {
  const result: ExactTokens = { ids: [], nTokens: parts.map(() => 0), isGenerated: [] };
  let run: { part: number; text: string }[] = [];
  const addIds = (part: number, ids: readonly number[], isGenerated: boolean) => {
    for (const id of ids) {
      result.ids.push(id);
      result.isGenerated.push(isGenerated);
    }
    result.nTokens[part] = (result.nTokens[part] ?? 0) + ids.length;
  };
  const endRun = async () => {
    const text = run.map((each) => each.text).join("");
    const ranges = run;
    run = [];
    if (!text) return;
    const tokens = await tokenize(text, result.ids.length === 0);
    let range = 0;
    let end = ranges[0]?.text.length ?? 0;
    let start = 0;
    for (const token of tokens) {
      while (start >= end && range < ranges.length - 1) {
        range += 1;
        end += ranges[range]?.text.length ?? 0;
      }
      addIds(ranges[range]?.part ?? 0, [token.id], false);
      start = token.end;
    }
  };
  for (const [nth, part] of parts.entries()) {
    if (part.ids) {
      await endRun();
      addIds(nth, part.ids, false);
    } else if (part.units) {
      for (const unit of part.units) {
        if (unit.ids) {
          await endRun();
          addIds(nth, unit.ids, true);
        } else run.push({ part: nth, text: unit.text });
      }
    } else run.push({ part: nth, text: part.text });
  }
  await endRun();
  return result;
}

/**
 * Returns how many tokens of a prompt are probably in the cache: the longest beginning that it has in common with an earlier
 * prompt, and generated tokens that follow a whole earlier prompt.
 */
export function cachedTokens(
  prompt: Pick<ExactTokens, "ids" | "isGenerated">,
  earlier: readonly (readonly number[])[],
): number {
  let longest = 0;
  for (const ids of earlier) {
    let n = commonLength(prompt.ids, ids);
    if (n === ids.length) while (n < prompt.ids.length && prompt.isGenerated[n]) n += 1;
    longest = Math.max(longest, n);
  }
  return longest;
}

/** Returns the tokens that a change of a part recomputes: its own, and all after it. */
export function tokensFrom(nTokens: readonly number[], part: number): number {
  return nTokens.slice(part).reduce((sum, n) => sum + n, 0);
}

/** Returns the length of the longest common beginning. */
export function commonLength(one: readonly number[], other: readonly number[]): number {
  const end = Math.min(one.length, other.length);
  let n = 0;
  while (n < end && one[n] === other[n]) n += 1;
  return n;
}

/** Returns blocks that each end with a line break. */
function lines(front: readonly Block[]): Part[] {
  return front.map(({ kind, index, text, nTokens, ids }) => ({
    kind,
    ...(index !== undefined && { index }),
    text: ids || endsLine(text) ? text : `${text}\n`,
    nTokens,
    ...(ids && { ids }),
  }));
}

/** Returns the index of the first unit that is sent. */
function firstUnit(path: PathText, room: number, limit: number): number {
  const { units } = path;
  let earliest = units.length;
  for (let left = room; earliest > 0; earliest -= 1) {
    left -= units[earliest - 1]?.nTokens ?? 0;
    if (left < 0) break;
  }
  if (earliest === 0 && path.nCharactersBefore === 0) return 0;
  const starts = offsets(path);
  const step = Math.max(MIN_STEP, Math.floor((limit * CHARACTERS_PER_TOKEN) / CUT_STEPS));
  const target = Math.ceil((starts[earliest] ?? 0) / step) * step;
  let from = earliest;
  while (from < units.length && (starts[from] ?? 0) < target) from += 1;
  // A text of few long units may have no border after the target.
  if (from >= units.length) from = earliest;
  const end = (starts[from] ?? 0) + step;
  for (const wanted of [BORDER.line, BORDER.sentence, BORDER.word]) {
    for (let index = from; index < units.length && (starts[index] ?? 0) <= end; index += 1) {
      if (border(units, index) >= wanted) return index;
    }
  }
  return from;
}

/** Returns the index of the unit before which a block is inserted. */
function position(path: PathText, starts: readonly number[], first: number, { depth, unit }: Depth): number {
  const { units } = path;
  if (depth === 0) return units.length;
  if (unit === "lines") {
    let left = depth;
    for (let index = units.length - 1; index > first; index -= 1) {
      if (border(units, index) === BORDER.line) left -= 1;
      if (left === 0) return index;
    }
    return first;
  }
  let deepest = units.length;
  for (let left = depth; deepest > first && left > 0; deepest -= 1) left -= units[deepest - 1]?.nTokens ?? 0;
  const step = Math.max(MIN_STEP, Math.floor((depth * CHARACTERS_PER_TOKEN) / DEPTH_STEPS));
  const target = Math.floor((starts[deepest] ?? 0) / step) * step;
  let to = deepest;
  while (to > first && (starts[to] ?? 0) > target) to -= 1;
  const end = (starts[to] ?? 0) - step;
  for (const wanted of [BORDER.line, BORDER.sentence, BORDER.word]) {
    for (let index = to; index > first && (starts[index] ?? 0) >= end; index -= 1) {
      if (border(units, index) >= wanted) return index;
    }
  }
  return to > first && (starts[first] ?? 0) < end ? to : first;
}

/** Returns the kind of border before a unit. */
function border(units: readonly Unit[], index: number): Border {
  const before = units[index - 1]?.text ?? "";
  const after = units[index]?.text ?? "";
  if (index === 0 || endsLine(before)) return BORDER.line;
  const end = before.trimEnd();
  // A full stop may be in a token of its own, after which a quotation mark follows in another.
  const context = /^["'”’»)\]]*$/.test(end) ? (units[index - 2]?.text ?? "").trimEnd() + end : end;
  const isSpaced = /^\s/.test(after) || before !== end;
  if (/[。！？]["'”’»)\]」』]*$/.test(context) || (isSpaced && /[.!?…]["'”’»)\]]*$/.test(context))) return BORDER.sentence;
  return isSpaced ? BORDER.word : BORDER.none;
}

/** Returns the offset of each unit from the beginning of the path, and the offset of the end. */
function offsets(path: PathText): number[] {
  let offset = path.nCharactersBefore;
  const starts = path.units.map((unit) => {
    const start = offset;
    offset += unit.text.length;
    return start;
  });
  return [...starts, offset];
}

function endsLine(text: string): boolean {
  return /\n[^\S\n]*$/.test(text);
}

function total(units: readonly { nTokens: number }[]): number {
  return units.reduce((sum, unit) => sum + unit.nTokens, 0);
}

interface Position {
  codePoints: number;
  /** In UTF-16. */
  offset: number;
  /** In UTF-8. */
  nBytes: number;
}

/** Returns the position after a number of code points. */
function advance(text: string, from: Position, codePoints: number): Position {
  let { offset, nBytes } = from;
  for (let n = from.codePoints; n < codePoints && offset < text.length; n += 1) {
    const code = text.codePointAt(offset) ?? 0;
    offset += code > 0xffff ? 2 : 1;
    nBytes += code > 0xffff ? 4 : code > 0x7ff ? 3 : code > 0x7f ? 2 : 1;
  }
  return { codePoints: Math.max(codePoints, from.codePoints), offset, nBytes };
}

function isLowSurrogate(code: number): boolean {
  return code >= 0xdc00 && code <= 0xdfff;
}
