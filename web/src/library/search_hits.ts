/** Results of a search, grouped to be shown. */

export interface SearchHit {
  readonly document: string;
  readonly title: string;
  readonly node: number;
  readonly field: "text" | "note" | "label";
  /** Characters of the field before the match; characters are Unicode code points. */
  readonly start: number;
  readonly length: number;
  readonly excerpt: string;
}

export interface HitGroup<H> {
  readonly document: string;
  readonly title: string;
  readonly hits: H[];
}

/** Characters of an excerpt before a match. */
const BEFORE = 60;

/** Returns hits by document, in the order in which documents were found. */
export function grouped<H extends SearchHit>(hits: readonly H[]): HitGroup<H>[] {
  const groups = new Map<string, HitGroup<H>>();
  for (const hit of hits) {
    const group = groups.get(hit.document) ?? { document: hit.document, title: hit.title, hits: [] };
    groups.set(hit.document, group);
    group.hits.push(hit);
  }
  return [...groups.values()];
}

export interface Excerpt {
  readonly before: string;
  readonly match: string;
  readonly after: string;
}

/** Returns the parts of an excerpt. An ellipsis marks a beginning that is not that of the field. */
export function excerptParts({ start, length, excerpt }: SearchHit): Excerpt {
  const characters = [...excerpt];
  const first = Math.min(start, BEFORE);
  return {
    before: (start > BEFORE ? "…" : "") + characters.slice(0, first).join(""),
    match: characters.slice(first, first + length).join(""),
    after: characters.slice(first + length).join(""),
  };
}
