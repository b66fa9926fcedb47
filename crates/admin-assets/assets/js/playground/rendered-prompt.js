// Fetches a rendered prompt, the same as `headrace render --json` prints, and prepares it for drawing. Knows
// no page.

import { post, segment } from '../api.js';
import { count, money } from '../format.js';

const NANO = 1e-9;
/** The kinds of control tokens. */
const KINDS = { special: 'special', markup: 'markup' };

/** Renders the prompt of a body. `after` is a body whose prompt counts as cached. */
export const renderPrompt = (model, body, { dialect = 'chat', after = null, signal } = {}) =>
  post(`models/${segment(model)}/render`, { body, dialect, after }, { signal });

/**
 * Converts a report to the argument of `tokenView`. `used` is the usage of the last answer, if there is one.
 */
export function tokenViewOptions(report, used) {
  const tokens = report.tokens.map((token) => ({
    id: token.id,
    text: token.piece,
    special: KINDS[token.kind] ?? null,
    part: null,
  }));
  const parts = [];
  for (const part of report.parts ?? []) {
    const name =
      part.what === 'tool'
        ? `tool ${part.whose}`
        : part.what === 'message'
          ? `${part.whose}, message ${part.index + 1}`
          : `${part.what} of message ${part.index + 1}`;
    for (let at = part.first_token; at < part.first_token + part.tokens && at < tokens.length; at++)
      tokens[at].part = name;
    parts.push([name, part.tokens]);
  }
  const dollars = (nano) => money((nano * NANO).toFixed(12));
  const cost =
    report.cost &&
    (report.cost.cached_nano_dollars < report.cost.uncached_nano_dollars
      ? `${dollars(report.cost.uncached_nano_dollars)}, or ${dollars(report.cost.cached_nano_dollars)} from a warm cache`
      : dollars(report.cost.uncached_nano_dollars));
  return {
    tokens,
    parts,
    cost,
    total: report.count,
    max: report.context,
    template: report.template_tokens,
    block: report.block_tokens,
    cached: report.cached_tokens ?? null,
    lastCached: used?.prompt_tokens_details?.cached_tokens ?? null,
    spelled: (report.spelled ?? []).map((token) => token.text),
    truncated:
      report.count > report.tokens.length ? `Only the first ${count(report.tokens.length)} are shown.` : null,
  };
}
