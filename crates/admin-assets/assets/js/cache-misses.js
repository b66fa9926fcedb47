// Describes the reasons of cache misses. Traces have the same codes.

/** The name and the meaning of each reason. */
const REASONS = {
  below_block: [
    'Shorter than a block',
    'The cache stores whole blocks. The rest of the prompt has fewer tokens than one block.',
  ],
  bypassed: [
    'Cache not used',
    'The call asked for the probabilities of its prompt. Such prompts are not read from the cache.',
  ],
  disabled: ['The cache is off', 'The cache is switched off for this model.'],
  evicted: [
    'Removed to make room',
    'The beginning was in the cache, but its blocks were needed for other prompts.',
  ],
  expired: [
    'Not used for too long',
    'The beginning was in the cache, but no call used it before it expired.',
  ],
  differs: [
    'Differs from an earlier prompt',
    'An earlier prompt has the same beginning, but another token at this position.',
  ],
  state_not_kept: [
    'State not kept here',
    'The beginning is in the cache. The state of the recurrent layers is kept only at some positions, and the call continued from the last one.',
  ],
  window_freed: [
    'Window no longer kept',
    'The beginning is in the cache. Layers with a window keep only the last positions, and the call continued from the last position that they keep.',
  ],
  never_seen: ['New from here on', 'No cached prompt continues here: this text was not sent before.'],
};
/** The name and the meaning of a reason. An unknown reason is shown by its code. */
export const reasonOf = (reason) => REASONS[reason] ?? [String(reason).replaceAll('_', ' '), ''];
