/** Lore: which entries a text activates, and which of them fit the budget. No I/O here. */

import type { LoreEntry } from "./settings";

/** A key as it is searched: a keyword that was made an expression, or the user's own expression. */
export interface Matcher {
  source: string;
  flags: string;
  /** True if the user wrote the expression, which may then take any time. */
  isOwn: boolean;
}

/** A key that is no valid regular expression. */
export interface InvalidKey {
  key: string;
  message: string;
}

const OWN_EXPRESSION = /^\/(.+)\/([a-z]*)$/s;
const OWN_FLAGS = "dgimsuvy";

/** Characters of scripts without spaces between words, where a keyword may begin and end anywhere. */
const WITHOUT_SPACES =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;
const WORD = /[\p{L}\p{M}\p{N}_]/u;
const NO_WORD_BEFORE = "(?<![\\p{L}\\p{M}\\p{N}_])";
const NO_WORD_AFTER = "(?![\\p{L}\\p{M}\\p{N}_])";

export function isOwnExpression(key: string): boolean {
  return OWN_EXPRESSION.test(key);
}

/**
 * Returns the matcher of a key.
 *
 * @throws {SyntaxError} The key is an invalid regular expression.
 */
export function matcher(key: string, entry: Pick<LoreEntry, "is_case_sensitive" | "is_partial">): Matcher {
  const own = OWN_EXPRESSION.exec(key);
  if (own) {
    const [, source = "", given = ""] = own;
    for (const flag of given) if (!OWN_FLAGS.includes(flag)) throw new SyntaxError(`unknown flag "${flag}"`);
    // Without `g` and `y` a search has no state, and always begins at the start of the text.
    const flags = given.replace(/[dgy]/g, "");
    void new RegExp(source, flags);
    return { source, flags, isOwn: true };
  }
  const word = key.trim().replace(/\s+/g, " ");
  const first = word.at(0) ?? "";
  const last = [...word].at(-1) ?? "";
  const isBound = (edge: string) => entry.is_partial !== true && WORD.test(edge) && !WITHOUT_SPACES.test(edge);
  const source =
    (isBound(first) ? NO_WORD_BEFORE : "") + word.split(" ").map(escaped).join("\\s+") + (isBound(last) ? NO_WORD_AFTER : "");
  return { source, flags: entry.is_case_sensitive === true ? "u" : "iu", isOwn: false };
}

/** Returns the keys of an entry that are no valid expressions, with the reason. */
export function invalidKeys(entry: LoreEntry): InvalidKey[] {
  return [...entry.keys, ...entry.secondary_keys].flatMap((key) => {
    try {
      matcher(key, entry);
      return [];
    } catch (error) {
      return [{ key, message: error instanceof Error ? error.message : String(error) }];
    }
  });
}

/** Returns the end of a text in which keys are searched; it begins with a whole character. */
export function scannedText(text: string, nCharacters: number): string {
  if (text.length <= nCharacters) return text;
  const start = text.length - nCharacters;
  const code = text.charCodeAt(start);
  return text.slice(code >= 0xdc00 && code <= 0xdfff ? start + 1 : start);
}

/** Returns whether a text has one of several keys. Empty and invalid keys do not match. */
export function hasKey(
  keys: readonly string[],
  entry: LoreEntry,
  text: string,
  test: (matcher: Matcher, text: string) => boolean = matches,
): boolean {
  return keys.some((key) => {
    if (!key.trim()) return false;
    try {
      return test(matcher(key, entry), text);
    } catch {
      return false;
    }
  });
}

export function matches(each: Matcher, text: string): boolean {
  return new RegExp(each.source, each.flags).test(text);
}

/** Why an entry is in the prompt, or is not. */
export type LoreReason = "constant" | "matched" | "no_match" | "disabled" | "empty" | "over_budget";

export interface LoreState {
  /** Index in the document's list. */
  index: number;
  entry: LoreEntry;
  reason: LoreReason;
}

/** Returns for each entry whether a text activates it, before the budget. */
export function activate(
  entries: readonly LoreEntry[],
  text: string,
  test?: (matcher: Matcher, text: string) => boolean,
): LoreState[] {
  return entries.map((entry, index) => {
    const state = (reason: LoreReason): LoreState => ({ index, entry, reason });
    if (!entry.is_enabled) return state("disabled");
    if (!entry.text.trim()) return state("empty");
    if (entry.is_constant) return state("constant");
    const isActive =
      hasKey(entry.keys, entry, text, test) &&
      (!entry.secondary_keys.some((key) => key.trim()) || hasKey(entry.secondary_keys, entry, text, test));
    return state(isActive ? "matched" : "no_match");
  });
}

export function isActive(state: LoreState): boolean {
  return state.reason === "constant" || state.reason === "matched";
}

/**
 * Marks active entries that exceed a budget. Constant entries have priority, then higher orders, then earlier entries; an entry
 * that does not fit leaves room for smaller ones after it.
 */
export function withinBudget(states: readonly LoreState[], nTokens: (entry: LoreEntry) => number, budget: number): LoreState[] {
  const ranked = states
    .filter(isActive)
    .sort(
      (one, other) =>
        Number(other.reason === "constant") - Number(one.reason === "constant") ||
        other.entry.order - one.entry.order ||
        one.index - other.index,
    );
  let left = budget;
  const excluded = new Set<number>();
  for (const { entry, index } of ranked) {
    const n = nTokens(entry);
    if (n > left) excluded.add(index);
    else left -= n;
  }
  return states.map((state) => (excluded.has(state.index) ? { ...state, reason: "over_budget" } : state));
}

/** Returns active entries in the order of the prompt: ascending order, then as in the list. */
export function inPromptOrder(states: readonly LoreState[]): LoreState[] {
  return states.filter(isActive).sort((one, other) => one.entry.order - other.entry.order || one.index - other.index);
}

function escaped(text: string): string {
  return text.replace(/[$()*+./?[\\\]^{|}]/g, "\\$&");
}
