import type { ContinueRequest, GenerationFields, Prompt } from "../api/types";
import type { OpenDocument } from "./document.svelte";
import type { Preferences } from "./preferences.svelte";
import type { Workspace } from "./workspace.svelte";

/** Where new branches begin, and what the caller asked for them. */
export interface ContinueTarget {
  workspace: Workspace;
  document: OpenDocument;
  node: number;
  /** Offset in the node's text after which the branches begin, in UTF-16 units; null is its end. */
  offset: number | null;
  /** Text or tokens with which each branch begins. */
  append: Prompt | null;
  /** Fields that the caller set, which no preset replaces. */
  fields: GenerationFields;
}

/** Completes the request of new branches, as with the fields of a preset or a prompt with a memory. */
export type RequestPreparer = (request: ContinueRequest, target: ContinueTarget) => ContinueRequest | Promise<ContinueRequest>;

/** Where a branch ends: after a number of tokens, with a sentence or a paragraph, or only with the text itself. */
export type BranchLength = "sentence" | "paragraph" | "end" | number;

/** Alternatives that are stored for each token. */
const N_PROBS = 10;

/** Most tokens of a branch that ends with a sentence or paragraph. */
const MAX_TOKENS = { sentence: 256, paragraph: 1_024 } as const;

/** Returns the request for branches as the preferences have it. */
export function defaultRequest(preferences: Preferences): ContinueRequest {
  return { n: preferences.get("branchCount"), n_probs: N_PROBS, ...lengthFields(preferences.get("branchLength")) };
}

/** Returns the fields of a request that limit branches to a length. */
export function lengthFields(length: BranchLength): GenerationFields {
  if (typeof length === "number") return { n_predict: length };
  if (length === "end") return { n_predict: -1 };
  return { until: length, n_predict: MAX_TOKENS[length] };
}
