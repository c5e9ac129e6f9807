/** Texts of two nodes from where their paths part. */

import type { OpenDocument } from "../model/document.svelte";

type Tree = Pick<OpenDocument, "node" | "path">;

export interface ComparedTexts {
  first: string;
  second: string;
  /** Number of nodes that both paths have. */
  nCommon: number;
}

export function comparedTexts(doc: Tree, first: number, second: number): ComparedTexts {
  const [one, other] = [doc.path(first), doc.path(second)];
  let nCommon = 0;
  while (nCommon < one.length && one[nCommon] === other[nCommon]) nCommon += 1;
  const text = (path: readonly number[]) =>
    path
      .slice(nCommon)
      .map((id) => doc.node(id)?.text ?? "")
      .join("");
  return { first: text(one), second: text(other), nCommon };
}
