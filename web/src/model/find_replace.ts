/** Find and replace in the texts of nodes. No I/O here. */

export interface FindOptions {
  readonly pattern: string;
  readonly isExpression: boolean;
  readonly isCaseSensitive: boolean;
  readonly isWholeWord: boolean;
}

export interface NodeText {
  readonly id: number;
  readonly text: string;
}

/** A match in a text, with the text that replaces it. Offsets are in UTF-16 units. */
export interface TextMatch {
  readonly start: number;
  readonly end: number;
  readonly replacement: string;
}

/** Matches that one search returns at most, so that a pattern like `.` does not fill the memory. */
export const MAX_MATCHES = 100_000;

const NO_WORD_BEFORE = "(?<![\\p{L}\\p{M}\\p{N}_])";
const NO_WORD_AFTER = "(?![\\p{L}\\p{M}\\p{N}_])";

/**
 * Returns the expression of a search.
 *
 * @throws {SyntaxError} The pattern is no valid regular expression.
 */
export function expression(options: FindOptions): RegExp {
  const { pattern, isExpression, isCaseSensitive, isWholeWord } = options;
  const source = isExpression ? pattern : escaped(pattern);
  const flags = isCaseSensitive ? "gmu" : "gimu";
  // Checked alone, so that the message names the pattern as the user wrote it.
  void new RegExp(source, flags);
  return isWholeWord ? new RegExp(`${NO_WORD_BEFORE}(?:${source})${NO_WORD_AFTER}`, flags) : new RegExp(source, flags);
}

function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}

/** Returns the reason without the prefix and the pattern, which browsers put before it. */
export function reasonOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return message.replace(/^Invalid regular expression: (\/.*\/[a-z]*: )?/s, "");
}

/** Returns the matches of an expression with the flag `g`. Empty matches are left out. */
export function findMatches(
  text: string,
  regex: RegExp,
  template: string,
  isExpression: boolean,
  limit = MAX_MATCHES,
): TextMatch[] {
  const matches: TextMatch[] = [];
  for (const match of text.matchAll(regex)) {
    if (match[0] === "") continue;
    const replacement = isExpression ? expanded(template, match) : template;
    matches.push({ start: match.index, end: match.index + match[0].length, replacement });
    if (matches.length === limit) break;
  }
  return matches;
}

/** Returns a replacement: `$1` and `$<name>` are groups, `$&` the match, `$$` a dollar; `\n` and `\t` are a line break and a tab. */
function expanded(template: string, match: RegExpMatchArray): string {
  return template.replace(/\$(\$|&|\d{1,2}|<([^>]*)>)|\\([nt\\])/g, (whole, mark?: string, name?: string, escape?: string) => {
    if (escape !== undefined) return escape === "n" ? "\n" : escape === "t" ? "\t" : "\\";
    if (mark === "$") return "$";
    if (mark === "&") return match[0];
    if (name !== undefined) return match.groups ? (match.groups[name] ?? "") : whole;
    const number = Number(mark);
    return number > 0 && number < match.length ? (match[number] ?? "") : whole;
  });
}

/**
 * Returns the new texts of a path, of those nodes that a replacement changes.
 * Matches refer to the joined text, so that one may begin in a node and end in another: the replacement goes to the first.
 */
export function replacedInPath(path: readonly NodeText[], matches: readonly TextMatch[]): NodeText[] {
  let offset = 0;
  return path.flatMap((node) => {
    const start = offset;
    const end = (offset += node.text.length);
    let text = "";
    let done = start;
    for (const match of matches) {
      if (match.end <= start || match.start >= end) continue;
      const isFirst = match.start >= start;
      text += node.text.slice(done - start, Math.max(match.start, start) - start) + (isFirst ? match.replacement : "");
      done = Math.min(match.end, end);
    }
    text += node.text.slice(done - start);
    return text === node.text ? [] : [{ id: node.id, text }];
  });
}

/** Returns the text with all its matches replaced. */
export function replaced(text: string, matches: readonly TextMatch[]): string {
  let result = "";
  let done = 0;
  for (const { start, end, replacement } of matches) {
    result += text.slice(done, start) + replacement;
    done = end;
  }
  return result + text.slice(done);
}

/** Texts that are searched as one: the path, or each node of the document alone. */
export interface Found {
  readonly nMatches: number;
  /** Nodes in which a match begins. */
  readonly nNodes: number;
  /** True if the search ended at `MAX_MATCHES`. */
  readonly isCut: boolean;
  /** New texts of the nodes that a replacement changes. */
  readonly changed: NodeText[];
  /** First matches with their surroundings, to show. */
  readonly examples: Example[];
}

export interface Example {
  readonly node: number;
  readonly before: string;
  readonly match: string;
  readonly after: string;
}

export interface FindTask {
  readonly source: string;
  readonly flags: string;
  readonly template: string;
  readonly isExpression: boolean;
  /** True if the nodes are a path, whose texts are searched as one. */
  readonly isPath: boolean;
  readonly nodes: readonly NodeText[];
}

const MAX_EXAMPLES = 50;
const CONTEXT = 40;

/** Finds the matches of a task. */
export function find(task: FindTask): Found {
  const regex = new RegExp(task.source, task.flags);
  return task.isPath ? findInPath(task, regex) : findInNodes(task, regex);
}

function findInPath({ nodes, template, isExpression }: FindTask, regex: RegExp): Found {
  const text = nodes.map((each) => each.text).join("");
  const matches = findMatches(text, regex, template, isExpression);
  const examples: Example[] = [];
  const starts = new Set<number>();
  let nth = 0;
  let offset = 0;
  for (const match of matches) {
    while (offset + (nodes[nth] as NodeText).text.length <= match.start) offset += (nodes[nth++] as NodeText).text.length;
    const node = (nodes[nth] as NodeText).id;
    starts.add(node);
    if (examples.length < MAX_EXAMPLES) examples.push(example(node, text, match));
  }
  return {
    nMatches: matches.length,
    nNodes: starts.size,
    isCut: matches.length === MAX_MATCHES,
    // A replacement that is equal must not move text from one node to another.
    changed: replacedInPath(
      nodes,
      matches.filter((each) => text.slice(each.start, each.end) !== each.replacement),
    ),
    examples,
  };
}

function findInNodes({ nodes, template, isExpression }: FindTask, regex: RegExp): Found {
  const examples: Example[] = [];
  const changed: NodeText[] = [];
  let nMatches = 0;
  let nNodes = 0;
  for (const { id, text } of nodes) {
    const matches = findMatches(text, regex, template, isExpression, MAX_MATCHES - nMatches);
    if (matches.length === 0) continue;
    nMatches += matches.length;
    nNodes += 1;
    for (const match of matches.slice(0, MAX_EXAMPLES - examples.length)) examples.push(example(id, text, match));
    const result = replaced(text, matches);
    if (result !== text) changed.push({ id, text: result });
    if (nMatches === MAX_MATCHES) break;
  }
  return { nMatches, nNodes, isCut: nMatches === MAX_MATCHES, changed, examples };
}

function example(node: number, text: string, { start, end }: TextMatch): Example {
  return {
    node,
    before: whole(text.slice(Math.max(0, start - CONTEXT), start)),
    match: text.slice(start, end),
    after: whole(text.slice(end, end + CONTEXT)),
  };
}

/** Returns a cut text without halves of surrogate pairs at its ends. */
function whole(text: string): string {
  return text.replace(/^[\udc00-\udfff]|[\ud800-\udbff]$/g, "");
}
