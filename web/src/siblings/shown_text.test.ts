import { describe, expect, it } from "vitest";
import { shownText } from "./shown_text";

describe("shownText", () => {
  it("shows a short text without blank lines at its beginning", () => {
    expect(shownText("\n\na fox\n", false)).toEqual({ text: "a fox\n", start: 2, nCut: 0 });
    expect(shownText("", true)).toEqual({ text: "", start: 0, nCut: 0 });
  });

  it("shows the beginning of a long text, and the end of one that is written", () => {
    const text = "🦊".repeat(5000) + "x";
    const shown = shownText(text, false);
    expect([shown.text.length, shown.start, shown.nCut]).toEqual([8000, 0, 2001]);
    const running = shownText(text, true);
    expect([running.text.length, running.start, running.nCut]).toEqual([7999, 2002, 2002]);
    expect(running.text.codePointAt(0)).toBe("🦊".codePointAt(0));
  });
});
