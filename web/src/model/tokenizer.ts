/** Tokens of texts, as the server's model has them. Results are cached, so that only changed texts are sent. */

import type { TokenPiece, TokenizeRequest } from "../api/types";
import type { TextToken } from "./context";

export interface TokenizeOptions {
  /** True for the beginning of a prompt, to which the vocabulary may add a token. */
  isFirst: boolean;
  /** True if names of control tokens are these tokens. */
  parsesSpecial?: boolean;
}

/** Maximum length of the cached texts, in characters. */
const MAX_CACHED = 4_000_000;

/** A text before a continuation, after which no vocabulary adds a space. */
const BEFORE = "\n";

const encoder = new TextEncoder();

export class Tokenizer {
  readonly #send: (request: TokenizeRequest) => Promise<readonly TokenPiece[]>;
  readonly #cache = new Map<string, Promise<readonly TextToken[]>>();
  #nCached = 0;
  #before: Promise<readonly TokenPiece[] | null> | null = null;

  constructor(send: (request: TokenizeRequest) => Promise<readonly TokenPiece[]>) {
    this.#send = send;
  }

  /** Forgets all tokens, as after a change of the model. */
  clear(): void {
    this.#cache.clear();
    this.#nCached = 0;
    this.#before = null;
  }

  /** Returns the tokens of a text of a prompt. */
  async tokens(text: string, { isFirst, parsesSpecial = false }: TokenizeOptions): Promise<readonly TextToken[]> {
    if (!text && !isFirst) return [];
    const key = `${isFirst ? "f" : "c"}${parsesSpecial ? "s" : "t"}${text}`;
    const cached = this.#cache.get(key);
    if (cached) {
      // The order of the map is that of the last use.
      this.#cache.delete(key);
      this.#cache.set(key, cached);
      return cached;
    }
    const tokens = isFirst ? this.#first(text, parsesSpecial) : this.#continued(text, parsesSpecial);
    this.#cache.set(key, tokens);
    this.#nCached += key.length;
    this.#evict();
    try {
      return await tokens;
    } catch (error) {
      if (this.#cache.get(key) === tokens) this.#remove(key);
      throw error;
    }
  }

  async count(text: string): Promise<number> {
    return (await this.tokens(text, { isFirst: false })).length;
  }

  async #first(text: string, parse_special: boolean): Promise<readonly TextToken[]> {
    return ends(text, await this.#send({ content: text, add_special: true, parse_special, with_pieces: true }));
  }

  async #continued(text: string, parse_special: boolean): Promise<readonly TextToken[]> {
    const options = { add_special: false, parse_special, with_pieces: true } as const;
    this.#before ??= this.#tokensBefore();
    const before = await this.#before;
    if (before) {
      const all = await this.#send({ ...options, content: BEFORE + text });
      if (before.every(({ id }, nth) => all[nth]?.id === id)) return ends(text, all.slice(before.length));
    }
    return ends(text, await this.#send({ ...options, content: text }));
  }

  /** Returns the tokens of a line break if the vocabulary begins texts with a space, which a continuation does not have. */
  async #tokensBefore(): Promise<readonly TokenPiece[] | null> {
    const tokens = await this.#send({ content: BEFORE, add_special: false, parse_special: false, with_pieces: true });
    return bytesOf(tokens).length > BEFORE.length ? tokens : null;
  }

  #evict(): void {
    for (const key of this.#cache.keys()) {
      if (this.#nCached <= MAX_CACHED || this.#cache.size <= 1) return;
      this.#remove(key);
    }
  }

  #remove(key: string): void {
    if (this.#cache.delete(key)) this.#nCached -= key.length;
  }
}

/**
 * Returns the ends of tokens in their text. Tokens that the vocabulary adds have no length, and a space that it adds does not count.
 */
export function ends(text: string, tokens: readonly TokenPiece[]): TextToken[] {
  const bytes = encoder.encode(text);
  let nBytes = 0;
  let offset = 0;
  let nWhole = 0;
  return tokens.map((token, nth) => {
    let piece = bytesOf([token]);
    if (nBytes === 0 && !startsWith(bytes, piece, 0)) {
      const rest = piece[0] === 0x20 ? piece.slice(1) : null;
      // A token that begins every prompt is not part of the text.
      piece = rest && startsWith(bytes, rest, 0) ? rest : tokens.length > nth + 1 ? [] : piece;
    }
    nBytes = Math.min(nBytes + piece.length, bytes.length);
    while (nWhole < nBytes) {
      const length = utf8Length(bytes[nWhole] ?? 0);
      if (nWhole + length > nBytes) break;
      nWhole += length;
      offset += length === 4 ? 2 : 1;
    }
    return { id: token.id, end: offset };
  });
}

function bytesOf(tokens: readonly TokenPiece[]): number[] {
  return tokens.flatMap(({ piece }) => (typeof piece === "string" ? [...encoder.encode(piece)] : [...piece]));
}

function startsWith(bytes: Uint8Array, piece: readonly number[], at: number): boolean {
  return piece.every((byte, nth) => bytes[at + nth] === byte);
}

/** Returns the length of a character from its first byte. */
function utf8Length(byte: number): number {
  return byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
}
