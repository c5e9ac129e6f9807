import type { Client } from "../api/client";
import type { SearchHit } from "../api/types";

/** Time without a key after which a search begins, in milliseconds. */
const TYPING_MS = 200;

/** Matches of one page. */
const PAGE = 50;

export type SearchState = "idle" | "searching" | "done" | "failed";

/** Search in all documents while the user types. A new search cancels the one before it. */
export class DocumentSearch {
  query = $state("");
  /** Document to search; null is all. */
  document: string | null = $state(null);
  hits: readonly SearchHit[] = $state.raw([]);
  state: SearchState = $state("idle");
  /** Why the search failed. */
  problem: unknown = $state.raw(null);

  private next: number | null = $state(null);
  private waiting: ReturnType<typeof setTimeout> | undefined;
  private running: AbortController | null = null;

  constructor(private readonly client: Pick<Client, "search">) {}

  /** Whether there may be further matches. */
  get hasMore(): boolean {
    return this.next !== null && this.state === "done";
  }

  /** Searches when the user pauses. */
  type(query: string): void {
    this.query = query;
    this.cancel();
    if (query.trim() === "") this.clear();
    else {
      this.state = "searching";
      this.waiting = setTimeout(() => void this.run(0), TYPING_MS);
    }
  }

  /** Searches another part of the documents. */
  searchIn(document: string | null): void {
    this.document = document;
    if (this.query.trim() !== "") void this.run(0);
  }

  /** Reads the next page of matches. */
  async more(): Promise<void> {
    if (this.next !== null && this.state === "done") await this.run(this.next);
  }

  clear(): void {
    this.cancel();
    this.query = "";
    this.hits = [];
    this.next = null;
    this.state = "idle";
  }

  private cancel(): void {
    clearTimeout(this.waiting);
    this.running?.abort();
    this.running = null;
  }

  private async run(after: number): Promise<void> {
    this.cancel();
    const running = new AbortController();
    this.running = running;
    this.state = "searching";
    try {
      const where = this.document === null ? {} : { document: this.document };
      const found = await this.client.search(this.query.trim(), { ...where, after, limit: PAGE }, running.signal);
      if (running.signal.aborted) return;
      this.hits = after === 0 ? found.hits : [...this.hits, ...found.hits];
      this.next = found.next;
      this.state = "done";
    } catch (error) {
      if (running.signal.aborted) return;
      this.problem = error;
      this.state = "failed";
    }
  }
}
