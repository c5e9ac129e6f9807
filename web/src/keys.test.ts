import { describe, expect, it } from "vitest";
import { isModified, matches, shownKey } from "./keys";

function press(key: string, init: Partial<KeyboardEvent> = {}): KeyboardEvent {
  const plain = { key, code: "", ctrlKey: false, metaKey: false, altKey: false, shiftKey: false };
  return { ...plain, ...init } as KeyboardEvent;
}

describe("matches", () => {
  it.each([
    ["Mod+Enter", press("Enter", { ctrlKey: true }), false, true],
    ["Mod+Enter", press("Enter", { metaKey: true }), true, true],
    ["Mod+Enter", press("Enter", { ctrlKey: true }), true, false],
    ["Mod+Enter", press("Enter", { ctrlKey: true, shiftKey: true }), false, false],
    ["Mod+Shift+Z", press("Z", { ctrlKey: true, shiftKey: true }), false, true],
    ["?", press("?", { shiftKey: true }), false, true],
    ["?", press("?"), false, true],
    ["a", press("A", { shiftKey: true }), false, false],
    ["Alt+1", press("¡", { altKey: true, code: "Digit1" }), true, true],
    ["Alt+ArrowUp", press("ArrowUp", { altKey: true }), false, true],
    ["Alt+ArrowUp", press("ArrowUp", { ctrlKey: true, metaKey: true }), true, true],
    ["Mod+Shift+.", press(">", { ctrlKey: true, shiftKey: true, code: "Period" }), false, true],
    ["Mod++", press("+", { ctrlKey: true }), false, true],
  ])("%s and %o on a Mac: %s", (name, event, mac, expected) => {
    expect(matches(event, name, mac)).toBe(expected);
  });
});

it("shows keys as the system writes them", () => {
  expect(shownKey("Mod+Shift+Enter", false)).toBe("Ctrl+Shift+Enter");
  expect(shownKey("Mod+Shift+z", true)).toBe("⌘⇧Z");
  expect(shownKey("Alt+ArrowLeft", true)).toBe("⌃⌘←");
});

it("knows keys that type text", () => {
  expect(["Mod+k", "F6", "Shift+F6", "Alt+1"].every(isModified)).toBe(true);
  expect(["?", "ArrowUp", "Shift+Enter", "Escape"].some(isModified)).toBe(false);
});
