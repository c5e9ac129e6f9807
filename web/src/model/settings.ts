/** Settings of a document: what the context, lore and presets read from its `settings`. */

import { parseValues, type SamplingValues } from "./presets";

/** Unit of a depth, counted from the end of the text. */
export type DepthUnit = "tokens" | "lines";

export interface Depth {
  depth: number;
  unit: DepthUnit;
}

export interface AuthorNote extends Depth {
  text: string;
}

export interface LoreEntry {
  name: string;
  /** Keywords, or regular expressions between slashes. */
  keys: string[];
  /** If there are any, one of them must match too. */
  secondary_keys: string[];
  text: string;
  /** True if the entry needs no match. */
  is_constant: boolean;
  is_enabled: boolean;
  /** Entries of a higher order come later in the prompt, and are the last to exceed the budget. */
  order: number;
  depth: number;
  /** Missing for entries at the front, after the memory; their depth has no effect. */
  unit?: DepthUnit;
  is_case_sensitive?: boolean;
  /** Keywords match parts of words too. */
  is_partial?: boolean;
}

export interface Instruction {
  system: string;
  instruction: string;
}

export interface OwnPreset {
  name: string;
  values: SamplingValues;
}

/** Alternatives that the page stores for each token if the document does not state it. */
export const DEFAULT_N_PROBS = 10;
/** Maximum alternatives that the server stores for each token. */
export const MAX_PROBS = 20;
/** Seeds are numbers of 32 bits, of which the last selects a random one. */
export const MAX_SEED = 2 ** 32 - 2;

export type Mode = "base" | "instruct";

export interface ContextSettings {
  memory: string;
  author_note: AuthorNote;
  lore: LoreEntry[];
  /** Maximum tokens of lore; null is a quarter of the context. */
  lore_budget: number | null;
  /** Characters of the end of the text in which keys are searched. */
  scan_depth: number;
  mode: Mode;
  instruct: Instruction;
  sampling: SamplingValues;
  /** Name of the preset from which `sampling` was copied. */
  preset: string;
  presets: OwnPreset[];
  /** Alternatives stored for each token; null is the page's default. */
  n_probs: number | null;
  /** Null for a random one. */
  seed: number | null;
  /** Names of presets that branches have in turn; empty if all branches have the parameters of `sampling`. */
  branch_presets: string[];
}

export const DEFAULT_DEPTH: Depth = { depth: 40, unit: "tokens" };
export const DEFAULT_SCAN_DEPTH = 4000;
export const MAX_DEPTH = 100_000;
export const MAX_SCAN_DEPTH = 100_000;

/** Lines from the end, if an imported author's note has no unit. */
const IMPORTED_UNIT: DepthUnit = "lines";

/** Reads the settings of a document. Values of another type become defaults, so that any JSON can be read. */
export function readSettings(raw: Readonly<Record<string, unknown>>): ContextSettings {
  const note = object(raw.author_note);
  const instruct = object(raw.instruct);
  return {
    memory: text(raw.memory),
    author_note: note
      ? {
          text: text(note.text),
          depth: count(note.depth, DEFAULT_DEPTH.depth, MAX_DEPTH),
          unit: unit(note.unit) ?? IMPORTED_UNIT,
        }
      : { text: "", ...DEFAULT_DEPTH },
    lore: list(raw.lore).flatMap((each) => loreEntry(each)),
    lore_budget: typeof raw.lore_budget === "number" && raw.lore_budget >= 0 ? Math.floor(raw.lore_budget) : null,
    scan_depth: count(raw.scan_depth, DEFAULT_SCAN_DEPTH, MAX_SCAN_DEPTH),
    mode: raw.mode === "instruct" ? "instruct" : "base",
    instruct: { system: text(instruct?.system), instruction: text(instruct?.instruction) },
    sampling: parseValues(raw.sampling),
    preset: text(raw.preset),
    presets: list(raw.presets).flatMap((each) => ownPreset(each)),
    n_probs: integerWithin(raw.n_probs, 0, MAX_PROBS),
    seed: integerWithin(raw.seed, 0, MAX_SEED),
    branch_presets: texts(raw.branch_presets).slice(0, 256),
  };
}

/** Returns an entry for a text that the user will write. */
export function newLoreEntry(): LoreEntry {
  return {
    name: "",
    keys: [],
    secondary_keys: [],
    text: "",
    is_constant: false,
    is_enabled: true,
    order: 100,
    depth: 0,
  };
}

function loreEntry(raw: unknown): LoreEntry[] {
  const entry = object(raw);
  if (!entry) return [];
  const entryUnit = unit(entry.unit);
  return [
    {
      name: text(entry.name),
      keys: texts(entry.keys),
      secondary_keys: texts(entry.secondary_keys),
      text: text(entry.text),
      is_constant: entry.is_constant === true,
      is_enabled: entry.is_enabled !== false,
      order: typeof entry.order === "number" && Number.isFinite(entry.order) ? entry.order : 100,
      depth: count(entry.depth, 0, MAX_DEPTH),
      ...(entryUnit && { unit: entryUnit }),
      ...(entry.is_case_sensitive === true && { is_case_sensitive: true }),
      ...(entry.is_partial === true && { is_partial: true }),
    },
  ];
}

function ownPreset(raw: unknown): OwnPreset[] {
  const preset = object(raw);
  const name = text(preset?.name);
  return preset && name ? [{ name, values: parseValues(preset.values) }] : [];
}

function integerWithin(value: unknown, min: number, max: number): number | null {
  return typeof value === "number" && Number.isInteger(value) && value >= min && value <= max ? value : null;
}

function count(value: unknown, fallback: number, max: number): number {
  return typeof value === "number" && value >= 0 ? Math.min(Math.floor(value), max) : fallback;
}

function unit(value: unknown): DepthUnit | null {
  return value === "tokens" || value === "lines" ? value : null;
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

function texts(value: unknown): string[] {
  return list(value).filter((each) => typeof each === "string");
}

function object(value: unknown): Readonly<Record<string, unknown>> | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
}
