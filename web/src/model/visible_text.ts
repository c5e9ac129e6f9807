/** Text of tokens with what is usually invisible: spaces, line breaks, control characters, and bytes of incomplete characters. */

export type GlyphKind = "text" | "space" | "break" | "control" | "bytes";

/** A part of a token. */
export interface Glyph {
  kind: GlyphKind;
  /** The text as it is shown. */
  shown: string;
}

const DECODER = new TextDecoder("utf-8", { fatal: true });

/** Returns the parts of a token. Bytes that are no whole character are shown as two hexadecimal digits each. */
export function glyphs(bytes: readonly number[]): Glyph[] {
  const found: Glyph[] = [];
  const add = (kind: GlyphKind, shown: string) => {
    const last = found.at(-1);
    if (last?.kind === kind && kind === "text") last.shown += shown;
    else if (last?.kind === kind && kind === "bytes") last.shown += ` ${shown}`;
    else found.push({ kind, shown });
  };
  for (let at = 0; at < bytes.length;) {
    const character = decode(bytes, at);
    if (character === null) {
      add("bytes", hex(bytes[at] ?? 0));
      at += 1;
      continue;
    }
    at += character.nBytes;
    addCharacter(character.text, add);
  }
  return found;
}

/** Returns the bytes of a text. */
export function bytesOf(text: string): number[] {
  return [...new TextEncoder().encode(text)];
}

function addCharacter(text: string, add: (kind: GlyphKind, shown: string) => void): void {
  const code = text.codePointAt(0) ?? 0;
  if (text === " ") add("space", "␣");
  else if (text === "\n") add("break", "↵");
  else if (text === "\t") add("control", "⇥");
  else if (code < 0x20) add("control", String.fromCodePoint(0x2400 + code));
  else if (code === 0x7f) add("control", "␡");
  else if (/[\p{C}\p{Z}\u{fe00}-\u{fe0f}]/u.test(text)) add("control", `U+${code.toString(16).toUpperCase().padStart(4, "0")}`);
  // A mark without a letter is shown on a circle.
  else if (/\p{M}/u.test(text)) add("text", `\u25cc${text}`);
  else add("text", text);
}

/** Returns the character at a byte, or null if the bytes there are none. */
function decode(bytes: readonly number[], at: number): { text: string; nBytes: number } | null {
  const first = bytes[at] ?? 0;
  const nBytes = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 0;
  if (nBytes === 0 || at + nBytes > bytes.length) return null;
  try {
    return { text: DECODER.decode(Uint8Array.from(bytes.slice(at, at + nBytes))), nBytes };
  } catch {
    return null;
  }
}

function hex(byte: number): string {
  return byte.toString(16).toUpperCase().padStart(2, "0");
}

/** Returns whether bytes end at the end of a character. Invalid bytes count as characters. */
export function isWhole(bytes: readonly number[]): boolean {
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back]!;
    if (byte >= 0xc0) return back >= utf8Length(byte);
    if (byte < 0x80) return true;
  }
  return true;
}

function utf8Length(first: number): number {
  return first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
}
