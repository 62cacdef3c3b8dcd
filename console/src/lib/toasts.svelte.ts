// Short messages at the edge of the window.

export interface Toast {
  id: number;
  text: string;
  isError: boolean;
}

const SHOWN_MS = 4000;

class Toasts {
  list = $state<Toast[]>([]);
  /** Id of the latest message. */
  last = $state(0);

  show(text: string, isError = false): void {
    const id = ++this.last;
    this.list.push({ id, text, isError });
    setTimeout(() => (this.list = this.list.filter((one) => one.id !== id)), isError ? SHOWN_MS * 2 : SHOWN_MS);
  }
}

export const toasts = new Toasts();
