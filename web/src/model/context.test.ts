import { describe, expect, it } from "vitest";
import {
  cachedTokens,
  chunks,
  exactTokens,
  knownUnits,
  layOut,
  pieces,
  textUnits,
  tokensFrom,
  type Block,
  type Insert,
  type PathText,
  type TextToken,
  type Unit,
} from "./context";

/** Tokens of a test: a word with its leading space, or a line break. */
function tokenized(text: string): TextToken[] {
  return [...text.matchAll(/\n|[^\S\n]?[^\s]+|[^\S\n]/g)].map((match) => ({
    id: 1000 + ([...match[0]].reduce((sum, character) => sum * 31 + (character.codePointAt(0) ?? 0), 0) % 100_000),
    end: match.index + match[0].length,
  }));
}

const units = (text: string, node = 1): Unit[] => textUnits(node, text, tokenized(text));
const whole = (text: string): PathText => ({ units: units(text), nCharactersBefore: 0 });
const sentText = (parts: readonly { text: string }[]) => parts.map((part) => part.text).join("");
const memory = (text: string): Block => ({ kind: "memory", text, nTokens: tokenized(text).length });
const note = (text: string, depth: number, unit: "tokens" | "lines" = "tokens"): Insert => ({
  kind: "note",
  text,
  nTokens: tokenized(text).length,
  depth,
  unit,
});
const line = (n: number) => `Line ${n} has eight words and ends here.\n`;
const story = (from: number, to: number) => Array.from({ length: to - from }, (_, nth) => line(from + nth)).join("");

describe("units of known tokens", () => {
  it("keep their ids", () => {
    expect(
      knownUnits(7, "A fox", [
        { id: 1, nBytes: 1, end: 1 },
        { id: 2, nBytes: 4, end: 5 },
      ]),
    ).toEqual([
      { text: "A", nTokens: 1, ids: [1], node: 7 },
      { text: " fox", nTokens: 1, ids: [2], node: 7 },
    ]);
  });

  it("group tokens that share a character", () => {
    // "a🦊b" as a + two halves of the fox + b, where the first half comes with the a.
    expect(
      knownUnits(1, "a🦊b", [
        { id: 1, nBytes: 3, end: 1 },
        { id: 2, nBytes: 2, end: 2 },
        { id: 3, nBytes: 1, end: 3 },
      ]),
    ).toEqual([
      { text: "a🦊", nTokens: 2, ids: [1, 2], node: 1 },
      { text: "b", nTokens: 1, ids: [3], node: 1 },
    ]);
  });

  it("keep control tokens, which have no text", () => {
    expect(
      knownUnits(1, "ab", [
        { id: 1, nBytes: 1, end: 1 },
        { id: 9, nBytes: 0, end: 1 },
        { id: 2, nBytes: 1, end: 2 },
      ]).map((unit) => (typeof unit === "string" ? unit : unit.ids)),
    ).toEqual([[1], [9], [2]]);
  });

  it("leave text without known tokens as text", () => {
    expect(
      knownUnits(1, "A fox ran", [
        { id: 1, nBytes: 1, end: 1 },
        { id: null, nBytes: 4, end: 5 },
      ]),
    ).toEqual([{ text: "A", nTokens: 1, ids: [1], node: 1 }, " fox", " ran"]);
  });
});

describe("chunks", () => {
  it("join to the text, end at line breaks, and stay when text is appended", () => {
    const text = story(0, 400);
    const found = chunks(text);
    expect(found.join("")).toBe(text);
    expect(found.slice(0, -1).every((chunk) => chunk.endsWith("\n") && chunk.length <= 4000)).toBe(true);
    expect(chunks(text + "More text.").slice(0, -1)).toEqual(found.slice(0, -1));
  });

  it("do not cut a surrogate pair", () => {
    const found = chunks("🦊".repeat(10), 3);
    expect(found.join("")).toBe("🦊".repeat(10));
    expect(found.every((chunk) => !/[\ud800-\udfff]/u.test(chunk))).toBe(true);
  });
});

describe("layout", () => {
  it("puts the memory on lines of its own before the text", () => {
    const { parts, nCharactersOut } = layOut([memory("The fox is old.")], whole("She slept."), [], 100);
    expect(sentText(parts)).toBe("The fox is old.\nShe slept.");
    expect(nCharactersOut).toBe(0);
  });

  it("drops the oldest text at a line border, and keeps the limit", () => {
    const path = whole(story(0, 100));
    const { parts, nTokens, nCharactersOut, isTooLong } = layOut([memory("Old.")], path, [], 300);
    expect(isTooLong).toBe(false);
    expect(nTokens).toBeLessThanOrEqual(300);
    expect(nTokens).toBeGreaterThan(200);
    expect(parts[1]?.text).toMatch(/^Line \d+ has/);
    expect(story(0, 100).slice(nCharactersOut)).toBe(parts[1]?.text);
  });

  it("drops the oldest text at a sentence border where lines are too long", () => {
    const text = Array.from({ length: 100 }, (_, n) => `Sentence ${n} has six words.`).join(" ");
    const { parts } = layOut([], whole(text), [], 120);
    expect(parts[0]?.text).toMatch(/^ Sentence \d+ has/);
  });

  it("keeps the cut where it is while a little text is added", () => {
    const cut = (n: number) => layOut([], whole(story(0, n)), [], 1000).nCharactersOut;
    const cuts = Array.from({ length: 40 }, (_, nth) => cut(200 + nth));
    expect(new Set(cuts).size).toBeLessThanOrEqual(5);
    expect(Math.max(...cuts)).toBeGreaterThan(Math.min(...cuts));
  });

  it("finds the same cut if only the end of the path is known", () => {
    const text = story(0, 300);
    const from = text.indexOf(line(100));
    const end: PathText = { units: units(text.slice(from)), nCharactersBefore: from };
    expect(layOut([], end, [], 500).nCharactersOut).toBe(layOut([], whole(text), [], 500).nCharactersOut);
  });

  it("inserts a note at least as deep as asked, at a line border", () => {
    const { parts } = layOut([], whole(story(0, 50)), [note("[Quiet.]", 60)], 1000);
    expect(parts.map((part) => part.kind)).toEqual(["text", "note", "text"]);
    expect(parts[1]?.text).toBe("[Quiet.]\n");
    expect(parts[0]?.text.endsWith("\n")).toBe(true);
    expect(parts[1]?.depth).toBeGreaterThanOrEqual(60);
    expect(parts[1]?.depth).toBeLessThan(120);
    expect(sentText(parts).replace("[Quiet.]\n", "")).toBe(story(0, 50));
  });

  it("keeps the note where it is while a little text is added", () => {
    const before = (n: number) => layOut([], whole(story(0, n)), [note("[Quiet.]", 400)], 10_000).parts[0]?.text.length;
    expect(new Set(Array.from({ length: 20 }, (_, nth) => before(200 + nth))).size).toBeLessThanOrEqual(6);
  });

  it("counts a depth in lines", () => {
    const { parts } = layOut([], whole(story(0, 50)), [note("[Quiet.]", 3, "lines")], 10_000);
    expect(parts[2]?.text).toBe(story(47, 50));
  });

  it("puts a note of depth 0 on a line of its own at the end", () => {
    const { parts } = layOut([], whole("She slept."), [note("[Quiet.]", 0)], 100);
    expect(sentText(parts)).toBe("She slept.\n[Quiet.]\n");
  });

  it("puts blocks that are deeper than the text before it", () => {
    const { parts } = layOut([memory("M")], whole("She slept."), [note("[Quiet.]", 500)], 1000);
    expect(sentText(parts)).toBe("M\n[Quiet.]\nShe slept.");
  });

  it("puts lore before a note at the same place", () => {
    const lore: Insert = { kind: "lore", index: 2, text: "Lore.", nTokens: 1, depth: 0, unit: "tokens" };
    expect(layOut([], whole("Text.\n"), [note("[N]", 0), lore], 100).parts.map((part) => part.kind)).toEqual([
      "text",
      "lore",
      "note",
    ]);
  });

  it("reports that the other parts leave no space for the text", () => {
    expect(layOut([memory("word ".repeat(95))], whole(story(0, 10)), [], 100).isTooLong).toBe(true);
    expect(layOut([memory("word ".repeat(50))], whole("End."), [], 100).isTooLong).toBe(false);
  });

  it("sends all text that fits", () => {
    const text = story(0, 20);
    expect(sentText(layOut([], whole(text), [], tokenized(text).length).parts)).toBe(text);
  });
});

describe("pieces", () => {
  it("join neighbouring texts and keep token ids", () => {
    const path: PathText = {
      units: [...units("Once upon"), { text: " a fox", nTokens: 2, ids: [5, 6], node: 2 }, ...units(" ran", 3)],
      nCharactersBefore: 0,
    };
    expect(pieces(layOut([memory("M.")], path, [], 100).parts)).toEqual(["M.\nOnce upon", 5, 6, " ran"]);
  });

  it("send the ids of a template", () => {
    const { parts } = layOut([{ kind: "template", text: "<user>", nTokens: 2, ids: [8, 9] }], whole("Yes"), [], 100);
    expect(pieces(parts)).toEqual([8, 9, "Yes"]);
  });
});

describe("exact tokens", () => {
  it("are counted for each part, in the texts as they are sent", async () => {
    const path: PathText = {
      units: [...units("One two.\n"), { text: " a", nTokens: 1, ids: [5], node: 2 }],
      nCharactersBefore: 0,
    };
    const { parts } = layOut([memory("Old fox.")], path, [], 100);
    const texts: [string, boolean][] = [];
    const exact = await exactTokens(parts, async (text, isFirst) => {
      texts.push([text, isFirst]);
      return isFirst ? [{ id: 1, end: 0 }, ...tokenized(text)] : tokenized(text);
    });
    expect(texts).toEqual([["Old fox.\nOne two.\n", true]]);
    expect(exact.nTokens).toEqual([4, 4]);
    expect(exact.ids).toHaveLength(8);
    expect(exact.isGenerated).toEqual([...Array<boolean>(7).fill(false), true]);
  });

  it("mark only the first text as the beginning", async () => {
    const path: PathText = { units: [{ text: "a", nTokens: 1, ids: [5], node: 1 }, ...units(" b")], nCharactersBefore: 0 };
    const isFirst: boolean[] = [];
    await exactTokens(layOut([], path, [], 10).parts, async (text, first) => {
      isFirst.push(first);
      return tokenized(text);
    });
    expect(isFirst).toEqual([false]);
  });
});

describe("recomputed tokens", () => {
  it("begin at the first difference from earlier prompts", () => {
    const isGenerated = [false, false, false, false];
    expect(
      cachedTokens({ ids: [1, 2, 3, 4], isGenerated }, [
        [1, 2, 9],
        [1, 2, 3, 7],
      ]),
    ).toBe(3);
    expect(cachedTokens({ ids: [1, 2, 3, 4], isGenerated }, [])).toBe(0);
  });

  it("do not include tokens that were generated after an earlier prompt", () => {
    expect(cachedTokens({ ids: [1, 2, 3, 4, 5], isGenerated: [false, false, true, true, false] }, [[1, 2]])).toBe(4);
  });

  it("of a changed part are its own and all after it", () => {
    expect(tokensFrom([10, 20, 30], 1)).toBe(50);
  });
});
