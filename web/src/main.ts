import { mount } from "svelte";
import App from "./App.svelte";
import { followLocation, openFirst } from "./location.svelte";
import { rememberedKey } from "./model/api_key";
import { Workspace } from "./model/workspace.svelte";
import "./styles/tokens.css";
import "./styles/base.css";
import { openTab } from "./tab";

const tab = await openTab();
const workspace = new Workspace(tab.id);
workspace.client.apiKey = rememberedKey();
mount(App, { target: document.getElementById("app")!, props: { workspace } });
followLocation(workspace);
void workspace.start(tab.isGone, () => openFirst(workspace));
