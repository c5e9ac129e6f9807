/** Numbers in texts. */

export function formatNumber(value: number): string {
  return value.toLocaleString("en");
}

export function formatTokens(nTokens: number): string {
  return `${formatNumber(nTokens)} ${nTokens === 1 ? "token" : "tokens"}`;
}
