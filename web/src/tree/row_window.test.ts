import { describe, expect, test } from "vitest";

import { MAX_ROWS, rowWindow, scrollToRow } from "./row_window";

describe("rows in the DOM", () => {
  test("are those in the viewport and some around it", () => {
    expect(rowWindow(3000, 300, 30, 100_000)).toEqual({ first: 88, end: 122 });
  });

  test("end with the list", () => {
    expect(rowWindow(0, 300, 30, 5)).toEqual({ first: 0, end: 5 });
    expect(rowWindow(9999, 300, 30, 20)).toEqual({ first: 7, end: 20 });
    expect(rowWindow(0, 300, 30, 0)).toEqual({ first: 0, end: 0 });
  });

  test("are at most 400, even in a viewport without an end", () => {
    const { first, end } = rowWindow(0, Number.POSITIVE_INFINITY, 30, 100_000);
    expect(end - first).toBe(MAX_ROWS);
  });
});

test("a list scrolls as little as shows a row", () => {
  expect(scrollToRow(5, 0, 300, 30)).toBe(0);
  expect(scrollToRow(5, 200, 300, 30)).toBe(150);
  expect(scrollToRow(20, 0, 300, 30)).toBe(330);
});
