import { preparePrompt, prepareSampling, promptToResume } from "./context/preparers";
import type { RequestPreparer } from "./model/continue_request";

/** Functions that complete each request of new branches, in their order. */
export const preparers: readonly RequestPreparer[] = [prepareSampling, preparePrompt];

export { promptToResume };
