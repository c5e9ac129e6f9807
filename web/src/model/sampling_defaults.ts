/** Parameters with which new documents of this browser begin. */

import { DEFAULT_PRESET, findPreset } from "./presets";
import { readSettings, type ContextSettings } from "./settings";

const KEY = "weft.sampling";
const NAMES = ["sampling", "preset", "presets", "branch_presets", "n_probs"] as const;

type Defaults = Pick<ContextSettings, (typeof NAMES)[number]>;

/** Returns the settings of a document, with the browser's parameters where the document has none of its own. */
export function readWithDefaults(raw: Readonly<Record<string, unknown>>, storage: Storage = localStorage): ContextSettings {
  const isComplete = NAMES.every((name) => raw[name] !== undefined);
  return readSettings(isComplete ? raw : { ...loadDefaults(storage), ...raw });
}

export function saveDefaults(settings: ContextSettings, storage: Storage = localStorage): void {
  storage.setItem(KEY, JSON.stringify(Object.fromEntries(NAMES.map((name) => [name, settings[name]]))));
}

export function loadDefaults(storage: Storage = localStorage): Defaults {
  let raw: unknown = null;
  try {
    raw = JSON.parse(storage.getItem(KEY) ?? "null");
  } catch {
    // The stored text is no JSON, or the browser forbids storage.
  }
  if (typeof raw !== "object" || raw === null) {
    const values = findPreset([], DEFAULT_PRESET)?.values ?? {};
    return { sampling: { ...values }, preset: DEFAULT_PRESET, presets: [], branch_presets: [], n_probs: null };
  }
  const { sampling, preset, presets, branch_presets, n_probs } = readSettings(raw as Record<string, unknown>);
  return { sampling, preset, presets, branch_presets, n_probs };
}
