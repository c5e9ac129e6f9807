/** States of branches in words. */

import type { NodeRecord } from "../api/types";
import { texts } from "../texts";

const t = texts.branches;

export function stateWords(node: NodeRecord): string {
  if (node.state === "running") return t.states.running;
  if (node.state === "interrupted") return node.error ? t.interruptedBecause(node.error) : t.states.interrupted;
  if (node.model === null) return t.states.hand;
  const reasons: Readonly<Record<string, string>> = t.reasons;
  return (node.finish_reason !== null && reasons[node.finish_reason]) || t.states.done;
}

/** Returns whether a model has ended a text at once. */
export function hasEndedEmpty(node: NodeRecord): boolean {
  return node.state === "done" && node.model !== null && node.finish_reason === "end" && node.text === "";
}

/** Returns what a card shows in place of a text that is empty. */
export function emptyWords(node: NodeRecord): string {
  if (node.state === "running") return "";
  return hasEndedEmpty(node) ? t.endedEmpty : t.empty;
}
