/** Probabilities of tokens in words and levels. No I/O here. */

/** How likely a token was, in steps that can be told apart by their marks. */
export type Level = "certain" | "likely" | "possible" | "unlikely" | "rare";

/** Lower bound of each level. */
export const LEVELS: readonly { level: Level; from: number }[] = [
  { level: "certain", from: 0.8 },
  { level: "likely", from: 0.4 },
  { level: "possible", from: 0.15 },
  { level: "unlikely", from: 0.03 },
  { level: "rare", from: 0 },
];

export function levelOf(logprob: number): Level {
  const probability = Math.exp(logprob);
  return LEVELS.find(({ from }) => probability >= from)?.level ?? "rare";
}

/** Returns a probability in percent, with two digits where they differ from 0 and 100. */
export function percent(probability: number): string {
  const value = probability * 100;
  if (value > 0 && value < 0.01) return "<\u20090.01\u202f%";
  if (value < 100 && value > 99.9) return ">\u200999.9\u202f%";
  const digits = value >= 99.95 || value === 0 ? 0 : value >= 9.95 ? (value >= 99 ? 1 : 0) : value >= 0.995 ? 1 : 2;
  return `${value.toFixed(digits)}\u202f%`;
}

/** Geometric mean of probabilities, which is the inverse of the perplexity; null if none is known. */
export function meanProbability(logprobSum: number, n: number): number | null {
  return n > 0 ? Math.exp(logprobSum / n) : null;
}
