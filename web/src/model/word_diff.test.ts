import { describe, expect, it } from "vitest";
import { type DiffPart, wordDiff, words } from "./word_diff";

const joined = (parts: readonly DiffPart[], side: "first" | "second") => parts.map((part) => part[side]).join("");
const changes = (first: string, second: string) =>
  wordDiff(first, second)
    .filter(({ isEqual }) => !isEqual)
    .map((part) => [part.first, part.second]);

describe("words", () => {
  it("keeps every character", () => {
    const text = "The fox’s 3 friends,\n\nO'Brien — été\t🦊\u0301!";
    expect(words(text).join("")).toBe(text);
    expect(words("The fox’s den.")).toEqual(["The", " ", "fox’s", " ", "den", "."]);
  });
});

describe("wordDiff", () => {
  it("finds nothing in equal texts", () => {
    expect(wordDiff("The fox.", "The fox.")).toEqual([{ isEqual: true, first: "The fox.", second: "The fox." }]);
    expect(wordDiff("", "")).toEqual([]);
  });

  it("finds words that were added, removed and replaced", () => {
    expect(changes("The old fox slept.", "The fox slept.")).toEqual([["old ", ""]]);
    expect(changes("The fox slept.", "The old fox slept.")).toEqual([["", "old "]]);
    expect(changes("The fox slept well.", "The owl slept well.")).toEqual([["fox", "owl"]]);
  });

  it("joins changes between which only spaces or few words are equal", () => {
    expect(changes("He saw a red barn and ran away.", "She heard a bell ring and hid there.")).toEqual([
      ["He saw", "She heard"],
      ["red barn", "bell ring"],
      ["ran away", "hid there"],
    ]);
    const first = "A great giant slept there, and beside him was the harvest moon";
    const second = "So he worked every day, carrying water and sweeping floors";
    expect(changes(first, second)).toEqual([[first, second]]);
  });

  it("finds a changed paragraph in a long text", () => {
    const paragraph = (n: number) => Array.from({ length: 40 }, (_, word) => `word${n}x${word}`).join(" ");
    const first = Array.from({ length: 200 }, (_, n) => paragraph(n)).join("\n");
    const second = first.replace(paragraph(100), "Something else happened here");
    expect(changes(first, second)).toEqual([[paragraph(100), "Something else happened here"]]);
  });

  it("finds common passages of texts that differ in most words", () => {
    const part = (name: string, n: number) => Array.from({ length: n }, (_, nth) => `${name}${nth}`).join(" ");
    const common = "the silver lantern swung over the quiet harbour at midnight";
    const first = `${part("a", 3000)} ${common} ${part("b", 3000)}`;
    const second = `${part("c", 3000)} ${common} ${part("d", 3000)}`;
    expect(wordDiff(first, second).some(({ isEqual, first }) => isEqual && first.includes(common))).toBe(true);
  });

  it("returns parts that join to both texts and alternate", () => {
    let seed = 11;
    const random = (n: number) => (seed = (seed * 48271) % 2147483647) % n;
    const text = (n: number) => Array.from({ length: n }, () => ["a", "b", "c", " ", "\n", "."][random(6)]).join("");
    for (let round = 0; round < 100; round += 1) {
      const [first, second] = [text(random(60)), text(random(60))];
      const parts = wordDiff(first, second);
      const isAlternating = parts.every(
        (part, nth) => part.isEqual === (part.first === part.second) && part.isEqual !== parts[nth - 1]?.isEqual,
      );
      expect([joined(parts, "first"), joined(parts, "second"), isAlternating]).toEqual([first, second, true]);
    }
  });

  it("compares two texts of 20,000 words", () => {
    let seed = 5;
    const random = (n: number) => (seed = (seed * 48271) % 2147483647) % n;
    const text = () => Array.from({ length: 20_000 }, () => `w${random(2000)}`).join(" ");
    const [first, second] = [text(), text()];
    expect(joined(wordDiff(first, second), "second")).toBe(second);
  });
});
