import { describe, expect, it } from "vitest";
import { matches } from "./lore";
import { LoreSearch, type SearchWorker } from "./lore_search";
import type { SearchRequest } from "./lore_worker";
import { newLoreEntry, type LoreEntry } from "./settings";

const entry = (...keys: string[]): LoreEntry => ({ ...newLoreEntry(), text: "Lore.", keys });

/** Worker of a test, which never answers the expression `/endless/`, nor those after it. */
class Worker implements SearchWorker {
  static started: Worker[] = [];
  readonly requests: SearchRequest[] = [];
  isTerminated = false;
  onmessage: SearchWorker["onmessage"] = null;
  onerror: SearchWorker["onerror"] = null;

  constructor() {
    Worker.started.push(this);
  }

  postMessage(request: SearchRequest): void {
    this.requests.push(request);
    void Promise.resolve().then(() => {
      for (const [nth, each] of request.matchers.entries()) {
        if (each.source === "endless") return;
        this.onmessage?.({ data: { id: request.id, nth, isFound: matches(each, request.text) } } as MessageEvent);
      }
    });
  }

  terminate(): void {
    this.isTerminated = true;
  }
}

const started = () => {
  Worker.started = [];
  return new LoreSearch(() => new Worker(), 1, 1);
};

describe("LoreSearch", () => {
  it("needs no worker for keywords", async () => {
    const { states } = await started().search([entry("fox"), entry("owl")], "A fox.");
    expect(states.map(({ reason }) => reason)).toEqual(["matched", "no_match"]);
    expect(Worker.started).toHaveLength(0);
  });

  it("searches expressions in one worker", async () => {
    const search = started();
    for (const text of ["A fox.", "Foxes."]) {
      const { states, slow } = await search.search([entry("/fox/"), entry("/(/", "/es\\./")], text);
      expect(states.map(({ reason }) => reason)).toEqual(text === "A fox." ? ["matched", "no_match"] : ["no_match", "matched"]);
      expect(slow).toEqual([]);
    }
    expect(Worker.started).toHaveLength(1);
  });

  it("ends a slow expression, reports it, and searches the others", async () => {
    const search = started();
    const entries = [entry("/A/"), entry("/endless/"), entry("/fox/")];
    const { states, slow } = await search.search(entries, "A fox.");
    expect(states.map(({ reason }) => reason)).toEqual(["matched", "no_match", "matched"]);
    expect(slow).toEqual(["/endless/"]);
    expect(Worker.started.map((worker) => worker.isTerminated)).toEqual([true, false]);
  });

  it("does not try a slow expression again", async () => {
    const search = started();
    await search.search([entry("/endless/")], "A fox.");
    const { slow } = await search.search([entry("/endless/"), entry("/fox/")], "A fox.");
    expect(slow).toEqual(["/endless/"]);
    expect(Worker.started.at(-1)?.requests.flatMap((request) => request.matchers.map((each) => each.source))).toEqual(["fox"]);
  });

  it("searches one text after another", async () => {
    const search = started();
    const found = await Promise.all(["fox", "owl"].map((text) => search.search([entry("/fox/")], text)));
    expect(found.map(({ states }) => states[0]?.reason)).toEqual(["matched", "no_match"]);
  });
});
