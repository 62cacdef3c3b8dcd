// Short messages at the edge of the window.

export interface Toast {
  id: number;
  text: string;
  isError: boolean;
}

const SHOWN_MS = 4000;
let last = 0;

class Toasts {
  list = $state<Toast[]>([]);

  show(text: string, isError = false): void {
    const id = ++last;
    this.list.push({ id, text, isError });
    setTimeout(() => (this.list = this.list.filter((one) => one.id !== id)), isError ? SHOWN_MS * 2 : SHOWN_MS);
  }
}

export const toasts = new Toasts();
