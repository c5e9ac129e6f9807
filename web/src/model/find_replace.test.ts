import { afterEach, describe, expect, test, vi } from "vitest";

import {
  expression,
  find,
  findMatches,
  reasonOf,
  replaced,
  replacedInPath,
  type FindOptions,
  type FindTask,
} from "./find_replace";
import { Finder, SlowExpressionError, SupersededError, type FindingWorker } from "./finder";

const PLAIN: FindOptions = { pattern: "", isExpression: false, isCaseSensitive: false, isWholeWord: false };

function result(text: string, options: Partial<FindOptions>, template: string): string {
  const given = { ...PLAIN, ...options };
  return replaced(text, findMatches(text, expression(given), template, given.isExpression));
}

function task(options: Partial<FindTask>): FindTask {
  return { source: "fox", flags: "gimu", template: "owl", isExpression: false, isPath: true, nodes: [], ...options };
}

describe("a replacement", () => {
  test.each([
    ["takes plain text as it is", "a.b (x) $1", { pattern: ".b (X)" }, "$1$&", "a$1$& $1"],
    ["regards case if asked", "Fox fox", { pattern: "fox", isCaseSensitive: true }, "owl", "Fox owl"],
    ["finds whole words", "fox foxes épifox", { pattern: "fox", isWholeWord: true }, "owl", "owl foxes épifox"],
    [
      "inserts groups",
      "Ann, Bob",
      { pattern: "(\\w+), (?<last>\\w+)", isExpression: true },
      "$<last> $1 $& $$",
      "Bob Ann Ann, Bob $",
    ],
    ["keeps marks without a group", "ab", { pattern: "b", isExpression: true }, "$1$9", "a$1$9"],
    ["inserts line breaks", "a b", { pattern: " ", isExpression: true }, "\\n\\\\n", "a\n\\nb"],
    ["leaves empty matches", "abc", { pattern: "x*", isExpression: true }, "-", "abc"],
    ["takes $ for the end of a line", "a\na", { pattern: "a$", isExpression: true }, "b", "b\nb"],
  ])("%s", (_, text, options, template, expected) => {
    expect(result(text, options, template)).toBe(expected);
  });

  test("of an invalid expression reports the reason alone", () => {
    let reason = "";
    try {
      expression({ ...PLAIN, pattern: "(a/", isExpression: true, isWholeWord: true });
    } catch (error) {
      reason = reasonOf(error);
    }
    expect(reason).toBe("Unterminated group");
  });
});

describe("in a path", () => {
  const path = [
    { id: 1, text: "The old f" },
    { id: 2, text: "o" },
    { id: 4, text: "x met a fox." },
  ];

  test("a match over several nodes goes to the first of them", () => {
    const found = find(task({ nodes: path }));
    expect(found).toMatchObject({ nMatches: 2, nNodes: 2, isCut: false });
    expect(found.changed).toEqual([
      { id: 1, text: "The old owl" },
      { id: 2, text: "" },
      { id: 4, text: " met a owl." },
    ]);
    expect(found.examples.map((each) => [each.node, each.before, each.match, each.after])).toEqual([
      [1, "The old ", "fox", " met a fox."],
      [4, "The old fox met a ", "fox", "."],
    ]);
  });

  test("nodes that a replacement leaves as they are do not change", () => {
    expect(replacedInPath(path, [])).toEqual([]);
    expect(find(task({ nodes: path, template: "fox" })).changed).toEqual([]);
  });
});

test("in a document each node is searched alone", () => {
  const nodes = [
    { id: 1, text: "fo" },
    { id: 2, text: "x fox fox" },
  ];
  const found = find(task({ nodes, isPath: false }));
  expect(found).toMatchObject({ nMatches: 2, nNodes: 1, changed: [{ id: 2, text: "x owl owl" }] });
});

describe("a search for an expression", () => {
  class SilentWorker implements FindingWorker {
    onmessage: FindingWorker["onmessage"] = null;
    onerror: FindingWorker["onerror"] = null;
    isTerminated = false;
    readonly requests: Parameters<FindingWorker["postMessage"]>[0][] = [];

    postMessage(request: Parameters<FindingWorker["postMessage"]>[0]): void {
      this.requests.push(request);
    }

    terminate(): void {
      this.isTerminated = true;
    }

    answer(): void {
      const { id, task: given } = this.requests.at(-1) as Parameters<FindingWorker["postMessage"]>[0];
      this.onmessage?.({ data: { id, found: find(given) } } as MessageEvent);
    }
  }

  afterEach(() => void vi.useRealTimers());

  test("returns what the worker found, and uses the worker again", async () => {
    const workers: SilentWorker[] = [];
    const finder = new Finder(() => workers[workers.push(new SilentWorker()) - 1] as SilentWorker);
    for (let nth = 0; nth < 2; nth += 1) {
      const search = finder.find(task({ isExpression: true, nodes: [{ id: 1, text: "fox" }] }));
      workers[0]?.answer();
      expect((await search).nMatches).toBe(1);
    }
    expect(workers.length).toBe(1);
  });

  test("that takes too long ends with its worker", async () => {
    vi.useFakeTimers();
    const worker = new SilentWorker();
    const search = new Finder(() => worker).find(task({ isExpression: true }));
    const refused = expect(search).rejects.toBeInstanceOf(SlowExpressionError);
    await vi.advanceTimersByTimeAsync(10_000);
    await refused;
    expect(worker.isTerminated).toBe(true);
  });

  test("is cancelled by the next one", async () => {
    const finder = new Finder(() => new SilentWorker());
    const search = expect(finder.find(task({ isExpression: true }))).rejects.toBeInstanceOf(SupersededError);
    await finder.find(task({ nodes: [] }));
    await search;
  });
});
