import { flushSync } from "svelte";
import { describe, expect, it } from "vitest";
import type { NodeRecord, TokenRecord, TokensReport, WrittenText } from "../api/types";
import { TokenStore } from "./tokens.svelte";
import { bytesOf } from "./visible_text";

function record(id: number, text: string, more: Partial<NodeRecord> = {}): NodeRecord {
  return { id, text, version: 1, state: "done", model: "m", ...more } as NodeRecord;
}

function report(pieces: readonly (string | number[])[], isCurrent = true): TokensReport {
  let end = 0;
  const tokens = pieces.map((piece, id): TokenRecord => {
    const bytes = typeof piece === "string" ? bytesOf(piece) : piece;
    end += typeof piece === "string" ? [...piece].length : 0;
    const alternatives = [{ id: id + 100, text: "x", bytes: [120], logprob: -2 }];
    return { id, text: "", bytes, end, logprob: -id, alternatives };
  });
  return { model: "m", is_current: isCurrent, tokens };
}

/** A document and a server with answers that the test gives. */
function setUp(nodes: NodeRecord[], answer: () => TokensReport | Promise<TokensReport>) {
  const records = new Map(nodes.map((node) => [node.id, node]));
  let listener: (written: readonly WrittenText[]) => void = () => {};
  const document = {
    id: "d",
    structureVersion: 0,
    node: (id: number) => records.get(id),
    onTokens: (added: typeof listener) => ((listener = added), () => {}),
  };
  let nRequests = 0;
  const client = { tokens: async () => (nRequests++, answer()) };
  const store = new TokenStore(document, client);
  flushSync();
  return { store, records, write: (...written: WrittenText[]) => listener(written), requests: () => nRequests };
}

describe("TokenStore", () => {
  it("reads tokens once for each text", async () => {
    const { store, records, requests } = setUp([record(1, "a fox")], () => report(["a", " fox"]));
    await store.load(1);
    store.request(1);
    expect(requests()).toBe(1);
    expect(store.get(1)?.tokens.map(({ from, to }) => [from, to])).toEqual([
      [0, 1],
      [1, 5],
    ]);
    expect(store.get(1)?.alternatives(1)?.[0]?.id).toBe(101);
    expect(store.stats(1)).toEqual({ n: 2, logprobSum: -1, isComplete: true });
    records.set(1, record(1, "a fox", { version: 2 }));
    expect(store.stats(1)).toBeNull();
    store.request(1);
    await store.load(1);
    expect(requests()).toBe(2);
  });

  it("requests nothing for text that was written by hand", () => {
    const { store, requests } = setUp([record(1, "a", { model: null })], () => report([]));
    store.request(1);
    expect(requests()).toBe(0);
  });

  it("collects tokens of running nodes from events", () => {
    const { store, write, requests } = setUp([record(1, "", { state: "running" })], () => report([]));
    write({ node: 1, start: 0, text: " a", tokens: [{ id: 5, n_bytes: 2, logprob: -1 }] });
    write({
      node: 1,
      start: 2,
      text: "🦊",
      tokens: [
        { id: 6, n_bytes: 1, logprob: -2 },
        { id: 7, n_bytes: 3, logprob: null },
      ],
    });
    store.request(1);
    expect(requests()).toBe(0);
    expect(store.get(1)?.tokens.map(({ id, from, to }) => [id, from, to])).toEqual([
      [5, 0, 2],
      [6, 2, 4],
      [7, 2, 4],
    ]);
    expect(store.stats(1)).toEqual({ n: 2, logprobSum: -3, isComplete: true });
  });

  it("adds alternatives to the tokens of a running node", async () => {
    const { store, write } = setUp([record(1, "", { state: "running" })], () => report([" a"]));
    write({ node: 1, start: 0, text: " a", tokens: [{ id: 0, n_bytes: 2, logprob: -1 }] });
    expect(store.get(1)?.alternatives(0)).toBeNull();
    await store.withAlternatives(1, 0);
    expect(store.get(1)?.alternatives(0)?.[0]?.id).toBe(100);
    write({ node: 1, start: 2, text: " b", tokens: [{ id: 1, n_bytes: 2, logprob: -1 }] });
    expect(store.get(1)?.length).toBe(2);
    expect(store.get(1)?.alternatives(1)).toBeNull();
  });

  it("reads the tokens of a running node whose beginning it missed", async () => {
    const { store, write, requests } = setUp([record(1, "a b", { state: "running" })], () => report(["a", " b"]));
    write({ node: 1, start: 1, text: " b", tokens: [{ id: 1, n_bytes: 2, logprob: -1 }] });
    expect(store.get(1)).toBeNull();
    expect(store.stats(1)).toEqual({ n: 1, logprobSum: -1, isComplete: false });
    store.request(1);
    await store.load(1);
    expect(requests()).toBe(1);
    expect(store.get(1)?.length).toBe(2);
  });

  it("returns the bytes of tokens inside a character", async () => {
    const fox = bytesOf("🦊");
    const { store } = setUp([record(1, "é🦊")], () => report(["é", fox.slice(0, 1), fox.slice(1, 3), fox.slice(3)]));
    const tokens = await store.load(1);
    expect(tokens?.bytes(0, 1)).toEqual(bytesOf("é"));
    expect(tokens?.bytes(1, 2)).toEqual(fox.slice(0, 1));
    expect(tokens?.bytes(2, 4)).toEqual(fox.slice(1));
    expect(tokens?.bytes(1, 1)).toEqual([]);
  });

  it("tries again only later after a failure", async () => {
    const { store, requests } = setUp([record(1, "a")], () => Promise.reject(new Error("lost")));
    store.request(1);
    await expect(store.load(1)).rejects.toThrow("lost");
    await Promise.resolve();
    store.request(1);
    expect(requests()).toBe(1);
  });
});
