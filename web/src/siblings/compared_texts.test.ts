import { describe, expect, it } from "vitest";
import type { NodeRecord } from "../api/types";
import { comparedTexts } from "./compared_texts";

const parents: Readonly<Record<number, number | null>> = { 1: null, 2: 1, 3: 2, 4: 1, 5: 4 };
const doc = {
  node: (id: number) => ({ id, text: `${id} ` }) as NodeRecord,
  path: (id: number | null) => {
    const found: number[] = [];
    for (let at = id; at != null; at = parents[at] ?? null) found.unshift(at);
    return found;
  },
};

describe("comparedTexts", () => {
  it("begins where the paths part", () => {
    expect(comparedTexts(doc, 3, 5)).toEqual({ first: "2 3 ", second: "4 5 ", nCommon: 1 });
  });

  it("is empty for a node on the path of the other one", () => {
    expect(comparedTexts(doc, 2, 3)).toEqual({ first: "", second: "3 ", nCommon: 2 });
  });
});
