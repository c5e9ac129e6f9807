/** Lists of texts in a text area: one on each line, with `\n` for a line break and `\\` for a backslash. */

export function listText(list: readonly string[] | undefined): string {
  return list?.map((each) => each.replaceAll("\\", "\\\\").replaceAll("\n", "\\n")).join("\n") ?? "";
}

export function parseList(text: string): string[] {
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => line.replace(/\\([\\n])/g, (_, escaped: string) => (escaped === "n" ? "\n" : "\\")));
}
