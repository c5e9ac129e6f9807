/**
 * Places of tokens in a text. Tokens have bytes of UTF-8, the editor counts UTF-16, the server code points; tokens may end
 * inside a character. No I/O here.
 */

/** A token of a node, or a part of its text without known tokens. Offsets are in UTF-16. */
export interface PlacedToken {
  /** Null for text without known tokens. */
  id: number | null;
  /** Beginning of the character in which the token begins. */
  from: number;
  /** End of the character in which the token ends; `from` for a token without text. */
  to: number;
  /** Bytes of the character at `from` that belong to earlier tokens. */
  nSkipped: number;
  /** Length in UTF-8. */
  nBytes: number;
  /** Null if it is unknown. */
  logprob: number | null;
}

/** Tokens that share characters, so that none of them can be shown alone. */
export interface TokenGroup {
  from: number;
  to: number;
  /** Index of the first token. */
  first: number;
  /** Index after the last token. */
  end: number;
  /** Log-probability of all together; null if one is unknown. */
  logprob: number | null;
}

/** Tokens before a part of a text that are read too, since they may share characters with it. */
const MAX_GROUP = 16;

/** Places tokens of a text that may still grow. */
export class TokenPlacer {
  /** Bytes of the tokens so far. */
  #nBytes = 0;
  /** Bytes of the text before `#offset`. */
  #nWhole = 0;
  /** Offset of the last character that begins at or before the end of the tokens. */
  #offset = 0;

  /** Returns the next token. `text` must have the text of all tokens. */
  add(text: string, nBytes: number, id: number | null, logprob: number | null): PlacedToken {
    this.#advance(text);
    const from = this.#offset;
    const nSkipped = this.#nBytes - this.#nWhole;
    this.#nBytes += nBytes;
    this.#advance(text);
    const isInside = nBytes > 0 && this.#nBytes > this.#nWhole && this.#offset < text.length;
    const to = nBytes === 0 ? from : isInside ? this.#offset + width(text, this.#offset) : this.#offset;
    return { id, from, to, nSkipped, nBytes, logprob };
  }

  /** Moves to the character in which the tokens end. */
  #advance(text: string): void {
    while (this.#offset < text.length) {
      const length = utf8Length(text.codePointAt(this.#offset) ?? 0);
      if (this.#nWhole + length > this.#nBytes) return;
      this.#nWhole += length;
      this.#offset += width(text, this.#offset);
    }
  }
}

/**
 * Returns the tokens of a part of a text in groups that do not overlap. Tokens without text belong to the group after them.
 *
 * @param from Offset in the text, and `to` another one: groups between them are returned, and few around them.
 */
export function tokenGroups(text: string, tokens: readonly PlacedToken[], from = 0, to = Infinity): TokenGroup[] {
  const groups: TokenGroup[] = [];
  const start = Math.max(0, firstAfter(tokens, from) - MAX_GROUP);
  let group: TokenGroup | null = null;
  for (let index = start; index < tokens.length; index += 1) {
    const token = tokens[index]!;
    if (token.from > to && !joins(text, token.from)) break;
    // A token that begins before the end of the last one shares a character with it.
    if (group && (token.from < group.to || group.to === group.from || joins(text, group.to))) {
      group.to = Math.max(group.to, token.to);
      group.end = index + 1;
      group.logprob = sum(group.logprob, token);
      continue;
    }
    group = { from: token.from, to: token.to, first: index, end: index + 1, logprob: sum(0, token) };
    groups.push(group);
  }
  return groups;
}

/** Returns the index of the token at an offset: the last that begins there or before, or null if there is none. */
export function tokenAt(tokens: readonly PlacedToken[], offset: number): number | null {
  // Of several tokens that begin in one character, the first is the one to inspect.
  let index = firstAfter(tokens, offset) - 1;
  while (index >= 0 && isEmpty(tokens[index])) index -= 1;
  while (index > 0 && tokens[index - 1]?.from === tokens[index]?.from && !isEmpty(tokens[index - 1])) index -= 1;
  const token = tokens[index];
  return token && offset < token.to ? index : null;
}

/** Where branches begin: after `offset` in the text, with tokens before what they append or generate. */
export interface ForkPoint {
  offset: number;
  before: number[];
}

/**
 * Returns where branches begin that have another token in place of one. Tokens of the same character and tokens without text
 * before it are appended again, since texts are cut between characters. Null if one of these is unknown.
 */
export function forkBefore(tokens: readonly PlacedToken[], index: number): ForkPoint | null {
  let first = index;
  const before: number[] = [];
  for (; first > 0; first -= 1) {
    const previous = tokens[first - 1]!;
    if (previous.to <= tokens[first]!.from && previous.nBytes > 0) break;
    if (previous.id === null) return null;
    before.unshift(previous.id);
  }
  return { offset: tokens[first]!.from, before };
}

/** Returns where branches begin that keep a token. Null if it ends inside a character. */
export function forkAfter(tokens: readonly PlacedToken[], index: number): ForkPoint | null {
  const token = tokens[index]!;
  if (token.nBytes === 0) {
    const fork = forkBefore(tokens, index);
    return fork === null || token.id === null ? null : { ...fork, before: [...fork.before, token.id] };
  }
  const next = tokens.slice(index + 1).find(({ nBytes }) => nBytes > 0);
  return next !== undefined && next.from < token.to ? null : { offset: token.to, before: [] };
}

/** Returns the index of the first token that begins after an offset. */
function firstAfter(tokens: readonly PlacedToken[], offset: number): number {
  let low = 0;
  let high = tokens.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tokens[middle]!.from <= offset) low = middle + 1;
    else high = middle;
  }
  return low;
}

function isEmpty(token: PlacedToken | undefined): boolean {
  return token !== undefined && token.nBytes === 0;
}

/** True if the character at an offset is shown together with the one before it. */
function joins(text: string, offset: number): boolean {
  if (offset === 0 || offset >= text.length) return false;
  const code = text.codePointAt(offset) ?? 0;
  // Latin, Greek and Cyrillic letters never join; this keeps long texts fast.
  if (code < 0x300 || (code > 0x36f && code < 0x483)) return text.charCodeAt(offset - 1) === 0x200d;
  const after = String.fromCodePoint(code);
  const before = text.slice(Math.max(0, offset - 2), offset);
  if (/^[\p{M}\u200d\u{1f3fb}-\u{1f3ff}]/u.test(after) || /\u200d$/u.test(before)) return true;
  return /^[\u{1f1e6}-\u{1f1ff}]/u.test(after) && flagsBefore(text, offset) % 2 === 1;
}

/** Returns the number of regional indicators directly before an offset. Two of them are a flag. */
function flagsBefore(text: string, offset: number): number {
  let n = 0;
  for (let at = offset - 2; at >= 0; at -= 2) {
    const code = text.codePointAt(at) ?? 0;
    if (code < 0x1f1e6 || code > 0x1f1ff) break;
    n += 1;
  }
  return n;
}

function sum(logprob: number | null, token: PlacedToken): number | null {
  // A control token has no text that a colour could mark.
  if (token.nBytes === 0) return logprob;
  return logprob === null || token.logprob === null ? null : logprob + token.logprob;
}

function width(text: string, offset: number): number {
  return (text.codePointAt(offset) ?? 0) > 0xffff ? 2 : 1;
}

function utf8Length(code: number): number {
  return code > 0xffff ? 4 : code > 0x7ff ? 3 : code > 0x7f ? 2 : 1;
}
