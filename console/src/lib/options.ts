// Names of options of providers and secret managers, as forms show them.
const SECRET = /secret|token|passphrase|private_key|account_json|password/;

/** Returns true for an option that must not be shown while it is typed. */
export function isSecretOption(name: string): boolean {
  return SECRET.test(name);
}

/** Words of option names that are abbreviations. */
const ABBREVIATION = /\b(aws|arn|url|id|api|ad|vpc)\b/g;

export function optionTitle(name: string): string {
  const words = name.replaceAll("_", " ").replace(ABBREVIATION, (word) => word.toUpperCase());
  return words.charAt(0).toUpperCase() + words.slice(1);
}
