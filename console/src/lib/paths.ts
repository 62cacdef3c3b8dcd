// Addresses of the console and of the API, relative to this script, so that both work below any path.

// The build puts every script into `assets/`, one level below the console and two below the gateway.
const scriptUrl = import.meta.url;
export const consoleUrl = new URL("../", scriptUrl);
export const gatewayUrl = new URL("../../", scriptUrl);

/** Returns the address of a page of the console. */
export function pageUrl(page: string): string {
  return consoleUrl.pathname + page;
}

/** Returns the address of a path of the gateway, such as `v1/logs`. */
export function apiUrl(path: string): string {
  return gatewayUrl.href + path;
}
