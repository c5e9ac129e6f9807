/** Data of the documents API, as the server sends and accepts it. `docs/reference/documents.md` describes the fields. */

/** A document without its nodes. Times are Unix timestamps in milliseconds. */
export interface DocumentRecord {
  id: string;
  title: string;
  folder: string;
  settings: DocumentSettings;
  version: number;
  n_nodes: number;
  n_bytes: number;
  is_trashed: boolean;
  created_ms: number;
  changed_ms: number;
}

/** JSON object of the page, which the server stores unread. Modules that use a key declare its type beside their code. */
export type DocumentSettings = Readonly<Record<string, unknown>>;

export type NodeState = "done" | "running" | "interrupted";

/** A node without its tokens. `text` is the text so far. */
export interface NodeRecord {
  id: number;
  parent: number | null;
  position: number;
  version: number;
  state: NodeState;
  text: string;
  /** Name of the model of its tokens; null for text that was written by hand. */
  model: string | null;
  parameters: GenerationFields | null;
  finish_reason: string | null;
  error: string | null;
  /** Tokens of the prompt that its branch has computed; null if no branch has ended it. */
  n_computed: number | null;
  /** Tokens of the prompt that were cached. */
  n_cached: number | null;
  label: string;
  note: string;
  is_bookmarked: boolean;
  is_trashed: boolean;
  created_ms: number;
  changed_ms: number;
}

/** Fields of a request that generates text: sampling, limits, constraints. `docs/reference/request-fields.md` lists them. */
export type GenerationFields = Readonly<Record<string, unknown>>;

/** Position in a text, in Unicode code points or in entries of `GET …/tokens`. */
export type TextPosition = { character: number } | { token: number };

/** Text, or a mix of text and token ids. */
export type Prompt = string | readonly (string | number)[];

export interface ContinueRequest extends GenerationFields {
  n?: number;
  n_predict?: number;
  n_probs?: number;
  until?: "sentence" | "paragraph";
  at?: TextPosition;
  append?: Prompt;
  prompt?: Prompt;
  parse_special?: boolean;
  branches?: readonly GenerationFields[];
}

export interface NewDocument {
  title?: string;
  folder?: string;
  settings?: DocumentSettings;
}

export interface DocumentChange extends NewDocument {
  is_trashed?: boolean;
}

export interface NewNode {
  text: string;
  parent?: number | null;
  index?: number | null;
  label?: string;
  note?: string;
  is_bookmarked?: boolean;
}

export interface NodeChange {
  /** Version that is changed; required with `text`. */
  version?: number;
  text?: string;
  label?: string;
  note?: string;
  is_bookmarked?: boolean;
  is_trashed?: boolean;
}

export interface Quotas {
  max_documents: number;
  max_nodes: number;
  max_bytes: number;
  n_bytes: number;
}

export interface DocumentsReport {
  documents: DocumentRecord[];
  cursor: string;
  quotas: Quotas;
}

export interface NodesReport {
  nodes: NodeRecord[];
  next: number | null;
  cursor: string;
}

export interface NodeChanged {
  node: NodeRecord;
  /** True if the named version was not current, so that the text became a new sibling. */
  is_sibling: boolean;
}

export interface ChangedNodes {
  nodes: NodeRecord[];
  deleted: number[];
}

export interface Continued {
  /** The new nodes, which are running. */
  nodes: NodeRecord[];
  /** If the node was split: the node, its new child with the rest of the text, and the children that moved below that. */
  changed: NodeRecord[];
  request: string;
  n_prompt: number;
  n_retokenized: number;
}

/** Result of resuming all interrupted branches of a document. */
export interface Resumed {
  resumed: Continued[];
  /** Interrupted nodes whose branches could not be resumed, each with the reason. */
  failed: { node: number; message: string }[];
}

export interface TokenAlternative {
  id: number;
  text: string;
  bytes: number[];
  logprob: number | null;
}

/** One token of a node's text, or a part of it without known tokens (`id` null). */
export interface TokenRecord {
  id: number | null;
  text: string;
  bytes: number[];
  /** Characters (code points) of the node's text that are complete at the end of the token. */
  end: number;
  logprob: number | null;
  alternatives: TokenAlternative[];
}

export interface TokensReport {
  model: string | null;
  is_current: boolean;
  tokens: TokenRecord[];
}

export interface SearchHit {
  document: string;
  title: string;
  node: number;
  field: "text" | "note" | "label";
  start: number;
  length: number;
  excerpt: string;
}

export interface SearchReport {
  hits: SearchHit[];
  next: number | null;
}

export type ImportFormat = "json" | "markdown" | "text" | "loom" | "mikupad" | "sillytavern" | "koboldai";
export type ExportFormat = "json" | "markdown" | "text" | "loom" | "mikupad";

/** The document of an imported file. */
export interface ImportedDocument extends DocumentRecord {
  /** Sentences on what of the file does not apply, and on what was assumed. */
  notes?: readonly string[];
}

export interface ImportRequest {
  format: ImportFormat;
  content: string;
  title?: string;
  folder?: string;
}

/** Token of an event; alternatives are in `GET …/tokens`. */
export interface WrittenToken {
  id: number;
  n_bytes: number;
  logprob: number | null;
}

/** Text that a branch has written in one step of the engine. */
export interface WrittenText {
  node: number;
  /** Length of the node's text before, in code points. */
  start: number;
  text: string;
  tokens: WrittenToken[];
}

export type DocumentEvent =
  | { type: "ready" }
  | { type: "reset" }
  | { type: "document"; document: DocumentRecord }
  | { type: "document_deleted"; document: string }
  | { type: "nodes"; document: string; nodes: NodeRecord[] }
  | { type: "nodes_deleted"; document: string; nodes: number[] }
  | { type: "tokens"; document: string; branches: WrittenText[] };

/** `POST /tokenize` for tokens with their texts. */
export interface TokenizeRequest {
  content: string;
  /** Adds the tokens that begin a prompt. */
  add_special: boolean;
  /** Parses control tokens. */
  parse_special: boolean;
  with_pieces: true;
}

/** A token of `POST /tokenize`: its text, or its bytes if they are no UTF-8. */
export interface TokenPiece {
  id: number;
  piece: string | readonly number[];
}

/** Messages of a chat, for `POST /apply-template`. */
export interface ChatMessage {
  role: string;
  content: string;
}

/** The part of `GET /props` that the page uses. */
export interface ServerProps {
  total_slots: number;
  chat_template?: string;
  model_path?: string;
  default_generation_settings: { n_ctx: number; params?: GenerationFields };
}
