/**
 * Keys of actions: names as "Mod+Shift+Enter", "Alt+ArrowUp", "F6" or "?".
 *
 * "Mod" is the command key on Macs, else Ctrl. "Alt" with an arrow is Ctrl+Command on Macs, where Option moves by words.
 */

/** Keys that are named by their position, since modifiers change the character that they type. */
const CODES: Readonly<Record<string, string>> = {
  ".": "Period",
  ",": "Comma",
  "/": "Slash",
  "[": "BracketLeft",
  "]": "BracketRight",
};

const MAC_SYMBOLS: Readonly<Record<string, string>> = { Mod: "⌘", Meta: "⌘", Ctrl: "⌃", Alt: "⌥", Shift: "⇧" };

const SYMBOLS: Readonly<Record<string, string>> = {
  Mod: "Ctrl",
  ArrowUp: "↑",
  ArrowDown: "↓",
  ArrowLeft: "←",
  ArrowRight: "→",
  Enter: "Enter",
  Escape: "Esc",
  Delete: "Del",
};

export const isMac = typeof navigator !== "undefined" && /Mac|iPhone|iPad/.test(navigator.platform);

interface Chord {
  ctrl: boolean;
  meta: boolean;
  alt: boolean;
  shift: boolean;
  key: string;
}

/** Returns whether a key event is that of a key's name. */
export function matches(event: KeyboardEvent, name: string, mac = isMac): boolean {
  const chord = parse(name, mac);
  if (event.ctrlKey !== chord.ctrl || event.metaKey !== chord.meta || event.altKey !== chord.alt) return false;
  const isModified = chord.ctrl || chord.meta || chord.alt;
  // A symbol may need Shift on some keyboards.
  const isSymbol = chord.key.length === 1 && !/[a-z0-9 ]/i.test(chord.key);
  if (event.shiftKey !== chord.shift && !(isSymbol && !isModified)) return false;
  if (event.key.toLowerCase() === chord.key.toLowerCase()) return true;
  return isModified && event.code === codeOf(chord.key);
}

/** Returns whether a key does not type text, so that it can be an action of any place. */
export function isModified(name: string): boolean {
  return /^(Mod|Ctrl|Alt|Meta)\+/.test(name) || /^(Shift\+)?F\d+$/.test(name);
}

/** Returns a key's name as it is shown. */
export function shownKey(name: string, mac = isMac): string {
  const parts = partsOf(name, mac);
  if (mac) return parts.map((part) => MAC_SYMBOLS[part] ?? SYMBOLS[part] ?? upper(part)).join("");
  return parts.map((part) => SYMBOLS[part] ?? upper(part)).join("+");
}

function parse(name: string, mac: boolean): Chord {
  const parts = partsOf(name, mac);
  const has = (modifier: string) => parts.slice(0, -1).includes(modifier);
  return {
    ctrl: has("Ctrl") || (!mac && has("Mod")),
    meta: has("Meta") || (mac && has("Mod")),
    alt: has("Alt"),
    shift: has("Shift"),
    key: parts.at(-1)!,
  };
}

function partsOf(name: string, mac: boolean): string[] {
  const parts = name.split(/\+(?!$)/);
  if (mac && parts.includes("Alt") && parts.at(-1)!.startsWith("Arrow")) {
    return ["Ctrl", "Meta", ...parts.filter((part) => part !== "Alt")];
  }
  return parts;
}

function codeOf(key: string): string {
  if (/^[a-z]$/i.test(key)) return `Key${key.toUpperCase()}`;
  if (/^\d$/.test(key)) return `Digit${key}`;
  return CODES[key] ?? key;
}

function upper(part: string): string {
  return part.length === 1 ? part.toUpperCase() : part;
}
