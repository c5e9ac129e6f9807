import { describe, expect, it } from "vitest";
import type { Client } from "../api/client";
import type { NodeRecord } from "../api/types";
import { OpenDocument } from "./document.svelte";
import { Library } from "./library.svelte";

const BASE: Omit<NodeRecord, "id" | "parent" | "is_trashed"> = {
  text: "text",
  position: 0,
  version: 1,
  state: "done",
  model: null,
  parameters: null,
  finish_reason: null,
  error: null,
  n_computed: null,
  n_cached: null,
  label: "",
  note: "",
  is_bookmarked: false,
  created_ms: 0,
  changed_ms: 0,
};

describe("going to a node", () => {
  it("in the trash goes to the nearest one above it that is not", () => {
    const client = {} as Client;
    const document = new OpenDocument(client, new Library(client), "d");
    document.answered([
      { ...BASE, id: 1, parent: null, is_trashed: false },
      { ...BASE, id: 2, parent: 1, is_trashed: true },
      { ...BASE, id: 3, parent: 2, is_trashed: false },
    ]);
    document.go(3);
    expect(document.currentId).toBe(1);
    document.go(2);
    expect(document.currentId).toBe(1);
  });
});
