import { describe, expect, it } from "vitest";
import { levelOf, meanProbability, percent } from "./probability";

describe("levelOf", () => {
  it.each([
    [1, "certain"],
    [0.81, "certain"],
    [0.79, "likely"],
    [0.2, "possible"],
    [0.05, "unlikely"],
    [0.001, "rare"],
    [0, "rare"],
  ])("of %f is %s", (probability, level) => {
    expect(levelOf(Math.log(probability))).toBe(level);
  });
});

describe("percent", () => {
  it.each([
    [1, "100\u202f%"],
    [0.99999, ">\u200999.9\u202f%"],
    [0.993, "99.3\u202f%"],
    [0.42, "42\u202f%"],
    [0.0712, "7.1\u202f%"],
    [0.0042, "0.42\u202f%"],
    [0.000001, "<\u20090.01\u202f%"],
    [0, "0\u202f%"],
  ])("of %f is %s", (probability, text) => {
    expect(percent(probability)).toBe(text);
  });
});

describe("meanProbability", () => {
  it("is the geometric mean", () => {
    expect(meanProbability(Math.log(0.5) + Math.log(0.125), 2)).toBeCloseTo(0.25);
    expect(meanProbability(0, 0)).toBeNull();
  });
});
