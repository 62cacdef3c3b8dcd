// Secret managers, and how the gateway signs in there. The sign-in methods and their fields come from the API
// description.
import managersFile from "../api/secret-managers.json";
import { isMasked } from "./guardrails";
import type { Schema } from "./api";

export type ManagerType = Schema["CreateSecretReference"]["manager_type"];

interface AuthField {
  name: string;
  isOptional: boolean;
}

interface Manager {
  /** Field that selects the sign-in method. */
  field: string;
  methods: Record<string, AuthField[]>;
}

const managers = managersFile as unknown as Record<string, Manager>;
export const MANAGERS = Object.keys(managers) as ManagerType[];
const TITLES: Record<string, string> = {
  aws_sm: "AWS Secrets Manager",
  azure_kv: "Azure Key Vault",
  hashicorp_vault: "HashiCorp Vault",
  accessKey: "Access key",
  assumedRole: "Role that the gateway assumes",
  serviceRole: "Role of the machine",
  entra: "Application in Microsoft Entra",
  managed: "Managed identity of the machine",
  default: "Usual credentials of the machine",
  token: "Token",
  approle: "AppRole",
  kubernetes: "Kubernetes service account",
};

/** Returns the display name of a secret manager, or of a sign-in method. */
export function managerTitle(name: string): string {
  return TITLES[name] ?? name;
}

export function methodField(manager: string): string {
  return managers[manager]?.field ?? "";
}

export function methodsOf(manager: string): string[] {
  return Object.keys(managers[manager]?.methods ?? {});
}

export function authFields(manager: string, method: string): AuthField[] {
  return managers[manager]?.methods[method] ?? [];
}

/** Returns the fields of a new reference, which selects the first sign-in method. */
export function newAuth(manager: string): Record<string, string> {
  return { [methodField(manager)]: methodsOf(manager)[0] ?? "" };
}

/** Returns the saved fields. Masked secrets become empty, because they are never sent back. */
export function savedAuth(saved: Record<string, unknown>): Record<string, string> {
  return Object.fromEntries(Object.entries(saved).map(([name, value]) => [name, isMasked(value) ? "" : String(value ?? "")]));
}

/** Returns the fields that differ. A field that was emptied is `null`, which removes it. */
export function changedAuth(before: Record<string, string>, after: Record<string, string>): Record<string, string | null> {
  const names = Object.keys(after).filter((name) => after[name] !== (before[name] ?? ""));
  return Object.fromEntries(names.map((name) => [name, after[name] || null]));
}

/** Returns the non-empty fields of the chosen sign-in method. */
export function filledAuth(manager: string, values: Record<string, string>): Record<string, string> {
  const field = methodField(manager);
  const names = [field, ...authFields(manager, values[field] ?? "").map((one) => one.name)];
  return Object.fromEntries(names.flatMap((name) => (values[name] ? [[name, values[name]]] : [])));
}
