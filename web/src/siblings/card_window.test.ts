import { describe, expect, it } from "vitest";
import { cardHeight, cardWindow, scrollToCard } from "./card_window";

describe("cardHeight", () => {
  it("shares the viewport among few cards, and is bounded", () => {
    expect(cardHeight(800, 4, 16)).toBe(200);
    expect(cardHeight(800, 400, 16)).toBe(176);
    expect(cardHeight(800, 1, 16)).toBe(384);
    expect(cardHeight(0, 0, 16)).toBe(176);
  });
});

describe("cardWindow", () => {
  it("has few cards of four hundred", () => {
    expect(cardWindow(20_000, 800, 176, 400)).toEqual({ first: 111, end: 121 });
    expect(cardWindow(0, 800, 176, 400)).toEqual({ first: 0, end: 7 });
    expect(cardWindow(1e9, 800, 176, 400)).toEqual({ first: 397, end: 400 });
    expect(cardWindow(0, 800, 176, 0)).toEqual({ first: 0, end: 0 });
  });
});

describe("scrollToCard", () => {
  it("moves as little as needed", () => {
    expect(scrollToCard(0, 100, 800, 176)).toBe(0);
    expect(scrollToCard(2, 100, 800, 176)).toBe(100);
    expect(scrollToCard(10, 0, 800, 176)).toBe(11 * 176 - 800);
  });
});
