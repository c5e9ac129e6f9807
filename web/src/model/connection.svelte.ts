import { ApiError, type Client } from "../api/client";
import { type ReceivedEvent, readEvents } from "../api/events";

/** `refused`: the server answers, but not with events; the reason is in `problem`. */
export type ConnectionState = "connecting" | "open" | "lost" | "refused";

/** What the connection calls. */
export interface ConnectionHandler {
  /** Reads all data again. Returns the cursor from which events follow. */
  reload(): Promise<string>;
  /** Applies events. */
  receive(events: readonly ReceivedEvent[]): void;
  /** Called when events arrive again after a failure. */
  resumed(): void;
}

/** Pauses between attempts to connect, in milliseconds. */
const PAUSES_MS = [250, 500, 1_000, 2_000, 4_000, 8_000];

/** The one stream of events of this tab. It is opened again when it breaks, and continues after the last event. */
export class Connection {
  state = $state<ConnectionState>("connecting");

  /** Why the server refuses the connection. */
  problem = $state.raw<ApiError | null>(null);

  private cursor: string | null = null;
  private nFailures = 0;
  private wasOpen = false;
  private current = new AbortController();
  private wake: () => void = () => {};
  private waiting: (() => void)[] = [];

  constructor(
    private readonly client: Client,
    private readonly handler: ConnectionHandler,
  ) {}

  /** Connects, and stays connected. */
  async run(): Promise<never> {
    for (;;) {
      this.current = new AbortController();
      try {
        this.cursor ??= await this.handler.reload();
        await readEvents(this.client, this.cursor, (events) => this.receive(events), this.current.signal);
        this.failed(null);
      } catch (error) {
        this.failed(error);
      }
      await this.pause();
    }
  }

  /** Tries to connect now, as after the network is back or a key was given. */
  retry(): void {
    this.wake();
  }

  /** Reads everything again over a new connection, as after the API key has changed. */
  restart(): void {
    this.problem = null;
    this.cursor = null;
    this.current.abort();
    this.wake();
  }

  /** Waits until events arrive. */
  opened(): Promise<void> {
    return this.state === "open" ? Promise.resolve() : new Promise((resolve) => this.waiting.push(resolve));
  }

  private receive(events: readonly ReceivedEvent[]): void {
    for (const { event } of events) {
      if (event.type === "ready") this.open();
      if (event.type === "reset") {
        // All data is read again, then a stream is opened that follows from it.
        this.restart();
        return;
      }
    }
    this.cursor = events.at(-1)!.cursor;
    this.handler.receive(events.filter(({ event }) => event.type !== "ready"));
  }

  private open(): void {
    const isResumed = this.wasOpen && this.nFailures > 0;
    this.wasOpen = true;
    this.nFailures = 0;
    this.state = "open";
    this.problem = null;
    for (const resolve of this.waiting.splice(0)) resolve();
    if (isResumed) this.handler.resumed();
  }

  private failed(error: unknown): void {
    if (this.current.signal.aborted) return;
    this.nFailures++;
    const isRefusal = error instanceof ApiError && error.status !== 503 && error.status < 500;
    const isOff = error instanceof ApiError && error.status === 501;
    this.problem = error instanceof ApiError ? error : null;
    this.state = isRefusal || isOff ? "refused" : "lost";
  }

  private async pause(): Promise<void> {
    if (this.nFailures === 0) return;
    const pause = PAUSES_MS[Math.min(this.nFailures, PAUSES_MS.length) - 1]!;
    await new Promise<void>((resolve) => {
      // Without a valid key, only another key changes the answer.
      const needsKey = this.problem?.status === 401;
      const timer = needsKey ? undefined : setTimeout(resolve, pause * (0.75 + Math.random() / 2));
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
