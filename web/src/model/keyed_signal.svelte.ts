import { createSubscriber } from "svelte/reactivity";

interface Signal {
  subscribe: () => void;
  update: () => void;
}

/**
 * Signals for the entries of a large map. Effects that read an entry rerun when that entry changes.
 *
 * A signal exists only while an effect uses it, so that 100,000 nodes cost nothing until they are shown.
 */
export class KeyedSignal<Key> {
  private readonly signals = new Map<Key, Signal>();

  /** Number of changes, on which values depend that are derived outside of effects. */
  private nChanges = $state(0);

  /** Makes the running effect depend on an entry. */
  track(key: Key): void {
    if (!$effect.tracking()) {
      void this.nChanges;
      return;
    }
    let signal = this.signals.get(key);
    if (signal === undefined) {
      signal = this.create(key);
      this.signals.set(key, signal);
    }
    signal.subscribe();
  }

  /** Reruns the effects that read an entry. */
  notify(key: Key): void {
    this.nChanges++;
    this.signals.get(key)?.update();
  }

  /** Reruns the effects that read any entry. */
  notifyAll(): void {
    this.nChanges++;
    for (const signal of [...this.signals.values()]) signal.update();
  }

  private create(key: Key): Signal {
    const signal: Signal = { subscribe: () => {}, update: () => {} };
    signal.subscribe = createSubscriber((update) => {
      signal.update = update;
      this.signals.set(key, signal);
      return () => {
        if (this.signals.get(key) === signal) this.signals.delete(key);
      };
    });
    return signal;
  }
}
