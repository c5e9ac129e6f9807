import { expect, it } from "vitest";
import { type Draft, Drafts } from "./drafts";
import { MemoryStorage } from "./memory_storage";

const DRAFT: Draft = { changed: [{ node: 1, version: 2, text: "typed", sent: null }], tails: [] };
const TAIL: Draft = {
  changed: [],
  tails: [{ anchor: 1, after: null, nodes: [{ key: "a", text: "b", sent: null, sentAfter: 0 }] }],
};
const NONE: Draft = { changed: [], tails: [] };

it("keeps the text of a document and tab until it is stored", () => {
  const storage = new MemoryStorage();
  const drafts = new Drafts(storage, "tab");
  drafts.keep("document", DRAFT);
  expect(new Drafts(storage, "tab").own("document")).toEqual(DRAFT);
  expect(new Drafts(storage, "other").own("document")).toBeNull();
  drafts.keep("document", NONE);
  expect(drafts.own("document")).toBeNull();
  expect(storage.length).toBe(0);
});

it("takes over the text of tabs that are gone, and leaves that of open ones", () => {
  const storage = new MemoryStorage();
  new Drafts(storage, "gone").keep("one", DRAFT);
  new Drafts(storage, "open").keep("two", DRAFT);
  const drafts = new Drafts(storage, "tab");
  drafts.keep("one", TAIL);
  expect(drafts.adopt((tab) => tab === "gone")).toEqual(["one"]);
  expect(drafts.own("one")).toEqual({ changed: DRAFT.changed, tails: TAIL.tails });
  expect(new Drafts(storage, "open").own("two")).toEqual(DRAFT);
  expect(new Drafts(storage, "gone").own("one")).toBeNull();
});

it("reports that the browser has no space, and leaves the earlier draft", () => {
  const storage = new MemoryStorage(200);
  const drafts = new Drafts(storage, "tab");
  expect(drafts.keep("document", DRAFT)).toBe(true);
  const long = { changed: [{ ...DRAFT.changed[0]!, text: "x".repeat(500) }], tails: [] };
  expect(drafts.keep("document", long)).toBe(false);
  expect(drafts.own("document")).toEqual(DRAFT);
});
