import { expect, it } from "vitest";
import { countWords } from "./word_count.svelte";

it.each([
  ["", 0],
  ["One day, a fox — who couldn't sing — ran.", 8],
  ["mother-in-law's cat", 2],
  ["naïve café, e\u0301tude", 3],
  ["Всё хорошо. 3 Ελληνικά", 4],
])("counts the words of %j", (text, n) => {
  expect(countWords(text)).toBe(n);
});
