/** The scripts of workers are the page's own. The server's policy allows them by the name of this Trusted Types policy. */

interface ScriptUrlPolicy {
  createScriptURL(url: string): string;
}

interface PolicyFactory {
  createPolicy(name: string, rules: ScriptUrlPolicy): ScriptUrlPolicy;
}

const rules: ScriptUrlPolicy = {
  createScriptURL(url) {
    if (new URL(url, location.href).origin !== location.origin) throw new TypeError(`${url} is not a script of this page`);
    return url;
  },
};

let policy: ScriptUrlPolicy | null = null;

/** Starts a worker from the URL of a module, as `import url from "./name?worker&url"` gives it. */
export function startWorker(url: string): Worker {
  policy ??= (globalThis as { trustedTypes?: PolicyFactory }).trustedTypes?.createPolicy("weft-worker", rules) ?? rules;
  return new Worker(policy.createScriptURL(url), { type: "module" });
}
