import { describe, expect, it } from "vitest";
import { EventParser, isAtOrBefore } from "./events";

const STREAM =
  'id: a-1\nevent: ready\ndata: {"type":"ready"}\n\n: ping\n\n' +
  'id: a-2\nevent: nodes_deleted\ndata: {"type":"nodes_deleted","document":"d","nodes":[1]}\n\n';

describe("EventParser", () => {
  it("reads the same events whatever pieces the stream arrives in", () => {
    for (let size = 1; size <= STREAM.length; size++) {
      const parser = new EventParser();
      const events = [];
      for (let at = 0; at < STREAM.length; at += size) events.push(...parser.push(STREAM.slice(at, at + size)));
      expect(events).toEqual([
        { cursor: "a-1", event: { type: "ready" } },
        { cursor: "a-2", event: { type: "nodes_deleted", document: "d", nodes: [1] } },
      ]);
    }
  });
});

it.each([
  ["a-9", "a-10", true],
  ["a-10", "a-10", true],
  ["a-11", "a-10", false],
  ["b-1", "a-10", false],
  ["a-1", "", false],
])("orders cursors of one run of the server: %s at or before %s: %s", (cursor, other, expected) => {
  expect(isAtOrBefore(cursor, other)).toBe(expected);
});
