// Models of an integration in a form. Prices in the form are US dollars per million tokens; the API has cents per
// token.
import type { Schema } from "./api";

type Model = Schema["IntegrationModel"];
type Sent = Schema["UpsertIntegrationModel"];

export interface ModelFields {
  slug: string;
  name: string;
  enabled: boolean;
  isFinetune: boolean;
  base: string;
  host: string;
  input: string;
  output: string;
  /** API key of the provider. The user must type it again when the host changes. */
  key: string;
}

const CENTS_TO_MILLION_DOLLARS = 10_000;
const DIGITS = 12;

function toDollars(cents: number | undefined): string {
  return cents === undefined ? "" : String(Number((cents * CENTS_TO_MILLION_DOLLARS).toPrecision(DIGITS)));
}

function toPrice(dollars: string): { price: number } | null {
  return dollars === "" ? null : { price: Number((Number(dollars) / CENTS_TO_MILLION_DOLLARS).toPrecision(DIGITS)) };
}

export function modelFields(model: Model | null): ModelFields {
  const prices = model?.pricing_config?.pay_as_you_go;
  return {
    slug: model?.slug ?? "",
    name: model?.name ?? "",
    enabled: model?.enabled ?? true,
    isFinetune: model?.is_finetune ?? false,
    base: model?.base_model_slug ?? "",
    host: String(model?.configurations?.custom_host ?? ""),
    input: toDollars(prices?.request_token?.price),
    output: toDollars(prices?.response_token?.price),
    key: "",
  };
}

/** Returns the prices of the model, updated from the form; `null` if no price remains. */
function pricesOf(model: Model | null, fields: ModelFields): Sent["pricing_config"] {
  const { pay_as_you_go: before, ...others } = model?.pricing_config ?? {};
  const { request_token: _, response_token: __, ...kinds } = before ?? {};
  const [input, output] = [toPrice(fields.input), toPrice(fields.output)];
  const prices = { ...kinds, ...(input ? { request_token: input } : {}), ...(output ? { response_token: output } : {}) };
  const all = { ...others, ...(Object.keys(prices).length ? { pay_as_you_go: prices } : {}) };
  return Object.keys(all).length ? all : null;
}

function optionsOf(model: Model | null, host: string): Sent["configurations"] {
  const { custom_host: _, ...others } = model?.configurations ?? {};
  const all = { ...others, ...(host ? { custom_host: host } : {}) };
  return Object.keys(all).length ? all : null;
}

/** Returns the model for an update request: its slug, its switch, and the changed fields. */
export function sentModel(model: Model | null, fields: ModelFields, changed: Partial<ModelFields>): Sent {
  const has = (name: keyof ModelFields): boolean => changed[name] !== undefined;
  return {
    slug: fields.slug,
    enabled: fields.enabled,
    ...(model ? {} : { is_custom: true }),
    ...(has("name") ? { name: fields.name || null } : {}),
    ...(has("isFinetune") ? { is_finetune: fields.isFinetune } : {}),
    ...(has("base") ? { base_model_slug: fields.base || null } : {}),
    ...(has("host") ? { configurations: optionsOf(model, fields.host) } : {}),
    ...(has("input") || has("output") ? { pricing_config: pricesOf(model, fields) } : {}),
  };
}
