// Entry of the console.
import { mount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import { preferences } from "./lib/preferences.svelte";
import { startRouter } from "./lib/router.svelte";
import { startSession } from "./lib/session.svelte";

preferences.apply();
startRouter();
void startSession();
mount(App, { target: document.getElementById("app") as HTMLElement });
