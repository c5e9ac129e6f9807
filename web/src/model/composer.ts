/** Composes the prompt of a node: finds lore, counts tokens, and lays the parts out. */

import {
  chunks,
  exactTokens,
  knownUnits,
  layOut,
  pieces,
  templateBlocks,
  textUnits,
  type Block,
  type ExactTokens,
  type Insert,
  type KnownToken,
  type Part,
  type PathText,
  type Unit,
} from "./context";
import { inPromptOrder, isActive, scannedText, withinBudget, type LoreState } from "./lore";
import type { LoreMatches } from "./lore_search";
import type { ContextSettings, LoreEntry } from "./settings";
import type { Tokenizer } from "./tokenizer";

export interface PathNode {
  id: number;
  text: string;
  /** True if a model generated it, so that its tokens may be known. */
  hasTokens: boolean;
}

export interface NodeTokens {
  text: string;
  /** Tokens of the loaded model; null if they are unknown, or those of another model. */
  tokens: readonly KnownToken[] | null;
}

export interface Message {
  role: "system" | "user";
  content: string;
}

/** What the composer needs of the server. */
export interface ComposerSource {
  tokenizer: Tokenizer;
  /** Returns the tokens of a node; repeated calls read them once. */
  nodeTokens(node: PathNode): Promise<NodeTokens>;
  /** Returns the beginning of the assistant's answer to messages. */
  renderTemplate(messages: readonly Message[]): Promise<string>;
  searchLore(entries: readonly LoreEntry[], text: string): Promise<LoreMatches>;
}

export interface ComposeInput {
  settings: ContextSettings;
  /** Nodes from the top to the one that is continued. Its text may end before that of its tokens. */
  path: readonly PathNode[];
  /** Tokens of the model's context. */
  nContext: number;
  /** Maximum tokens of the continuation; -1 is unlimited. */
  nPredict: number;
  /** Tokens that the request appends to the prompt. */
  nAppended: number;
}

export interface ComposedPrompt {
  parts: Part[];
  /** What is sent as `prompt`; null if the server's own prompt of the path is the same. */
  pieces: (string | number)[] | null;
  /** Tokens of the prompt. */
  tokens: ExactTokens;
  /** Tokens that the prompt may have. */
  limit: number;
  /** Tokens that are reserved for the continuation. */
  nReserved: number;
  /** Text that fell out, from the beginning of the path. */
  textOut: string;
  lore: LoreState[];
  slowKeys: string[];
  /** True if the parts before and in the text leave no space for it. */
  isTooLong: boolean;
}

/** Part of the context that lore may have if the document does not state it. */
const LORE_SHARE = 4;
/** Reservation for continuations without a limit. */
const MAX_UNLIMITED = 512;
/** Nodes whose tokens are read ahead. */
const N_AHEAD = 6;
const BETWEEN_MESSAGES = "\n\n";

/** Returns the tokens of a context that are reserved for a continuation. At least a quarter stays for the prompt. */
export function reservedTokens(nContext: number, nPredict: number): number {
  const wanted = nPredict < 0 ? Math.min(MAX_UNLIMITED, Math.floor(nContext / 4)) : nPredict;
  return Math.min(wanted, Math.floor((nContext * 3) / 4));
}

export async function compose(source: ComposerSource, input: ComposeInput): Promise<ComposedPrompt> {
  const { settings, nContext, path } = input;
  const nReserved = reservedTokens(nContext, input.nPredict);
  const limit = nContext - nReserved - input.nAppended;
  const text = path.map((node) => node.text).join("");
  const { states, slow } = await source.searchLore(settings.lore, scannedText(text, settings.scan_depth));
  const lore = await budgeted(source.tokenizer, states, settings.lore_budget ?? Math.floor(limit / LORE_SHARE));
  const active = inPromptOrder(lore);
  const front = await frontBlocks(source, settings, active);
  const inserts = await insertBlocks(source.tokenizer, settings, active);
  const opening = (await source.tokenizer.tokens("", { isFirst: true })).map(({ id }) => id);
  const pathText = await pathUnits(source, path, limit);
  let roomForText = limit;
  for (;;) {
    const layout = layOut(front, pathText, inserts, roomForText);
    const sent = pieces(layout.parts);
    // The server adds the token that begins a prompt only before a text.
    const begin = typeof sent[0] === "number" && settings.mode === "base" ? opening : [];
    const tokens = withOpening(
      begin,
      await exactTokens(layout.parts, (piece, isFirst) =>
        source.tokenizer.tokens(piece, { isFirst: isFirst && begin.length === 0 }),
      ),
    );
    const excess = tokens.ids.length - limit;
    if (excess > 0 && !layout.isTooLong && roomForText > 0) {
      // Texts that are sent together may have more tokens than each by itself.
      roomForText -= excess;
      continue;
    }
    const isWholePath = !front.length && !inserts.length && layout.nCharactersOut === 0;
    return {
      parts: layout.parts.map((part, nth) => ({ ...part, nTokens: tokens.nTokens[nth] ?? 0 })),
      pieces: isWholePath ? null : [...begin, ...sent],
      tokens,
      limit,
      nReserved,
      textOut: text.slice(0, layout.nCharactersOut),
      lore,
      slowKeys: slow,
      isTooLong: layout.isTooLong || excess > 0,
    };
  }
}

function withOpening(begin: readonly number[], tokens: ExactTokens): ExactTokens {
  if (!begin.length) return tokens;
  const [first = 0, ...others] = tokens.nTokens;
  return {
    ids: [...begin, ...tokens.ids],
    nTokens: [first + begin.length, ...others],
    isGenerated: [...begin.map(() => false), ...tokens.isGenerated],
  };
}

async function budgeted(tokenizer: Tokenizer, states: readonly LoreState[], budget: number): Promise<LoreState[]> {
  const active = states.filter(isActive);
  const counts = new Map<LoreEntry, number>();
  await Promise.all(active.map(async ({ entry }) => counts.set(entry, await tokenizer.count(`${entry.text}\n`))));
  return withinBudget(states, (entry) => counts.get(entry) ?? 0, budget);
}

async function block(tokenizer: Tokenizer, kind: Block["kind"], text: string, index?: number): Promise<Block> {
  return { kind, text, nTokens: await tokenizer.count(text), ...(index !== undefined && { index }) };
}

/** Returns the blocks before the text: memory and lore, in instruct mode within the model's template. */
async function frontBlocks(source: ComposerSource, settings: ContextSettings, active: readonly LoreState[]): Promise<Block[]> {
  const { tokenizer } = source;
  const atFront = active.filter(({ entry }) => entry.unit === undefined);
  const blocks = await Promise.all([
    ...(settings.memory.trim() ? [block(tokenizer, "memory", settings.memory)] : []),
    ...atFront.map(({ entry, index }) => block(tokenizer, "lore", entry.text, index)),
  ]);
  if (settings.mode === "base") return blocks;
  const { system, instruction } = settings.instruct;
  const content = [system, ...blocks.map((each) => each.text)].filter((each) => each.trim()).join(BETWEEN_MESSAGES);
  const text = await source.renderTemplate([
    ...(content ? [{ role: "system", content } as const] : []),
    { role: "user", content: instruction },
  ]);
  const tokens = await tokenizer.tokens(text, { isFirst: true, parsesSpecial: true });
  // Some templates write the token that begins a prompt, which the tokenizer then adds a second time.
  const isRepeated = tokens.length > 1 && tokens[0]?.end === 0 && tokens[0].id === tokens[1]?.id;
  return templateBlocks(text, isRepeated ? tokens.slice(1) : tokens, blocks);
}

async function insertBlocks(tokenizer: Tokenizer, settings: ContextSettings, active: readonly LoreState[]): Promise<Insert[]> {
  const { author_note: note } = settings;
  return Promise.all([
    ...active.flatMap(({ entry: { text, depth, unit }, index }) =>
      unit ? [block(tokenizer, "lore", text, index).then((each) => ({ ...each, depth, unit }))] : [],
    ),
    ...(note.text.trim()
      ? [block(tokenizer, "note", note.text).then((each) => ({ ...each, depth: note.depth, unit: note.unit }))]
      : []),
  ]);
}

/** Returns the last units of a path, as many as fit into a limit and one more node or chunk. */
async function pathUnits(source: ComposerSource, path: readonly PathNode[], limit: number): Promise<PathText> {
  const found: Unit[][] = [];
  let nTokens = 0;
  let nCharactersBefore = path.reduce((sum, node) => sum + node.text.length, 0);
  const add = (units: Unit[]) => {
    found.push(units);
    for (const unit of units) {
      nTokens += unit.nTokens;
      nCharactersBefore -= unit.text.length;
    }
  };
  const backwards = path.toReversed();
  for (const [nth, node] of backwards.entries()) {
    if (nTokens > limit) break;
    for (const next of backwards.slice(nth, nth + N_AHEAD))
      if (next.hasTokens) void source.nodeTokens(next).catch(() => undefined);
    const known = node.hasTokens ? await source.nodeTokens(node) : null;
    const items = known?.tokens ? knownUnits(node.id, known.text, known.tokens) : [node.text];
    for (const item of limitedTo(items, node.text).toReversed()) {
      if (typeof item !== "string") {
        add([item]);
        continue;
      }
      for (const chunk of chunks(item).toReversed()) {
        if (nTokens > limit) break;
        add(textUnits(node.id, chunk, await source.tokenizer.tokens(chunk, { isFirst: false })));
      }
    }
  }
  return { units: found.toReversed().flat(), nCharactersBefore: Math.max(nCharactersBefore, 0) };
}

/** Returns items up to the end of a node's text, which may be shorter than that of its tokens. */
function limitedTo(items: readonly (Unit | string)[], text: string): (Unit | string)[] {
  const kept: (Unit | string)[] = [];
  let start = 0;
  for (const item of items) {
    const piece = typeof item === "string" ? item : item.text;
    if (!text.startsWith(piece, start)) break;
    kept.push(item);
    start += piece.length;
  }
  if (start < text.length) kept.push(text.slice(start));
  return kept;
}
