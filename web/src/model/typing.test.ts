import { beforeEach, describe, expect, it, vi } from "vitest";
import { ApiError, type Client, ConnectionError } from "../api/client";
import type { NewNode, NodeChange, NodeRecord } from "../api/types";
import { OpenDocument } from "./document.svelte";
import { Drafts } from "./drafts";
import { History } from "./history.svelte";
import { Library } from "./library.svelte";
import { MemoryStorage } from "./memory_storage";
import { Notices } from "./notices.svelte";
import { textOf } from "./path_text";
import { Typing } from "./typing.svelte";

const BASE: Omit<NodeRecord, "id" | "text"> = {
  parent: null,
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
  is_trashed: false,
  created_ms: 0,
  changed_ms: 0,
};

/** A server with one document in memory. Requests fail with `failure`, before or after they have had their effect. */
class FakeServer {
  readonly nodes = new Map<number, NodeRecord>();
  failure: Error | null = null;
  losesAnswers = false;

  createNode = async (_document: string, given: NewNode): Promise<NodeRecord> => {
    if (this.failure !== null && !this.losesAnswers) throw this.failure;
    const node = { ...BASE, id: this.nodes.size + 1, text: given.text, parent: given.parent ?? null };
    this.nodes.set(node.id, node);
    if (this.failure !== null) throw this.failure;
    return node;
  };

  changeNode = async (
    _document: string,
    id: number,
    change: NodeChange,
  ): Promise<{ node: NodeRecord; is_sibling: boolean }> => {
    if (this.failure !== null && !this.losesAnswers) throw this.failure;
    const before = this.nodes.get(id);
    if (before === undefined) throw new ApiError(404, "no such node");
    const isStale = change.version !== before.version;
    const node = isStale
      ? { ...before, id: this.nodes.size + 1, version: 1, text: change.text! }
      : { ...before, version: before.version + 1, text: change.text! };
    this.nodes.set(node.id, node);
    if (this.failure !== null) throw this.failure;
    return { node, is_sibling: isStale };
  };

  document = async () => ({ id: "d", title: "", settings: {}, version: 1 });
  listNodes = async () => ({ nodes: [...this.nodes.values()], next: null, cursor: "a-0" });
}

let server: FakeServer;
let document: OpenDocument;
let typing: Typing;
let drafts: Drafts;

beforeEach(async () => {
  vi.useFakeTimers();
  vi.stubGlobal("window", globalThis);
  server = new FakeServer();
  const client = server as unknown as Client;
  document = new OpenDocument(client, new Library(client), "d");
  await document.load();
  drafts = new Drafts(new MemoryStorage(), "tab");
  typing = new Typing(document, client, new History(new MemoryStorage()), new Notices(), drafts);
});

function type(text: string): void {
  const end = textOf(typing.segments).length;
  typing.edit([{ from: end, to: end, insert: text }], end);
}

function stored(): string[] {
  return [...server.nodes.values()].map(({ text }) => text);
}

describe("Typing", () => {
  it("stores what is typed in a pause, in one request", async () => {
    const requests = vi.spyOn(server, "createNode");
    for (const letter of "fox") {
      type(letter);
      await vi.advanceTimersByTimeAsync(100);
    }
    expect(typing.state).toBe("unsaved");
    await vi.advanceTimersByTimeAsync(1_000);
    expect(stored()).toEqual(["fox"]);
    expect(requests).toHaveBeenCalledTimes(1);
    expect(typing.state).toBe("saved");
    expect(typing.segments).toEqual([{ node: 1, key: 1, text: "fox" }]);
  });

  it("stores within a second while the user types on", async () => {
    for (let nth = 0; nth < 20; nth++) {
      type("x");
      await vi.advanceTimersByTimeAsync(50);
    }
    expect(stored()[0]!.length).toBeGreaterThan(10);
  });

  it("makes a node of its own of what is typed while branches are requested", async () => {
    type("a fox");
    await vi.advanceTimersByTimeAsync(1_000);
    await typing.whileContinuing(1, async () => {
      type(" ran");
      await vi.advanceTimersByTimeAsync(1_000);
    });
    type(" away");
    await vi.advanceTimersByTimeAsync(1_000);
    expect(stored()).toEqual(["a fox", " ran away"]);
  });

  it("does not create a node twice if the answer was lost", async () => {
    server.failure = new ConnectionError("lost");
    server.losesAnswers = true;
    type("fox");
    await vi.advanceTimersByTimeAsync(400);
    expect(typing.state).toBe("offline");
    server.failure = null;
    // The connection is made again, and the nodes are read again.
    await document.load();
    type("es");
    typing.retry();
    await vi.advanceTimersByTimeAsync(2_000);
    expect(stored()).toEqual(["foxes"]);
  });

  it("does not make a sibling of its own change if the answer was lost", async () => {
    type("fox");
    await vi.advanceTimersByTimeAsync(2_000);
    server.failure = new ConnectionError("lost");
    server.losesAnswers = true;
    type("es");
    await vi.advanceTimersByTimeAsync(400);
    server.failure = null;
    await document.load();
    await vi.advanceTimersByTimeAsync(5_000);
    expect(stored()).toEqual(["foxes"]);
    expect(typing.state).toBe("saved");
  });

  it("shows the sibling that a stale edit becomes", async () => {
    type("fox");
    await vi.advanceTimersByTimeAsync(2_000);
    const node = server.nodes.get(1)!;
    server.nodes.set(1, { ...node, version: 7, text: "changed elsewhere" });
    type("es");
    await vi.advanceTimersByTimeAsync(2_000);
    expect(stored()).toEqual(["changed elsewhere", "foxes"]);
    expect(document.currentId).toBe(2);
    expect(textOf(typing.segments)).toBe("foxes");
  });

  it("keeps refused text in the browser until it is stored", async () => {
    server.failure = new ApiError(507, "the disk is full");
    type("fox");
    await vi.advanceTimersByTimeAsync(1_000);
    expect(typing.state).toBe("refused");
    expect(typing.failure).toBe("the disk is full");
    expect(drafts.own("d")!.tails[0]!.nodes[0]!.text).toBe("fox");
    server.failure = null;
    await vi.advanceTimersByTimeAsync(30_000);
    expect(stored()).toEqual(["fox"]);
    expect(drafts.own("d")).toBeNull();
  });

  it("makes a node of text whose node was deleted", async () => {
    type("fox");
    await vi.advanceTimersByTimeAsync(2_000);
    server.nodes.delete(1);
    server.nodes.set(9, { ...BASE, id: 9, text: "other" });
    type("es");
    await vi.advanceTimersByTimeAsync(3_000);
    expect(stored()).toContain("foxes");
  });

  it("waits for the end of a composition", async () => {
    typing.setComposing(true);
    type("ni");
    await vi.advanceTimersByTimeAsync(5_000);
    expect(stored()).toEqual([]);
    typing.setComposing(false);
    await vi.advanceTimersByTimeAsync(500);
    expect(stored()).toEqual(["ni"]);
  });

  it("stores text that an earlier page has kept, once", async () => {
    const draft = {
      changed: [],
      tails: [{ anchor: null, after: null, nodes: [{ key: "k", text: "fox", sent: null, sentAfter: 0 }] }],
    };
    typing.restore(draft);
    typing.restore(draft);
    await vi.advanceTimersByTimeAsync(2_000);
    expect(stored()).toEqual(["fox"]);
  });
});
