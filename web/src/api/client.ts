import type {
  ChangedNodes,
  ChatMessage,
  Continued,
  ContinueRequest,
  DocumentChange,
  DocumentRecord,
  DocumentsReport,
  ExportFormat,
  ImportedDocument,
  ImportRequest,
  NewDocument,
  NewNode,
  NodeChange,
  NodeChanged,
  NodeRecord,
  NodesReport,
  Prompt,
  Resumed,
  SearchReport,
  ServerProps,
  TextPosition,
  TokenizeRequest,
  TokenPiece,
  TokensReport,
} from "./types";

/** An answer of the server with an error status. `message` is the server's own. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** Name of the invalid field of the request, if the server names one. */
    readonly param: string | null = null,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

/** No answer of the server: it is not running, or cannot be reached, also through a proxy. */
export class ConnectionError extends Error {
  constructor(cause: unknown) {
    super("The server cannot be reached", { cause });
    this.name = "ConnectionError";
  }
}

/** Statuses of proxies whose server does not answer. */
const PROXY_STATUSES: readonly number[] = [502, 504];

type Query = Record<string, string | number | null | undefined>;

/**
 * The server's routes, one method each. Methods throw `ApiError` or `ConnectionError`, and retry nothing.
 *
 * URLs are relative to the page, which may be below an `--api-prefix`.
 */
export class Client {
  /** API key, sent as `Authorization: Bearer`; null sends none. */
  apiKey: string | null = null;

  /** Called when the server answers 401, with the request still failing. */
  onUnauthorized: () => void = () => {};

  constructor(private readonly base: string = ".") {}

  listDocuments(): Promise<DocumentsReport> {
    return this.json("GET", "documents");
  }

  createDocument(document: NewDocument): Promise<DocumentRecord> {
    return this.json("POST", "documents", document);
  }

  document(id: string): Promise<DocumentRecord> {
    return this.json("GET", `documents/${id}`);
  }

  changeDocument(id: string, change: DocumentChange): Promise<DocumentRecord> {
    return this.json("PATCH", `documents/${id}`, change);
  }

  /** Deletes a document for good. */
  async deleteDocument(id: string): Promise<void> {
    await this.request("DELETE", `documents/${id}`);
  }

  duplicateDocument(id: string, title: string): Promise<DocumentRecord> {
    return this.json("POST", `documents/${id}/duplicate`, { title });
  }

  /** Continues all interrupted branches of a document, except those in the trash, with the prompts that are given by node. */
  resumeDocument(id: string, prompts: Readonly<Record<string, Prompt>>): Promise<Resumed> {
    return this.json("POST", `documents/${id}/resume`, { prompts });
  }

  importDocument(file: ImportRequest): Promise<ImportedDocument> {
    return this.json("POST", "documents/import", file);
  }

  /** Returns the content of an exported file; `node` is the last one of the path, for formats of one text. */
  async exportDocument(id: string, format: ExportFormat, node: number | null = null): Promise<Blob> {
    return (await this.request("GET", withQuery(`documents/${id}/export`, { format, node }))).blob();
  }

  search(
    q: string,
    options: { document?: string; after?: number; limit?: number } = {},
    signal?: AbortSignal,
  ): Promise<SearchReport> {
    return this.json("GET", withQuery("documents/search", { q, ...options }), undefined, signal);
  }

  listNodes(document: string, after = 0, limit = 10_000): Promise<NodesReport> {
    return this.json("GET", withQuery(`documents/${document}/nodes`, { after, limit }));
  }

  createNode(document: string, node: NewNode): Promise<NodeRecord> {
    return this.json("POST", `documents/${document}/nodes`, node);
  }

  node(document: string, id: number): Promise<NodeRecord> {
    return this.json("GET", nodePath(document, id));
  }

  changeNode(document: string, id: number, change: NodeChange): Promise<NodeChanged> {
    return this.json("PATCH", nodePath(document, id), change);
  }

  /** Deletes a node with its descendants for good. */
  deleteNode(document: string, id: number): Promise<ChangedNodes> {
    return this.json("DELETE", nodePath(document, id));
  }

  moveNode(document: string, id: number, parent: number | null, index: number | null = null): Promise<ChangedNodes> {
    return this.json("POST", nodePath(document, id, "move"), { parent, index });
  }

  splitNode(document: string, id: number, at: TextPosition): Promise<ChangedNodes> {
    return this.json("POST", nodePath(document, id, "split"), { at });
  }

  mergeNode(document: string, id: number): Promise<ChangedNodes> {
    return this.json("POST", nodePath(document, id, "merge"), {});
  }

  tokens(document: string, id: number): Promise<TokensReport> {
    return this.json("GET", nodePath(document, id, "tokens"));
  }

  continueNode(document: string, id: number, request: ContinueRequest): Promise<Continued> {
    return this.json("POST", nodePath(document, id, "continue"), request);
  }

  stopNode(document: string, id: number): Promise<NodeRecord> {
    return this.json("POST", nodePath(document, id, "stop"), {});
  }

  /** Continues an interrupted branch, with a prompt in place of the text above it. */
  resumeNode(document: string, id: number, prompt: Prompt | null): Promise<Continued> {
    return this.json("POST", nodePath(document, id, "resume"), { prompt });
  }

  /** Opens the stream of events after a cursor; null begins with the present. */
  events(after: string | null, signal: AbortSignal): Promise<Response> {
    return this.request("GET", withQuery("documents/events", { after }), undefined, signal);
  }

  /** Returns the tokens of a text with their texts. */
  async tokenPieces(request: TokenizeRequest, signal?: AbortSignal): Promise<TokenPiece[]> {
    return (await this.json<{ tokens: TokenPiece[] }>("POST", "tokenize", request, signal)).tokens;
  }

  /** Formats a chat with the model's template. */
  async applyTemplate(messages: readonly ChatMessage[], signal?: AbortSignal): Promise<string> {
    return (await this.json<{ prompt: string }>("POST", "apply-template", { messages }, signal)).prompt;
  }

  props(): Promise<ServerProps> {
    return this.json("GET", "props");
  }

  /** Returns whether the model is loaded. */
  async isReady(): Promise<boolean> {
    try {
      await this.request("GET", "health");
      return true;
    } catch (error) {
      if (error instanceof ApiError && error.status === 503) return false;
      throw error;
    }
  }

  private async json<Result>(method: string, path: string, body?: object, signal?: AbortSignal): Promise<Result> {
    const response = await this.request(method, path, body, signal);
    try {
      return (await response.json()) as Result;
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ConnectionError(error);
    }
  }

  private async request(method: string, path: string, body?: object, signal?: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = {};
    if (body !== undefined) headers["content-type"] = "application/json";
    if (this.apiKey !== null) headers.authorization = `Bearer ${this.apiKey}`;
    const init: RequestInit = { method, headers, cache: "no-store", body: body && JSON.stringify(body), signal };
    let response: Response;
    try {
      response = await fetch(`${this.base}/${path}`, init);
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ConnectionError(error);
    }
    if (!response.ok) {
      if (response.status === 401) this.onUnauthorized();
      if (PROXY_STATUSES.includes(response.status)) throw new ConnectionError(response.status);
      throw await errorOf(response);
    }
    return response;
  }
}

/** Reads the error of an answer; proxies may send other bodies than the server. */
async function errorOf(response: Response): Promise<ApiError> {
  try {
    const { error } = (await response.json()) as { error: { message: string; param?: string } };
    return new ApiError(response.status, error.message, error.param ?? null);
  } catch {
    return new ApiError(response.status, response.statusText || `status ${response.status}`);
  }
}

function nodePath(document: string, id: number, operation?: string): string {
  const path = `documents/${document}/nodes/${id}`;
  return operation === undefined ? path : `${path}/${operation}`;
}

function withQuery(path: string, query: Query): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  if (given.length === 0) return path;
  return `${path}?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
}
