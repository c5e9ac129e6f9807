import { describe, expect, it } from "vitest";
import type { NodeRecord, TokenRecord } from "../api/types";
import { NodeTokens } from "../model/tokens.svelte";
import { appendedTokens, fieldsLike } from "./more_like";

const node = (parameters: Record<string, unknown>) => ({ parameters }) as unknown as NodeRecord;

function tokens(logprobs: readonly (number | null)[]): NodeTokens {
  const all = logprobs.map((logprob, id): TokenRecord => ({
    id,
    text: "a",
    bytes: [97],
    end: id + 1,
    logprob,
    alternatives: [],
  }));
  return NodeTokens.of({ model: "m", is_current: true, tokens: all });
}

describe("fieldsLike", () => {
  it("repeats the parameters of a branch without its seed", () => {
    expect(fieldsLike(node({ top_k: 20, n_predict: 40, seed: 7 }), 4)).toEqual({ n: 4, top_k: 20, n_predict: 40 });
  });

  it("leaves out the prompt of the branch", () => {
    const parameters = { n_predict: 40, prompt: ["An old memory.", 7], parse_special: true };
    expect(fieldsLike(node(parameters), 4)).toEqual({ n: 4, n_predict: 40 });
  });

  it("keeps the page from adding its present length and sampling", () => {
    const fields = fieldsLike(node({ n_predict: 40 }), 4);
    expect("until" in fields && "temperature" in fields).toBe(true);
    expect(JSON.parse(JSON.stringify(fields))).toEqual({ n: 4, n_predict: 40 });
  });

  it("has at most as many branches as beams", () => {
    expect(fieldsLike(node({ beam_width: 2 }), 4)).toMatchObject({ beam_width: 2, n: 2 });
    expect(fieldsLike(node({ beam_width: 8 }), 4)).toMatchObject({ beam_width: 8, n: 4 });
  });
});

describe("appendedTokens", () => {
  it("are those at the beginning that no model has chosen", () => {
    expect(appendedTokens(tokens([null, null, -1, null]))).toEqual([0, 1]);
    expect(appendedTokens(tokens([-1, -2]))).toEqual([]);
  });
});
