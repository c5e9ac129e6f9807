import { SvelteMap } from "svelte/reactivity";
import type { Client } from "../api/client";
import type { DocumentEvent, DocumentRecord, Quotas } from "../api/types";

/** The user's documents, without their nodes, kept current by events. */
export class Library {
  /** Documents by id, including those in the trash. */
  readonly documents: ReadonlyMap<string, DocumentRecord>;

  quotas = $state.raw<Quotas | null>(null);

  /** Whether the documents were read. */
  isLoaded = $state(false);

  private readonly known = new SvelteMap<string, DocumentRecord>();

  constructor(private readonly client: Client) {
    this.documents = this.known;
  }

  /** Reads all documents. Returns the position in the stream of events that continues from them. */
  async load(): Promise<string> {
    const report = await this.client.listDocuments();
    this.quotas = report.quotas;
    const ids = new Set(report.documents.map(({ id }) => id));
    for (const id of [...this.known.keys()]) if (!ids.has(id)) this.known.delete(id);
    for (const document of report.documents) this.known.set(document.id, document);
    this.isLoaded = true;
    return report.cursor;
  }

  /** Adds a document of an answer to a request, unless a newer one is known. */
  answered(document: DocumentRecord): void {
    if ((this.known.get(document.id)?.version ?? 0) <= document.version) this.known.set(document.id, document);
  }

  /** Applies an event. */
  apply(event: DocumentEvent): void {
    if (event.type === "document") this.answered(event.document);
    else if (event.type === "document_deleted") this.known.delete(event.document);
  }
}
