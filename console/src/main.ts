// Entry of the console.
import { mount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import { requestEarly } from "./lib/early-figure";
import { findPage } from "./lib/pages";
import { preferences } from "./lib/preferences.svelte";
import { route, startRouter } from "./lib/router.svelte";
import { startSession } from "./lib/session.svelte";

// The document has a relative address of the icon. It is made absolute, because the router changes the base of relative
// addresses.
const icon = document.querySelector<HTMLLinkElement>("link[rel=icon]");
if (icon) icon.href = new URL(icon.href).href;

preferences.apply();
startRouter();
void startSession();
// The page's scripts and its first figure load while the gateway says who is signed in.
requestEarly();
void findPage(route.page)?.load().catch(() => null);
mount(App, { target: document.getElementById("app") as HTMLElement });
