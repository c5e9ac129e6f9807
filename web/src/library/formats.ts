/** Formats of documents: their names, and the detection of a file's format from its content. */

export const IMPORT_FORMATS = ["json", "markdown", "text", "loom", "mikupad", "sillytavern", "koboldai"] as const;
export const EXPORT_FORMATS = ["json", "markdown", "text", "loom", "mikupad"] as const;

export type ImportFormat = (typeof IMPORT_FORMATS)[number];
export type ExportFormat = (typeof EXPORT_FORMATS)[number];

interface FileKind {
  readonly extension: string;
  readonly mediaType: string;
  /** True if a file has one path alone. */
  readonly isPath: boolean;
}

export const EXPORT_KINDS: Readonly<Record<ExportFormat, FileKind>> = {
  json: { extension: "json", mediaType: "application/json", isPath: false },
  markdown: { extension: "md", mediaType: "text/markdown", isPath: true },
  text: { extension: "txt", mediaType: "text/plain", isPath: true },
  loom: { extension: "loom.json", mediaType: "application/json", isPath: false },
  mikupad: { extension: "mikupad.json", mediaType: "application/json", isPath: true },
};

/** Returns the most likely format of a file. */
export function detectFormat(name: string, content: string): ImportFormat {
  const start = content.trimStart().charAt(0);
  if (start === "{" || start === "[") {
    try {
      const found = formatOfJson(JSON.parse(content));
      if (found) return found;
    } catch {
      // A text may begin with a brace.
    }
  }
  if (/\.(md|markdown)$/i.test(name)) return "markdown";
  if (/\.(txt|text)$/i.test(name)) return "text";
  return /^#{1,6} \S/m.test(content) ? "markdown" : "text";
}

function formatOfJson(value: unknown): ImportFormat | null {
  if (Array.isArray(value)) return value.some((each) => isObject(each) && "key" in each) ? "koboldai" : null;
  if (!isObject(value)) return null;
  if (value.format === "weft document") return "json";
  if (isObject(value.root)) return "loom";
  if ("actions" in value || "worldinfo" in value || "gamestarted" in value) return "koboldai";
  if ("entries" in value) return "sillytavern";
  if (isSession(value.prompt)) return "mikupad";
  return typeof value.prompt === "string" ? "koboldai" : null;
}

/** Returns whether a prompt is one of mikupad: a list of chunks, or its JSON. */
function isSession(prompt: unknown): boolean {
  if (Array.isArray(prompt)) return true;
  return typeof prompt === "string" && /^\s*\[/.test(prompt);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Returns a file name for a title: without characters that a file system refuses, and not too long. */
export function fileName(title: string, extension: string, fallback: string): string {
  const name = title
    .replace(/[\p{Cc}\p{Cf}<>:"/\\|?*]+/gu, " ")
    .replace(/\s+/g, " ")
    .replace(/^[ .]+|[ .]+$/g, "");
  return `${[...(name || fallback)].slice(0, 80).join("").trim()}.${extension}`;
}

/** Returns a file name without its folders and extension, as a title. */
export function titleOfFile(name: string): string {
  const base = name.split(/[/\\]/).at(-1) ?? name;
  return base.replace(/(\.(loom|mikupad))?\.[a-z]{1,8}$/i, "");
}
