/** Sampling parameters: fields with their ranges, presets, and the fields of a request. No I/O here. */

import type { OwnPreset } from "./settings";

export type LogitBias = [text: string, bias: number | false][];

/** Sampling parameters as a document stores them, with the names of the request; a missing one is the server's default. */
export interface SamplingValues {
  temperature?: number;
  dynatemp_range?: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
  typical_p?: number;
  top_n_sigma?: number;
  xtc_probability?: number;
  xtc_threshold?: number;
  repeat_penalty?: number;
  repeat_last_n?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  dry_multiplier?: number;
  dry_base?: number;
  dry_allowed_length?: number;
  dry_penalty_last_n?: number;
  dry_sequence_breakers?: string[];
  mirostat?: number;
  mirostat_tau?: number;
  mirostat_eta?: number;
  distinct?: boolean;
  diverse?: "arithmetic" | "beam";
  beam_width?: number;
  length_penalty?: number;
  ignore_eos?: boolean;
  stop?: string[];
  logit_bias?: LogitBias;
}

export type NumberName = {
  [Name in keyof SamplingValues]-?: SamplingValues[Name] extends number | undefined ? Name : never;
}[keyof SamplingValues];

export interface NumberField {
  name: NumberName;
  isInteger: boolean;
  /** Missing if the server accepts any number. */
  min?: number;
  max?: number;
  /** True if `min` itself is not allowed. */
  isMinExcluded?: boolean;
  /** Step of the arrow keys. */
  step: number;
}

export type FieldGroup = "basic" | "xtc" | "repetition" | "dry" | "mirostat" | "beams";

const MIN_BEAMS = 2;

const number = (name: NumberName, step: number, min?: number, max?: number): NumberField => ({
  name,
  isInteger: false,
  step,
  ...(min !== undefined && { min }),
  ...(max !== undefined && { max }),
});
const integer = (name: NumberName, min: number, max?: number): NumberField => ({
  ...number(name, 1, min, max),
  isInteger: true,
});

/** Fields for numbers, with the ranges of the server. */
export const NUMBER_FIELDS: Readonly<Record<FieldGroup, readonly NumberField[]>> = {
  basic: [
    number("temperature", 0.05, 0),
    integer("top_k", 0),
    number("top_p", 0.01, 0, 1),
    number("min_p", 0.01, 0, 1),
    number("typical_p", 0.01, 0, 1),
    number("top_n_sigma", 0.1, -1),
    number("dynatemp_range", 0.05, 0),
  ],
  xtc: [number("xtc_probability", 0.05, 0, 1), number("xtc_threshold", 0.01, 0, 1)],
  repetition: [
    { ...number("repeat_penalty", 0.01, 0), isMinExcluded: true },
    number("presence_penalty", 0.05),
    number("frequency_penalty", 0.05),
    integer("repeat_last_n", -1),
  ],
  dry: [
    number("dry_multiplier", 0.1, 0),
    number("dry_base", 0.05, 1),
    integer("dry_allowed_length", 0),
    integer("dry_penalty_last_n", -1),
  ],
  mirostat: [number("mirostat_tau", 0.1, 0), number("mirostat_eta", 0.01, 0)],
  beams: [integer("beam_width", MIN_BEAMS), number("length_penalty", 0.1, -10, 10)],
};

const ALL_FIELDS = Object.values(NUMBER_FIELDS).flat();
const BOOLEANS = ["distinct", "ignore_eos"] as const;
const LISTS = ["stop", "dry_sequence_breakers"] as const;

/** Fields that concern all branches of a request, which cannot differ between them. */
export const GROUP_NAMES = ["distinct", "diverse", "beam_width", "length_penalty"] as const;

export interface Preset {
  /** Identifies a built-in preset; own presets have their name. */
  name: string;
  isBuiltIn: boolean;
  values: SamplingValues;
}

const WIDE: SamplingValues = { top_k: 0, top_p: 1 };

/** Built-in presets; their titles and descriptions are in the texts. */
export const BUILT_IN: readonly Preset[] = [
  { name: "balanced", isBuiltIn: true, values: { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05 } },
  { name: "precise", isBuiltIn: true, values: { temperature: 0.3, top_k: 20, top_p: 0.9, min_p: 0.1 } },
  {
    name: "wild",
    isBuiltIn: true,
    values: { ...WIDE, temperature: 1.3, min_p: 0.04, xtc_probability: 0.5, xtc_threshold: 0.1 },
  },
  {
    name: "fresh",
    isBuiltIn: true,
    values: { ...WIDE, temperature: 0.9, min_p: 0.05, dry_multiplier: 0.8, dry_penalty_last_n: -1 },
  },
  { name: "spread", isBuiltIn: true, values: { ...WIDE, temperature: 1, min_p: 0.03, distinct: true } },
  { name: "even", isBuiltIn: true, values: { ...WIDE, temperature: 1, min_p: 0.03, diverse: "arithmetic" } },
  {
    name: "beams",
    isBuiltIn: true,
    values: { temperature: 1, top_k: 0, top_p: 1, min_p: 0, beam_width: 4, length_penalty: 1 },
  },
  { name: "beam_samples", isBuiltIn: true, values: { temperature: 1, top_k: 0, top_p: 1, min_p: 0, diverse: "beam" } },
];

export const DEFAULT_PRESET = "balanced";

/** Returns all presets: built-in ones, then the document's own. */
export function allPresets(own: readonly OwnPreset[]): Preset[] {
  return [...BUILT_IN, ...own.map(({ name, values }) => ({ name, values, isBuiltIn: false }))];
}

/** Returns the preset of a name; an own preset hides a built-in one of the same name. */
export function findPreset(own: readonly OwnPreset[], name: string): Preset | null {
  return allPresets(own).findLast((preset) => preset.name === name) ?? null;
}

/** Returns sampling parameters of JSON; fields of other types are left out, numbers are kept even if they are out of range. */
export function parseValues(raw: unknown): SamplingValues {
  const values: SamplingValues = {};
  if (typeof raw !== "object" || raw === null) return values;
  const given = raw as Readonly<Record<string, unknown>>;
  for (const name of [...ALL_FIELDS.map((field) => field.name), "mirostat" as const]) {
    const value = given[name];
    if (typeof value === "number" && Number.isFinite(value)) values[name] = value;
  }
  for (const name of BOOLEANS) if (given[name] === true) values[name] = true;
  if (given.diverse === "arithmetic" || given.diverse === "beam") values.diverse = given.diverse;
  for (const name of LISTS) {
    const value = given[name];
    if (Array.isArray(value) && value.every((each) => typeof each === "string")) values[name] = [...value];
  }
  if (Array.isArray(given.logit_bias)) values.logit_bias = given.logit_bias.flatMap((pair) => biasPair(pair));
  return values;
}

function biasPair(pair: unknown): LogitBias {
  if (!Array.isArray(pair) || pair.length !== 2) return [];
  const [text, bias] = pair as [unknown, unknown];
  return typeof text === "string" && (bias === false || (typeof bias === "number" && Number.isFinite(bias)))
    ? [[text, bias]]
    : [];
}

export function equalValues(one: SamplingValues, other: SamplingValues): boolean {
  const sorted = (values: SamplingValues) =>
    JSON.stringify(
      Object.entries(values)
        .filter(([, value]) => value !== undefined)
        .sort(([a], [b]) => (a < b ? -1 : 1)),
    );
  return sorted(one) === sorted(other);
}

/** A value that the server would refuse or change. */
export type Problem =
  | { field: string; kind: "not_a_number" | "not_an_integer" }
  | { field: string; kind: "out_of_range"; min?: number; max?: number; isMinExcluded?: boolean }
  | { field: string; kind: "conflict"; other: string }
  | { field: string; kind: "too_few_beams"; n: number }
  | { field: string; kind: "too_many_beams"; slots: number }
  | { field: string; kind: "exists" | "empty" };

/** Returns what is wrong with the text of a number field, or null. An empty text selects the server's default. */
export function checkNumber(field: Omit<NumberField, "name" | "step"> & { name: string }, text: string): Problem | null {
  if (!text.trim()) return null;
  const value = Number(text.trim().replace(",", "."));
  if (!Number.isFinite(value)) return { field: field.name, kind: "not_a_number" };
  if (field.isInteger && !Number.isInteger(value)) return { field: field.name, kind: "not_an_integer" };
  const { min, max, isMinExcluded } = field;
  const isBelow = min !== undefined && (isMinExcluded ? value <= min : value < min);
  if (!isBelow && (max === undefined || value <= max)) return null;
  return {
    field: field.name,
    kind: "out_of_range",
    ...(min !== undefined && { min }),
    ...(max !== undefined && { max }),
    ...(isMinExcluded && { isMinExcluded }),
  };
}

export function parseNumber(text: string): number | undefined {
  return text.trim() ? Number(text.trim().replace(",", ".")) : undefined;
}

/** Returns what the server would refuse. `nSlots` is null if it is unknown. */
export function checkValues(values: SamplingValues, n: number, nSlots: number | null): Problem[] {
  const problems = ALL_FIELDS.flatMap((field) => {
    const value = values[field.name];
    const problem = value === undefined ? null : checkNumber(field, String(value));
    return problem ? [problem] : [];
  });
  const conflict = (field: string, other: string) => problems.push({ field, kind: "conflict", other });
  const isSearch = values.beam_width !== undefined || values.diverse === "beam";
  if (values.mirostat && (values.distinct || values.diverse || isSearch)) conflict("mirostat", searchName(values));
  if (isSearch && values.xtc_probability) conflict("xtc_probability", searchName(values));
  if (isSearch && values.distinct) conflict("distinct", searchName(values));
  if (isSearch) {
    const width = values.beam_width ?? Math.max(n, MIN_BEAMS);
    if (width < n) problems.push({ field: "beam_width", kind: "too_few_beams", n });
    if (nSlots !== null && width > nSlots) problems.push({ field: "beam_width", kind: "too_many_beams", slots: nSlots });
  }
  return problems;
}

function searchName(values: SamplingValues): string {
  return values.beam_width !== undefined ? "beam_width" : values.diverse ? "diverse" : "distinct";
}

export type RequestFields = Readonly<Record<string, unknown>>;

/** Returns the fields of a request with `n` branches that have the same parameters. */
export function requestFields(values: SamplingValues, n: number): RequestFields {
  const isSearch = values.diverse === "beam" && values.beam_width === undefined;
  return { ...sent(values), ...(isSearch && { beam_width: Math.max(n, MIN_BEAMS) }) };
}

/**
 * Returns the fields of a request with `n` branches that have several presets in turn, without those for all together.
 *
 * @param own Parameters of the document, of which those apply that presets need not have.
 */
export function branchedFields(presets: readonly SamplingValues[], n: number, own: SamplingValues): RequestFields {
  const each = presets.map((values) => {
    const fields = sent(values);
    for (const name of GROUP_NAMES) delete fields[name];
    return fields;
  });
  return { ...sent(kept(own)), branches: Array.from({ length: n }, (_, nth) => each[nth % each.length] ?? {}) };
}

/** Fields that stay when another preset is chosen that does not have them. */
const KEPT_NAMES = ["stop", "ignore_eos", "logit_bias"] as const;

function kept(values: SamplingValues): SamplingValues {
  return parseValues(Object.fromEntries(KEPT_NAMES.map((name) => [name, values[name]])));
}

/** Returns the parameters after a preset was chosen. */
export function applyPreset(current: SamplingValues, preset: SamplingValues): SamplingValues {
  return { ...kept(current), ...preset };
}

/** Names of all fields that presets set. */
export const VALUE_NAMES: readonly string[] = [
  ...ALL_FIELDS.map((field) => field.name),
  "mirostat",
  ...BOOLEANS,
  "diverse",
  ...LISTS,
  "logit_bias",
];

/** Returns values without those that switch nothing on. */
function sent(values: SamplingValues): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined || value === false || (Array.isArray(value) && !value.length && name !== "dry_sequence_breakers"))
      continue;
    fields[name] = value;
  }
  if (!values.mirostat) for (const name of ["mirostat", "mirostat_tau", "mirostat_eta"]) delete fields[name];
  if (values.beam_width === undefined) delete fields.length_penalty;
  const biases = values.logit_bias?.filter(([text]) => text !== "") ?? [];
  if (biases.length) fields.logit_bias = biases;
  else delete fields.logit_bias;
  return fields;
}
