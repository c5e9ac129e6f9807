/** Branches like another one. */

import type { GenerationFields, NodeRecord } from "../api/types";
import type { NodeTokens } from "../model/tokens.svelte";

/**
 * Returns the fields of a request for branches like one, with another seed.
 *
 * Stored parameters may have a prompt, whose memory, note and lore can be outdated: the page composes it again.
 *
 * @param n Number of branches.
 */
export function fieldsLike(node: NodeRecord, n: number): GenerationFields {
  const { seed: _seed, prompt: _prompt, parse_special: _parse, ...parameters } = node.parameters ?? {};
  // Keys without a value keep the page from adding its present length and sampling.
  const fields = { n, until: undefined, n_predict: undefined, temperature: undefined, ...parameters };
  // A search for the best texts needs as many beams as branches.
  const { beam_width: width } = parameters;
  return typeof width === "number" ? { ...fields, n: Math.min(n, width) } : fields;
}

/** Returns the tokens with which a branch was made to begin: those that no model has chosen. */
export function appendedTokens(tokens: NodeTokens): number[] {
  const found: number[] = [];
  for (const { id, logprob } of tokens.tokens) {
    if (id === null || logprob !== null) break;
    found.push(id);
  }
  return found;
}
