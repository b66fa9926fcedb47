// Describes the reasons of cache misses. Traces have the same codes.

/** The name and the meaning of each reason. */
const REASONS = {
  below_block: ['Shorter than a block', 'The cache holds whole blocks. The prompt, or what was left of it, has fewer tokens than one.'],
  bypassed: ['Computed in full on purpose', 'The call asked for the probabilities of its prompt: such prompts are not read from the cache.'],
  disabled: ['The cache is off', 'The cache is switched off for this model.'],
  evicted: ['Removed to make room', 'The beginning was in the cache, and its blocks were needed for other prompts.'],
  expired: ['Not used for too long', 'The beginning was in the cache, and no call used it for as long as the cache keeps one.'],
  differs: ['Differs from an earlier prompt', 'An earlier prompt begins alike, and has another token at this place.'],
  never_seen: ['New from here on', 'No cached prompt continues from this place: the text was never sent before.'],
};
/** The name and the meaning of a reason. An unknown reason is shown by its code. */
export const reasonOf = (reason) => REASONS[reason] ?? [String(reason).replaceAll('_', ' '), ''];
