import { type Client } from "../api/client";

/** Pause between checks while the model is being loaded, in milliseconds. */
const PAUSE_MS = 2_000;

/** Whether the server can generate text. Documents can be read and written before. */
export class ServerStatus {
  /** True once the model is loaded. */
  isReady = $state(true);

  private isChecking = false;

  constructor(
    private readonly client: Client,
    private readonly onReady: () => void,
  ) {}

  /** Asks whether the model is loaded, and again until it is. */
  async check(): Promise<void> {
    if (this.isChecking) return;
    this.isChecking = true;
    try {
      for (;;) {
        const wasReady = this.isReady;
        this.isReady = await this.client.isReady();
        if (this.isReady) {
          if (!wasReady) this.onReady();
          return;
        }
        await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      }
    } catch {
      // The connection reports that the server cannot be reached, and checks again.
    } finally {
      this.isChecking = false;
    }
  }
}
