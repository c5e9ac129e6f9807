import { afterEach, beforeEach, expect, test, vi } from "vitest";

import type { SearchHit, SearchReport } from "../api/types";
import { DocumentSearch } from "./document_search.svelte";

interface Call {
  q: string;
  after: number | undefined;
  document: string | undefined;
  signal: AbortSignal | undefined;
  answer: (report: SearchReport) => void;
  fail: (error: Error) => void;
}

class SlowClient {
  readonly calls: Call[] = [];

  search(
    q: string,
    { after, document }: { after?: number; document?: string } = {},
    signal?: AbortSignal,
  ): Promise<SearchReport> {
    return new Promise((answer, fail) => void this.calls.push({ q, after, document, signal, answer, fail }));
  }
}

const hit = (node: number): SearchHit => ({
  document: "d",
  title: "",
  node,
  field: "text",
  start: 0,
  length: 3,
  excerpt: "fox",
});

let client: SlowClient;
let search: DocumentSearch;

beforeEach(() => {
  vi.useFakeTimers();
  client = new SlowClient();
  search = new DocumentSearch(client);
});

afterEach(() => void vi.useRealTimers());

async function typed(query: string): Promise<Call> {
  search.type(query);
  await vi.advanceTimersByTimeAsync(500);
  return client.calls.at(-1) as Call;
}

test("Typing sends one request when the user pauses", async () => {
  for (const query of ["f", "fo", "fox"]) search.type(query);
  expect(search.state).toBe("searching");
  await vi.advanceTimersByTimeAsync(500);
  expect(client.calls.map((each) => each.q)).toEqual(["fox"]);
});

test("A new search cancels the one before it, whose answer is not shown", async () => {
  const first = await typed("fox");
  const second = await typed("owl");
  expect(first.signal?.aborted).toBe(true);
  second.answer({ hits: [hit(2)], next: null });
  first.answer({ hits: [hit(1)], next: null });
  await vi.runAllTimersAsync();
  expect(search.hits.map((each) => each.node)).toEqual([2]);
  expect(search.hasMore).toBe(false);
});

test("Further matches are added to the first ones", async () => {
  (await typed("fox")).answer({ hits: [hit(1)], next: 7 });
  await vi.runAllTimersAsync();
  expect(search.hasMore).toBe(true);
  void search.more();
  const call = client.calls.at(-1) as Call;
  expect(call.after).toBe(7);
  call.answer({ hits: [hit(2)], next: null });
  await vi.runAllTimersAsync();
  expect(search.hits.map((each) => each.node)).toEqual([1, 2]);
});

test("A search in one document names it", async () => {
  await typed("fox");
  search.searchIn("d");
  expect(client.calls.at(-1)).toMatchObject({ q: "fox", document: "d" });
});

test("A failed search keeps the query and the reason", async () => {
  (await typed("fox")).fail(new Error("no connection"));
  await vi.runAllTimersAsync();
  expect([search.state, search.query, (search.problem as Error).message]).toEqual(["failed", "fox", "no connection"]);
});

test("An empty query ends the search", async () => {
  const call = await typed("fox");
  search.type(" ");
  expect([search.state, search.hits.length, call.signal?.aborted]).toEqual(["idle", 0, true]);
});
