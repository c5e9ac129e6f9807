/**
 * Takes the place of the package `style-mod`, through which CodeMirror adds its styles: here as constructable style sheets,
 * which the page's policy allows, and not as `<style>` elements, which it forbids.
 */

import { StyleModule as Base } from "../../node_modules/style-mod/src/style-mod.js";

const sheets = new WeakMap<object, { sheet: CSSStyleSheet; modules: Base[] }>();

export class StyleModule extends Base {
  static override mount(root: Document | ShadowRoot, given: Base | readonly Base[]): void {
    const modules = Array.isArray(given) ? (given as readonly Base[]) : [given as Base];
    let mounted = sheets.get(root);
    if (mounted === undefined) {
      mounted = { sheet: new CSSStyleSheet(), modules: [] };
      sheets.set(root, mounted);
      root.adoptedStyleSheets.push(mounted.sheet);
    }
    // Later modules have the higher priority, as in the package.
    const all = [...mounted.modules.filter((module) => !modules.includes(module)), ...modules];
    if (all.length === mounted.modules.length && all.every((module, nth) => module === mounted.modules[nth])) return;
    mounted.modules = all;
    mounted.sheet.replaceSync(all.map((module) => module.getRules()).join("\n"));
  }
}
