/** Tokens in words, for screen readers. */

import { glyphs } from "../model/visible_text";
import { texts } from "../texts";

export function spokenToken(bytes: readonly number[], id: number | null): string {
  const parts = glyphs(bytes).map(({ kind, shown }) => {
    if (kind === "space") return texts.tokens.space;
    if (kind === "break") return texts.tokens.lineBreak;
    return kind === "bytes" ? texts.tokens.bytes(shown) : shown;
  });
  if (parts.length > 0) return parts.join(" ");
  return id === null ? texts.tokens.noText : texts.tokens.spokenControl(id);
}
