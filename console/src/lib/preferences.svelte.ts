// Preferences of this browser: theme and time zone.

export type Theme = "system" | "light" | "dark";
export type Zone = "local" | "utc";

function read<T extends string>(name: string, allowed: readonly T[], fallback: T): T {
  const stored = localStorage.getItem(`penstock.${name}`) as T | null;
  return stored && allowed.includes(stored) ? stored : fallback;
}

const systemDark = matchMedia("(prefers-color-scheme: dark)");

class Preferences {
  theme = $state<Theme>(read("theme", ["system", "light", "dark"], "system"));
  zone = $state<Zone>(read("zone", ["local", "utc"], "local"));
  #isSystemDark = $state(systemDark.matches);

  constructor() {
    systemDark.addEventListener("change", (event) => (this.#isSystemDark = event.matches));
  }

  /** Theme that is shown. Charts use its colours, so they are redrawn when the system changes its theme. */
  get shownTheme(): Theme {
    if (this.theme !== "system") return this.theme;
    return this.#isSystemDark ? "dark" : "light";
  }

  get timeZone(): string {
    return this.zone === "utc" ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone;
  }

  setTheme(theme: Theme): void {
    this.theme = theme;
    localStorage.setItem("penstock.theme", theme);
    this.apply();
  }

  setZone(zone: Zone): void {
    this.zone = zone;
    localStorage.setItem("penstock.zone", zone);
  }

  apply(): void {
    document.documentElement.dataset.theme = this.theme;
  }
}

export const preferences = new Preferences();
