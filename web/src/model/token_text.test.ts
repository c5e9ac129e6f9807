import { describe, expect, it } from "vitest";
import { forkAfter, forkBefore, type PlacedToken, TokenPlacer, tokenAt, tokenGroups } from "./token_text";
import { bytesOf } from "./visible_text";

/** Places tokens whose lengths in bytes are given. */
function placed(text: string, lengths: readonly number[], logprob: number | null = -1): PlacedToken[] {
  const placer = new TokenPlacer();
  return lengths.map((nBytes, id) => placer.add(text, nBytes, id, logprob));
}

const ranges = (tokens: readonly { from: number; to: number }[]) => tokens.map(({ from, to }) => [from, to]);

describe("TokenPlacer", () => {
  it("counts ASCII bytes as characters", () => {
    expect(ranges(placed("a fox", [1, 4]))).toEqual([
      [0, 1],
      [1, 5],
    ]);
  });

  it("converts bytes of longer characters to UTF-16", () => {
    // é has 2 bytes and 1 unit, 漢 3 and 1, 🦊 4 and 2.
    expect(ranges(placed("é漢🦊!", [2, 3, 4, 1]))).toEqual([
      [0, 1],
      [1, 2],
      [2, 4],
      [4, 5],
    ]);
  });

  it("gives tokens inside a character the whole character", () => {
    expect(ranges(placed("a🦊b", [1, 1, 2, 1, 1]))).toEqual([
      [0, 1],
      [1, 3],
      [1, 3],
      [1, 3],
      [3, 4],
    ]);
  });

  it("gives a token that ends inside a character the characters from its beginning", () => {
    expect(ranges(placed("a🦊b", [2, 4]))).toEqual([
      [0, 3],
      [1, 4],
    ]);
  });

  it("gives tokens without text an empty range", () => {
    expect(ranges(placed("ab", [1, 0, 1]))).toEqual([
      [0, 1],
      [1, 1],
      [1, 2],
    ]);
  });

  it("places tokens of a text that grows", () => {
    const placer = new TokenPlacer();
    expect(placer.add("é", 2, 1, null)).toMatchObject({ from: 0, to: 1 });
    expect(placer.add("é🦊", 4, 2, null)).toMatchObject({ from: 1, to: 3 });
    expect(placer.add("é🦊x", 1, 3, null)).toMatchObject({ from: 3, to: 4 });
  });

  it("covers any text with any lengths in order", () => {
    let seed = 7;
    const random = (n: number) => (seed = (seed * 48271) % 2147483647) % n;
    const alphabet = ["a", "é", "漢", "🦊", " ", "\n"];
    for (let round = 0; round < 100; round += 1) {
      const text = Array.from({ length: random(20) + 1 }, () => alphabet[random(alphabet.length)]).join("");
      const lengths: number[] = [];
      for (let left = bytesOf(text).length; left > 0; left -= lengths.at(-1)!) lengths.push(Math.min(random(5), left));
      const tokens = placed(text, lengths);
      const ends = tokens.map(({ to }) => to);
      const isInOrder = tokens.every(({ from, to }, nth) => from <= Math.max(0, ...ends.slice(0, nth)) && to >= from);
      const groups = tokenGroups(text, tokens);
      const covered = groups.map((group) => text.slice(group.from, group.to)).join("");
      const indices = groups.flatMap(({ first, end }) => tokens.slice(first, end).map(({ id }) => id));
      expect({ text, lengths, isInOrder, end: Math.max(...ends), covered, indices }).toEqual({
        text,
        lengths,
        isInOrder: true,
        end: text.length,
        covered: text,
        indices: tokens.map(({ id }) => id),
      });
    }
  });
});

describe("tokenGroups", () => {
  it("joins tokens that share a character, and adds their log-probabilities", () => {
    expect(tokenGroups("a🦊b", placed("a🦊b", [1, 1, 2, 1, 1]))).toEqual([
      { from: 0, to: 1, first: 0, end: 1, logprob: -1 },
      { from: 1, to: 3, first: 1, end: 4, logprob: -3 },
      { from: 3, to: 4, first: 4, end: 5, logprob: -1 },
    ]);
  });

  it("joins combining marks, joined emoji and flags with what they follow", () => {
    expect(ranges(tokenGroups("e\u0301x", placed("e\u0301x", [1, 2, 1])))).toEqual([
      [0, 2],
      [2, 3],
    ]);
    expect(ranges(tokenGroups("👩\u200d🚀", placed("👩\u200d🚀", [4, 3, 4])))).toEqual([[0, 5]]);
    expect(ranges(tokenGroups("🇫🇷🇩🇪", placed("🇫🇷🇩🇪", [4, 4, 4, 4])))).toEqual([
      [0, 4],
      [4, 8],
    ]);
  });

  it("returns the groups of a part of a long text", () => {
    const text = "ab".repeat(1000);
    const tokens = placed(
      text,
      Array.from({ length: 1000 }, () => 2),
    );
    const groups = tokenGroups(text, tokens, 1000, 1010);
    expect(groups.length).toBeLessThan(40);
    expect(groups.some(({ from }) => from <= 1000)).toBe(true);
    expect(groups.at(-1)!.to).toBeGreaterThanOrEqual(1010);
  });

  it("has no probability where one is unknown", () => {
    const placer = new TokenPlacer();
    const tokens = [placer.add("é", 1, 1, -1), placer.add("é", 1, 2, null)];
    expect(tokenGroups("é", tokens)[0]?.logprob).toBeNull();
  });
});

describe("tokenAt", () => {
  const text = "a🦊b";
  const tokens = placed(text, [1, 0, 1, 3, 1]);

  it("finds the token of a character", () => {
    expect([0, 1, 2, 3].map((offset) => tokenAt(tokens, offset))).toEqual([0, 2, 2, 4]);
  });

  it("finds none after the end and in a text without tokens", () => {
    expect(tokenAt(tokens, 4)).toBeNull();
    expect(tokenAt([], 0)).toBeNull();
  });
});

describe("forkBefore", () => {
  it("is the token itself where it begins a character", () => {
    expect(forkBefore(placed("a fox", [1, 4]), 1)).toEqual({ offset: 1, before: [] });
  });

  it("is the first token of the character, with those before the chosen one", () => {
    expect(forkBefore(placed("a🦊b", [1, 1, 2, 1, 1]), 3)).toEqual({ offset: 1, before: [1, 2] });
    expect(forkBefore(placed("a🦊b", [2, 4]), 1)).toEqual({ offset: 0, before: [0] });
  });

  it("appends tokens without text again", () => {
    expect(forkBefore(placed("ab", [1, 0, 0, 1]), 3)).toEqual({ offset: 1, before: [1, 2] });
  });

  it("is null if such a token is unknown", () => {
    const placer = new TokenPlacer();
    expect(forkBefore([placer.add("é", 1, null, null), placer.add("é", 1, 2, -1)], 1)).toBeNull();
  });
});

describe("forkAfter", () => {
  const tokens = placed("a🦊b", [1, 1, 3, 0, 1]);

  it("is the end of the token", () => {
    expect(forkAfter(tokens, 0)).toEqual({ offset: 1, before: [] });
    expect(forkAfter(tokens, 2)).toEqual({ offset: 3, before: [] });
    expect(forkAfter(tokens, 4)).toEqual({ offset: 4, before: [] });
  });

  it("is null inside a character", () => {
    expect(forkAfter(tokens, 1)).toBeNull();
  });

  it("appends a token without text", () => {
    expect(forkAfter(tokens, 3)).toEqual({ offset: 3, before: [3] });
  });
});
