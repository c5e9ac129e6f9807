import { ApiError, ConnectionError } from "../api/client";
import { texts } from "../texts";

/** What a message offers to do. */
export interface NoticeAction {
  title: string;
  run(): unknown;
}

/** A short message to the user. */
export interface Notice {
  id: number;
  text: string;
  isError: boolean;
  action: NoticeAction | null;
}

export interface NoticeOptions {
  isError?: boolean;
  /** Whether it stays until the user closes it. */
  isKept?: boolean;
  action?: NoticeAction;
}

/** Time that a message is shown, in milliseconds. */
const SHOWN_MS = 6_000;
/** Time that an error is shown, or a message that offers something, in milliseconds. */
const LONG_SHOWN_MS = 14_000;

/** Most messages that are shown at the same time. */
const MAX_SHOWN = 4;

/** Short messages to the user, which vanish after some seconds. Screen readers read them. */
export class Notices {
  shown = $state.raw<readonly Notice[]>([]);

  private nextId = 1;
  private readonly topics = new Map<string, number>();

  /** Shows a message; one with the same text takes the place of the earlier one. */
  show(text: string, { isError = false, isKept = false, action }: NoticeOptions = {}): number {
    const notice = { id: this.nextId++, text, isError, action: action ?? null };
    this.shown = [...this.shown.filter((each) => each.text !== text), notice].slice(-MAX_SHOWN);
    if (!isKept) setTimeout(() => this.dismiss(notice.id), isError || action ? LONG_SHOWN_MS : SHOWN_MS);
    return notice.id;
  }

  /** Shows an error of a topic, unless one of the topic is shown already. */
  showOnce(topic: string, text: string): void {
    const id = this.topics.get(topic);
    if (id !== undefined && this.shown.some((notice) => notice.id === id)) return;
    this.topics.set(topic, this.show(text, { isError: true }));
  }

  /** Removes the error of a topic, whose cause is gone. */
  dismissTopic(topic: string): void {
    const id = this.topics.get(topic);
    if (id !== undefined) this.dismiss(id);
  }

  /** Shows why something failed. */
  showError(error: unknown, what: string): void {
    if (error instanceof ApiError && error.status === 401) return; // The dialog for the key is open.
    this.show(texts.errors.failed(what, reasonOf(error)), { isError: true });
  }

  dismiss(id: number): void {
    this.shown = this.shown.filter((notice) => notice.id !== id);
  }
}

/** Returns the reason of a failure in words for the user. */
export function reasonOf(error: unknown): string {
  if (error instanceof ConnectionError) return texts.errors.offline;
  return error instanceof Error ? error.message : String(error);
}
