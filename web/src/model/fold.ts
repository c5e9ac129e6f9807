/** Text without case and diacritics, as the search of the server compares it. */

const ASCII = /^[\0-\x7f]*$/;

export function fold(text: string): string {
  if (ASCII.test(text)) return text.toLowerCase();
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}
