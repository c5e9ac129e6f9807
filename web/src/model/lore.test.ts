import { describe, expect, it } from "vitest";
import { activate, hasKey, inPromptOrder, invalidKeys, matcher, matches, scannedText, withinBudget } from "./lore";
import { newLoreEntry, type LoreEntry } from "./settings";

const entry = (fields: Partial<LoreEntry>): LoreEntry => ({ ...newLoreEntry(), text: "Lore.", ...fields });
const finds = (key: string, text: string, fields: Partial<LoreEntry> = {}) => hasKey([key], entry(fields), text);

describe("keywords", () => {
  it.each([
    ["fox", "The FOX slept.", true],
    ["fox", "The foxes slept.", false],
    ["fox", "A “fox”, then.", true],
    ["old fox", "The old\nfox slept.", true],
    ["Über", "eine über-Frage", true],
    ["été", "en étéà", false],
    ["狐", "白狐が来た", true],
    ["C++", "She wrote C++.", true],
    ["a.b", "axb", false],
    ["-5", "x -5", true],
    ["", "anything", false],
  ])('%s in "%s": %s', (key, text, isFound) => {
    expect(finds(key, text)).toBe(isFound);
  });

  it("match parts of words if the entry allows it", () => {
    expect(finds("fox", "The foxes slept.", { is_partial: true })).toBe(true);
  });

  it("respect case if the entry asks for it", () => {
    expect(finds("Rose", "a rose", { is_case_sensitive: true })).toBe(false);
    expect(finds("Rose", "Rose came", { is_case_sensitive: true })).toBe(true);
  });
});

describe("regular expressions", () => {
  it("match as written", () => {
    expect(finds("/drag(on|ons)\\b/i", "Two DRAGONS")).toBe(true);
    expect(finds("/dragon/", "Dragon")).toBe(false);
    expect(matcher("/a/g", entry({}))).toEqual({ source: "a", flags: "", isOwn: true });
  });

  it("do not match and are reported if they are invalid", () => {
    expect(finds("/(/", "(")).toBe(false);
    expect(invalidKeys(entry({ keys: ["/(/", "/a/q", "fine"] })).map(({ key }) => key)).toEqual(["/(/", "/a/q"]);
  });
});

describe("activation", () => {
  it("needs a key and, if there are any, a secondary key", () => {
    const both = entry({ keys: ["fox"], secondary_keys: ["forest"] });
    expect(activate([both], "A fox in town.")[0]?.reason).toBe("no_match");
    expect(activate([both], "A fox in the forest.")[0]?.reason).toBe("matched");
  });

  it("gives the reason of each entry", () => {
    const entries = [
      entry({ is_constant: true }),
      entry({ is_enabled: false }),
      entry({ text: " " }),
      entry({ keys: ["owl"] }),
    ];
    expect(activate(entries, "A fox.").map(({ reason }) => reason)).toEqual(["constant", "disabled", "empty", "no_match"]);
  });

  it("uses the given test for each matcher", () => {
    expect(activate([entry({ keys: ["fox"] })], "A fox.", (each) => !matches(each, "fox"))[0]?.reason).toBe("no_match");
  });
});

describe("budget", () => {
  const entries = [
    entry({ name: "low", is_constant: false, keys: ["x"], order: 1 }),
    entry({ name: "constant", is_constant: true, order: 0 }),
    entry({ name: "high", keys: ["x"], order: 200 }),
    entry({ name: "small", keys: ["x"], order: 0 }),
  ];
  const sizes: Record<string, number> = { low: 40, constant: 40, high: 40, small: 10 };

  it("keeps constant entries, then those of a higher order, and smaller ones that still fit", () => {
    const states = withinBudget(activate(entries, "x"), (each) => sizes[each.name] ?? 0, 95);
    expect(states.map(({ reason }) => reason)).toEqual(["over_budget", "constant", "matched", "matched"]);
  });

  it("leaves the order of the prompt to `order`", () => {
    expect(inPromptOrder(activate(entries, "x")).map(({ entry: { name } }) => name)).toEqual([
      "constant",
      "small",
      "low",
      "high",
    ]);
  });
});

describe("scanned text", () => {
  it("is the end of the text, from a whole character", () => {
    expect(scannedText("abcdef", 3)).toBe("def");
    expect(scannedText("a🦊b", 2)).toBe("b");
    expect(scannedText("ab", 5)).toBe("ab");
  });
});
