import type { Component } from "svelte";
import Context from "../context/Context.svelte";
import Presets from "../context/Presets.svelte";
import Library from "../library/Library.svelte";
import type { PanelId, Side } from "../model/panels.svelte";
import { LEFT_PANELS, RIGHT_PANELS } from "../model/panels.svelte";
import Siblings from "../siblings/Siblings.svelte";
import Token from "../siblings/Token.svelte";
import Tree from "../tree/Tree.svelte";

/** The component of each panel. */
export const components: Readonly<Record<PanelId, Component>> = {
  tree: Tree,
  library: Library,
  branches: Siblings,
  context: Context,
  presets: Presets,
  token: Token,
};

/** The panels of each column, in the order of their tabs. */
export const columns: Readonly<Record<Side, readonly PanelId[]>> = { left: LEFT_PANELS, right: RIGHT_PANELS };
