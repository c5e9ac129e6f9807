import { createContext } from "svelte";
import type { Workspace } from "./model/workspace.svelte";

/** Return and provide the workspace, during the initialization of a component. */
export const [getWorkspace, setWorkspace] = createContext<Workspace>();
