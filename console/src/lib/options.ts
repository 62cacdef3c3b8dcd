// Names of options of providers and secret managers, as forms show them.
const SECRET = /secret|token|passphrase|private_key|account_json|password/;

/** Returns true for an option that must not be shown while it is typed. */
export function isSecretOption(name: string): boolean {
  return SECRET.test(name);
}

export function optionTitle(name: string): string {
  return name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
}
