/**
 * Positions in texts: the server counts Unicode code points ("characters"), JavaScript counts UTF-16 units ("offsets").
 */

const ASTRAL = /[\ud800-\udbff][\udc00-\udfff]/g;

/** Returns the length of a text in code points. */
export function countCharacters(text: string): number {
  return text.length - (text.match(ASTRAL)?.length ?? 0);
}

/** Returns the number of code points before an offset. An offset inside a pair counts as the beginning of the pair. */
export function characterOfOffset(text: string, offset: number): number {
  const isInside = isLow(text, offset) && isHigh(text, offset - 1);
  return countCharacters(text.slice(0, isInside ? offset - 1 : offset));
}

/** Returns the offset at which the code point with a number begins; the length of the text if it has no more. */
export function offsetOfCharacter(text: string, character: number): number {
  let offset = 0;
  for (let passed = 0; passed < character && offset < text.length; passed++) {
    offset += isHigh(text, offset) && isLow(text, offset + 1) ? 2 : 1;
  }
  return offset;
}

function isHigh(text: string, offset: number): boolean {
  const unit = text.charCodeAt(offset);
  return unit >= 0xd800 && unit < 0xdc00;
}

function isLow(text: string, offset: number): boolean {
  const unit = text.charCodeAt(offset);
  return unit >= 0xdc00 && unit < 0xe000;
}
