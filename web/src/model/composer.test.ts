import { describe, expect, it } from "vitest";
import { activate } from "./lore";
import { compose, reservedTokens, type ComposeInput, type ComposerSource, type PathNode } from "./composer";
import { newLoreEntry, readSettings } from "./settings";
import { Tokenizer } from "./tokenizer";
import type { TokenPiece } from "../api/types";

const BOS = 1;

/** One token for each word with its space, and for each line break. */
function words(text: string): TokenPiece[] {
  return [...text.matchAll(/<\w+>|\n|[^\S\n]?[^\s<]+|[^\S\n]|</g)].map(([piece]) => ({ id: 100 + piece.length, piece }));
}

class Source implements ComposerSource {
  nTokenReads: number[] = [];
  messages: unknown = null;
  /** Texts of nodes on the server, where they are longer. */
  readonly texts = new Map<number, string>();
  readonly tokenizer = new Tokenizer(async ({ content, add_special }) => [
    ...(add_special ? [{ id: BOS, piece: "<s>" }] : []),
    ...words(content),
  ]);

  constructor(readonly known: Record<number, number[]> = {}) {}

  async nodeTokens(node: PathNode) {
    this.nTokenReads.push(node.id);
    const ids = this.known[node.id];
    let end = 0;
    const text = this.texts.get(node.id) ?? node.text;
    const tokens =
      ids && words(text).map(({ piece }, nth) => ({ id: ids[nth] ?? 0, nBytes: piece.length, end: (end += piece.length) }));
    return { text, tokens: tokens ?? null };
  }

  async renderTemplate(messages: readonly { role: string; content: string }[]) {
    this.messages = messages;
    return `${messages.map(({ role, content }) => `<${role}>${content}`).join("")}<assistant>`;
  }

  async searchLore(entries: Parameters<ComposerSource["searchLore"]>[0], text: string) {
    return { states: activate(entries, text), slow: [] };
  }
}

const node = (id: number, text: string, hasTokens = false): PathNode => ({ id, text, hasTokens });
const input = (path: PathNode[], settings: Record<string, unknown> = {}, more: Partial<ComposeInput> = {}): ComposeInput => ({
  settings: readSettings(settings),
  path,
  nContext: 200,
  nPredict: 10,
  nAppended: 0,
  ...more,
});
const kinds = (composed: { parts: { kind: string }[] }) => composed.parts.map((part) => part.kind);

describe("compose", () => {
  it("sends no prompt if there is only the text, and it fits", async () => {
    const composed = await compose(new Source({ 2: [7, 8] }), input([node(1, "Once upon"), node(2, " a fox", true)]));
    expect(composed.pieces).toBeNull();
    expect(composed.limit).toBe(190);
    expect(composed.tokens.ids).toEqual([BOS, 104, 105, 7, 8]);
    expect(composed.tokens.isGenerated).toEqual([false, false, false, true, true]);
  });

  it("puts memory and matched lore before the text, and keeps the tokens of generated nodes", async () => {
    const lore = [
      { ...newLoreEntry(), keys: ["fox"], text: "Foxes are red." },
      { ...newLoreEntry(), keys: ["owl"], text: "Owls are grey." },
    ];
    const path = [node(1, "Once upon"), node(2, " a fox", true)];
    const composed = await compose(new Source({ 2: [7, 8] }), input(path, { memory: "It is night.", lore }));
    expect(composed.pieces).toEqual(["It is night.\nFoxes are red.\nOnce upon", 7, 8]);
    expect(kinds(composed)).toEqual(["memory", "lore", "text"]);
    expect(composed.lore.map(({ reason }) => reason)).toEqual(["matched", "no_match"]);
    expect(composed.parts.map((part) => part.nTokens).reduce((sum, n) => sum + n)).toBe(composed.tokens.ids.length);
  });

  it("tokenizes nodes whose tokens are of another model", async () => {
    const composed = await compose(new Source(), input([node(1, "Once"), node(2, " a fox", true)], { memory: "M" }));
    expect(composed.pieces).toEqual(["M\nOnce a fox"]);
  });

  it("drops the oldest text, and adds the token that begins a prompt before token ids", async () => {
    const path = Array.from({ length: 30 }, (_, nth) => node(nth + 1, `Line ${nth} has seven words in it\n`, true));
    const source = new Source(Object.fromEntries(path.map((each) => [each.id, Array<number>(8).fill(each.id)])));
    const composed = await compose(source, input(path, {}, { nContext: 100 }));
    expect(composed.tokens.ids.length).toBeLessThanOrEqual(90);
    expect(composed.tokens.ids[0]).toBe(BOS);
    expect(composed.pieces?.[0]).toBe(BOS);
    expect(composed.textOut).toMatch(/^Line 0 has[^]*it\n$/);
    expect(composed.textOut + composed.parts.map((part) => part.text).join("")).toBe(path.map((each) => each.text).join(""));
    expect(new Set(source.nTokenReads).size).toBeLessThan(25);
  });

  it("reports that a memory is too long", async () => {
    const composed = await compose(new Source(), input([node(1, "word ".repeat(100))], { memory: "word ".repeat(185) }));
    expect(composed.isTooLong).toBe(true);
  });

  it("continues a text that ends before that of its tokens", async () => {
    const source = new Source({ 2: [7, 8] });
    source.texts.set(2, " a fox");
    expect((await compose(source, input([node(1, "Once"), node(2, " a", true)], { memory: "M" }))).pieces).toEqual([
      "M\nOnce",
      7,
    ]);
    expect((await compose(source, input([node(1, "Once"), node(2, " a fo", true)], { memory: "M" }))).pieces).toEqual([
      "M\nOnce",
      7,
      " fo",
    ]);
  });

  it("leaves out lore above the budget", async () => {
    const lore = [
      { ...newLoreEntry(), is_constant: true, text: "One two three." },
      { ...newLoreEntry(), is_constant: true, order: 200, text: "Four five six." },
    ];
    const composed = await compose(new Source(), input([node(1, "Text")], { lore, lore_budget: 5 }));
    expect(composed.lore.map(({ reason }) => reason)).toEqual(["over_budget", "constant"]);
    expect(composed.pieces).toEqual(["Four five six.\nText"]);
  });

  it("inserts note and lore at their depths", async () => {
    const lore = [{ ...newLoreEntry(), is_constant: true, text: "Lore.", depth: 1, unit: "lines" }];
    const settings = { lore, author_note: { text: "[Note]", depth: 0, unit: "tokens" } };
    const composed = await compose(new Source(), input([node(1, "One.\nTwo.")], settings));
    expect(composed.pieces).toEqual(["One.\nLore.\nTwo.\n[Note]\n"]);
  });

  it("writes instructions with the template of the model, with memory and lore as its system message", async () => {
    const source = new Source();
    const settings = { mode: "instruct", instruct: { system: "Be kind.", instruction: "Tell of a fox." }, memory: "Night." };
    const composed = await compose(source, input([node(1, "Once <user> more")], settings));
    expect(source.messages).toEqual([
      { role: "system", content: "Be kind.\n\nNight." },
      { role: "user", content: "Tell of a fox." },
    ]);
    expect(kinds(composed)).toEqual(["template", "memory", "template", "text"]);
    expect(composed.parts[1]?.text).toBe("Night.");
    // The template's tokens are sent as ids, so that names of control tokens in the text stay text.
    expect(composed.pieces?.slice(0, -1).every((piece) => typeof piece === "number")).toBe(true);
    expect(composed.pieces?.[0]).toBe(BOS);
    expect(composed.pieces?.at(-1)).toBe("Once <user> more");
  });
});

describe("reserved tokens", () => {
  it.each([
    [1000, 60, 60],
    [1000, 2000, 750],
    [1000, -1, 250],
    [8000, -1, 512],
  ])("of a context of %i for %i: %i", (nContext, nPredict, nReserved) => {
    expect(reservedTokens(nContext, nPredict)).toBe(nReserved);
  });
});
