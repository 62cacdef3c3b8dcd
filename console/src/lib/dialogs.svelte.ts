// Questions that any part of the console asks, shown in one dialog.

export interface Question {
  title: string;
  text: string;
  confirm: string;
  isDangerous: boolean;
  /** Text that must be typed to confirm. */
  typed?: string;
  answer: (isConfirmed: boolean) => void;
}

class Dialogs {
  question = $state.raw<Question | null>(null);

  /** Asks a question; returns true if the user confirms it. */
  ask(question: Omit<Question, "answer" | "isDangerous"> & { isDangerous?: boolean }): Promise<boolean> {
    return new Promise((resolve) => {
      this.question = {
        isDangerous: false,
        ...question,
        answer: (isConfirmed) => {
          this.question = null;
          resolve(isConfirmed);
        },
      };
    });
  }

  askDelete(kind: string, name: string, text = `${name} is deleted for good. Requests that use it fail from then on.`): Promise<boolean> {
    return this.ask({
      title: `Delete ${kind}`,
      text,
      confirm: "Delete",
      isDangerous: true,
    });
  }
}

export const dialogs = new Dialogs();
