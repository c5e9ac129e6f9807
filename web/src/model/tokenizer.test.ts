import { describe, expect, it } from "vitest";
import type { TokenPiece, TokenizeRequest } from "../api/types";
import { ends, Tokenizer } from "./tokenizer";

describe("ends of tokens", () => {
  it("are offsets in UTF-16", () => {
    expect(
      ends("a🦊b", [
        { id: 1, piece: "a" },
        { id: 2, piece: [0xf0, 0x9f] },
        { id: 3, piece: [0xa6, 0x8a] },
        { id: 4, piece: "b" },
      ]),
    ).toEqual([
      { id: 1, end: 1 },
      { id: 2, end: 1 },
      { id: 3, end: 3 },
      { id: 4, end: 4 },
    ]);
  });

  it("ignore a token and a space that the vocabulary adds", () => {
    expect(
      ends("Once upon", [
        { id: 0, piece: "<s>" },
        { id: 1, piece: " Once" },
        { id: 2, piece: " upon" },
      ]).map(({ end }) => end),
    ).toEqual([0, 4, 9]);
  });

  it("never exceed the text", () => {
    expect(ends("ab", [{ id: 1, piece: "abcd" }])).toEqual([{ id: 1, end: 2 }]);
  });
});

/** A server with one token for each character. */
class CharacterServer {
  readonly requests: TokenizeRequest[] = [];
  isFailing = false;

  constructor(readonly prefix = "") {}

  readonly send = async (request: TokenizeRequest): Promise<TokenPiece[]> => {
    this.requests.push(request);
    if (this.isFailing) throw new Error("offline");
    const bos = request.add_special ? [{ id: 0, piece: "<s>" }] : [];
    return [...bos, ...[...this.prefix, ...request.content].map((piece) => ({ id: piece.codePointAt(0) ?? 0, piece }))];
  };
}

describe("Tokenizer", () => {
  it("sends each text once", async () => {
    const server = new CharacterServer();
    const tokenizer = new Tokenizer(server.send);
    const [one, other] = await Promise.all([tokenizer.count("fox"), tokenizer.count("fox")]);
    expect([one, other, await tokenizer.count("fox")]).toEqual([3, 3, 3]);
    expect(server.requests.filter((request) => request.content === "fox")).toHaveLength(1);
  });

  it("tokenizes the beginning of a prompt with what the vocabulary adds", async () => {
    const tokenizer = new Tokenizer(new CharacterServer().send);
    expect((await tokenizer.tokens("ab", { isFirst: true })).map(({ id }) => id)).toEqual([0, 97, 98]);
    expect((await tokenizer.tokens("", { isFirst: true })).map(({ id }) => id)).toEqual([0]);
  });

  it("leaves out the space that the vocabulary adds to a continuation", async () => {
    const tokenizer = new Tokenizer(new CharacterServer(" ").send);
    expect(await tokenizer.tokens("ab", { isFirst: false })).toEqual([
      { id: 97, end: 1 },
      { id: 98, end: 2 },
    ]);
  });

  it("does not cache failures", async () => {
    const server = new CharacterServer();
    const tokenizer = new Tokenizer(server.send);
    await tokenizer.count("x");
    server.isFailing = true;
    await expect(tokenizer.count("fox")).rejects.toThrow("offline");
    server.isFailing = false;
    expect(await tokenizer.count("fox")).toBe(3);
  });

  it("forgets tokens of another model", async () => {
    const server = new CharacterServer();
    const tokenizer = new Tokenizer(server.send);
    await tokenizer.count("fox");
    tokenizer.clear();
    await tokenizer.count("fox");
    expect(server.requests.filter((request) => request.content === "fox")).toHaveLength(2);
  });
});
