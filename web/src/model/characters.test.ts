import { expect, it } from "vitest";
import { characterOfOffset, countCharacters, offsetOfCharacter } from "./characters";

const TEXT = "a🦊bé🏔️";

it("counts code points", () => {
  expect(countCharacters(TEXT)).toBe([...TEXT].length);
});

it("converts between code points and UTF-16 units", () => {
  let offset = 0;
  for (const [character, symbol] of [...TEXT].entries()) {
    expect(offsetOfCharacter(TEXT, character)).toBe(offset);
    expect(characterOfOffset(TEXT, offset)).toBe(character);
    offset += symbol.length;
  }
  expect(offsetOfCharacter(TEXT, 99)).toBe(TEXT.length);
});

it("takes an offset inside a pair for its beginning", () => {
  expect(characterOfOffset(TEXT, 2)).toBe(1);
});
