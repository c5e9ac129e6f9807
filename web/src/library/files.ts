/** Files that the user imports, and those that the page saves. */

import { detectFormat, titleOfFile, type ImportFormat } from "./formats";

/** A file that was read, with the format it seems to have. */
export interface ReadFile {
  readonly name: string;
  readonly content: string;
  readonly format: ImportFormat;
}

/** A file that is no text. */
export class NotTextError extends Error {}

/**
 * Reads a file as UTF-8.
 *
 * @throws {NotTextError} The file is no text.
 */
export async function readFile(file: File): Promise<ReadFile> {
  let content: string;
  try {
    content = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new NotTextError(file.name);
  }
  if (content.includes("\0")) throw new NotTextError(file.name);
  return { name: file.name, content, format: detectFormat(file.name, content) };
}

/** Returns the title of an imported file, or undefined if its content has one. */
export function titleFor({ name, content, format }: ReadFile): string | undefined {
  if (format === "json" || format === "mikupad") return undefined;
  if (format === "markdown" && /^\s*# \S/.test(content)) return undefined;
  return titleOfFile(name);
}

/** Saves content as a file, as if the user had followed a link to it. */
export function download(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  // The download has begun by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
