import { describe, expect, it } from "vitest";
import { bytesOf, glyphs, isWhole } from "./visible_text";

const shown = (text: string) =>
  glyphs(bytesOf(text))
    .map(({ shown }) => shown)
    .join("");

describe("glyphs", () => {
  it("makes spaces and line breaks visible", () => {
    expect(glyphs(bytesOf(" fox\n\t"))).toEqual([
      { kind: "space", shown: "␣" },
      { kind: "text", shown: "fox" },
      { kind: "break", shown: "↵" },
      { kind: "control", shown: "⇥" },
    ]);
  });

  it.each([
    ["\u0000", "␀"],
    ["\u001b", "␛"],
    ["\u007f", "␡"],
    ["\u00a0", "U+00A0"],
    ["\u202e", "U+202E"],
    ["\u200d", "U+200D"],
    ["\ufe0f", "U+FE0F"],
    ["\u{e0041}", "U+E0041"],
  ])("makes control character %j visible", (text, expected) => {
    expect(shown(text)).toBe(expected);
  });

  it("shows a mark without a letter on a circle", () => {
    expect(shown("\u0301")).toBe("\u25cc\u0301");
  });

  it("shows bytes until a character is whole", () => {
    const fox = bytesOf("🦊");
    expect(glyphs(fox.slice(0, 2))).toEqual([{ kind: "bytes", shown: "F0 9F" }]);
    expect(glyphs(fox.slice(2))).toEqual([{ kind: "bytes", shown: "A6 8A" }]);
    expect(glyphs([...bytesOf("a"), ...fox.slice(0, 1)])).toEqual([
      { kind: "text", shown: "a" },
      { kind: "bytes", shown: "F0" },
    ]);
    expect(glyphs(fox)).toEqual([{ kind: "text", shown: "🦊" }]);
  });

  it("shows invalid bytes", () => {
    expect(glyphs([0xff, 0xc0, 0x80, 0x41])).toEqual([
      { kind: "bytes", shown: "FF C0 80" },
      { kind: "text", shown: "A" },
    ]);
  });
});

describe("isWhole", () => {
  it("is false while the last character is incomplete", () => {
    const fox = bytesOf("a🦊");
    expect([1, 2, 3, 4, 5].map((n) => isWhole(fox.slice(0, n)))).toEqual([true, false, false, false, true]);
    expect(isWhole(bytesOf("é").slice(0, 1))).toBe(false);
    expect(isWhole([])).toBe(true);
    expect(isWhole([0x80, 0x80, 0x80, 0x80])).toBe(true);
  });
});
