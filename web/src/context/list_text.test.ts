import { describe, expect, it } from "vitest";
import { listText, parseList } from "./list_text";

describe("lists of texts", () => {
  it.each([[["a", " b "]], [["\n\n", "\\n", "\\"]], [[]]])("%j survive as text", (list) => {
    expect(parseList(listText(list))).toEqual(list);
  });

  it("leave out empty lines", () => {
    expect(parseList("a\n\nb\n")).toEqual(["a", "b"]);
  });
});
