/** Completes requests for branches: sampling parameters of the document, and the prompt with memory, lore and note. */

import type { ContinueRequest, NodeRecord, Prompt } from "../api/types";
import type { ContinueTarget } from "../model/continue_request";
import type { OpenDocument } from "../model/document.svelte";
import { branchedFields, checkValues, findPreset, requestFields, VALUE_NAMES } from "../model/presets";
import { type Continuation, type StoryContext, storyContext } from "../model/story_context.svelte";
import type { Tokenizer } from "../model/tokenizer";
import type { Workspace } from "../model/workspace.svelte";
import { texts } from "../texts";
import { problemText } from "./problem_text";

/** The request was not sent, because a value is invalid. */
export class InvalidParametersError extends Error {}

/**
 * Adds the document's sampling parameters, unless the caller gave parameters of its own.
 *
 * @throws {InvalidParametersError} The server would refuse or change a value.
 */
export async function prepareSampling(request: ContinueRequest, target: ContinueTarget): Promise<ContinueRequest> {
  if (target.fields.branches !== undefined || VALUE_NAMES.some((name) => name in target.fields)) return request;
  const context = storyContext(target.workspace);
  await context.flush();
  const { sampling, presets, branch_presets: branchPresets, seed, n_probs: nProbs } = context.settings;
  const n = request.n ?? 1;
  const shared = { ...(seed !== null && { seed }), ...(nProbs !== null && { n_probs: nProbs }) };
  const branchValues = branchPresets.flatMap((name) => findPreset(presets, name)?.values ?? []);
  const problems = [
    ...context.invalid.values(),
    ...(branchValues.length ? [] : checkValues(sampling, n, context.props?.total_slots ?? null)),
  ];
  if (problems.length) throw new InvalidParametersError(texts.presets.refused(problems.map(problemText).join(" ")));
  if (branchValues.length === 0) return { ...request, ...shared, ...requestFields(sampling, n), ...target.fields };
  const { n: _, ...others } = request;
  return { ...others, ...shared, ...branchedFields(branchValues, n, sampling), ...target.fields };
}

/**
 * Adds the prompt, unless the text of the path is all that is sent.
 *
 * @throws {InvalidParametersError} Memory, lore and note leave no space for the text.
 */
export async function preparePrompt(request: ContinueRequest, target: ContinueTarget): Promise<ContinueRequest> {
  if (request.prompt !== undefined) return request;
  const context = storyContext(target.workspace);
  const { document, node, offset, append } = target;
  const prompt = await composedPrompt(context, {
    document,
    node,
    offset,
    nPredict: request.n_predict ?? -1,
    nAppended: await appendedTokens(context.tokenizer, append),
  });
  return prompt === null ? request : { ...request, prompt };
}

/**
 * Returns the prompt with which an interrupted branch was started: what is sent before its own text. Null if that is the text of
 * the path.
 *
 * @throws {InvalidParametersError} Memory, lore and note leave no space for the text.
 */
export async function promptToResume(workspace: Workspace, document: OpenDocument, branch: NodeRecord): Promise<Prompt | null> {
  const context = storyContext(workspace);
  const nPredict = Number(branch.parameters?.n_predict ?? -1);
  return composedPrompt(context, {
    document,
    node: branch.parent,
    offset: null,
    nPredict,
    // The tokens that the branch has are among those that its limit reserves.
    nAppended: nPredict < 0 ? await context.tokenizer.count(branch.text) : 0,
  });
}

async function composedPrompt(context: StoryContext, continuation: Continuation): Promise<Prompt | null> {
  await context.flush();
  const composed = await context.compose(continuation);
  if (composed.isTooLong) throw new InvalidParametersError(texts.presets.refused(texts.context.tooLong));
  context.addSent(continuation.document.id, composed);
  return composed.pieces;
}

async function appendedTokens(tokenizer: Tokenizer, append: ContinueTarget["append"]): Promise<number> {
  const pieces = typeof append === "string" ? [append] : (append ?? []);
  const counts = pieces.map((piece) => (typeof piece === "number" ? 1 : tokenizer.count(piece)));
  return (await Promise.all(counts)).reduce<number>((sum, n) => sum + n, 0);
}
