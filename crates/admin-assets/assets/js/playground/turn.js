// Draws one turn of a conversation: a message, tool calls with fields for their results, or an answer with
// its figures, waterfall and price.

import { get, segment } from '../api.js';
import { add, h, put } from '../dom.js';
import { count, money } from '../format.js';
import { views } from '../request-views.js';
import { may } from '../session.js';
import { badge, button, copyButton, failure, load } from '../ui/parts.js';
import { markdown } from './markdown.js';
import { heat } from './tokens.js';

/**
 * Draws a turn. `context` has the draft, whether the turn is the `last`, an abort `signal`, and the functions `act`:
 * `results(texts)` and `again()`.
 */
export function turnNode(turn, context) {
  if (turn.role === 'user')
    return h(
      'article',
      { class: 'turn user' },
      h('h2', { class: 'off-screen' }, 'You'),
      turn.images?.map((url) => h('img', { class: 'turn-image', src: url, alt: 'A picture that was sent' })),
      h('div', { class: 'bubble' }, turn.text),
    );
  if (turn.role === 'tool')
    return h(
      'article',
      { class: 'turn tool' },
      h('h2', { class: 'small muted' }, `Result of ${turn.name}`),
      h('pre', { class: 'code wrap' }, turn.text),
    );
  const node = h('article', { class: 'turn assistant' });
  drawAnswer(node, turn, context);
  return node;
}

/** Draws an answer, which may be incomplete. */
export function drawAnswer(node, turn, context) {
  const warm = turn.tokens?.length > 0 && !context.growing;
  put(
    node,
    h('h2', { class: 'off-screen' }, 'Answer'),
    turn.reasoning &&
      h(
        'details',
        { class: 'thought', open: context.growing && !turn.text },
        h('summary', {}, 'Reasoning'),
        h('div', { class: 'answer-text muted' }, turn.reasoning),
      ),
    warm
      ? heat(turn.tokens)
      : turn.text &&
          (context.draft.plain ? h('div', { class: 'answer-text' }, turn.text) : markdown(turn.text)),
    turn.text && context.growing && h('span', { class: 'caret', 'aria-hidden': 'true' }),
    context.growing &&
      !turn.text &&
      !turn.reasoning &&
      h(
        'div',
        { class: 'answer-text muted' },
        'Waiting for the first token',
        h('span', { class: 'caret', 'aria-hidden': 'true' }),
      ),
    turn.calls?.map((call) =>
      h(
        'div',
        { class: 'call' },
        h('p', {}, badge('calls', 'info'), ' ', h('code', {}, call.name)),
        h('pre', { class: 'code wrap' }, pretty(call.args)),
      ),
    ),
    !context.growing && turn.note && h('p', { class: 'small muted' }, `Incomplete: ${turn.note}.`),
    turn.error && failure(turn.error, context.last && context.act.again),
    !context.growing && !turn.error && context.last && turn.calls?.length > 0 && results(turn, context),
  );
  if (!context.growing && !turn.error) add(node, figures(turn, context));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** A text box for the result of each tool call, filled with the mocked result of the tool. */
function results(turn, { draft, act }) {
  const boxes = turn.calls.map((call) =>
    h('textarea', {
      rows: 2,
      class: 'mono',
      'aria-label': `Result of ${call.name}`,
      prop: { value: draft.mocks[call.name] ?? '{}' },
    }),
  );
  return h(
    'div',
    { class: 'results stack' },
    h('p', { class: 'small muted' }, 'Results of the tools:'),
    boxes,
    h(
      'div',
      {},
      button('Send results', () => act.results(boxes.map((box) => box.value)), {
        kind: 'primary small',
        sign: 'send',
      }),
    ),
  );
}

/** Describes why an answer ended. */
const ENDS = {
  stop: 'complete',
  length: 'stopped at the token limit',
  tool_calls: 'calls a tool',
  content_filter: 'blocked by a content rule',
  stopped: 'stopped',
};

function figures(turn, { act, last, signal }) {
  const usage = turn.usage ?? {};
  const cached = usage.prompt_tokens_details?.cached_tokens;
  const line = [
    usage.prompt_tokens !== undefined &&
      `${count(usage.prompt_tokens)} tokens in${cached ? ` (${count(cached)} cached)` : ''}, ${count(usage.completion_tokens)} out`,
    turn.first_ms !== null && turn.first_ms !== undefined && `first after ${turn.first_ms} ms`,
    turn.took_ms && `${(turn.took_ms / 1000).toFixed(2)} s`,
    turn.finish && (ENDS[turn.finish] ?? `ended by ${turn.finish}`),
    turn.replayed && 'replayed, not charged again',
  ]
    .filter(Boolean)
    .join(' · ');
  const price = h('span', { class: 'num' });
  const place = h('div', { class: 'turn-trace', hidden: true });
  const open = button(
    'Waterfall and price',
    () => {
      place.hidden = !place.hidden;
      open.setAttribute('aria-expanded', String(!place.hidden));
      if (!place.hidden && !place.hasChildNodes())
        load(place, async () => views(await traceOf(turn.id, signal), signal), { lines: 8, signal });
    },
    { kind: 'small quiet', sign: 'requests', 'aria-expanded': 'false' },
  );
  if (turn.id && may('GET /requests/{id}'))
    traceOf(turn.id, signal)
      .then((trace) => {
        price.textContent = ` · ${money(trace.cost?.charged_dollars)}`;
      })
      .catch(() => {});
  return [
    h(
      'div',
      { class: 'figures small muted' },
      h('span', {}, line, price),
      h(
        'span',
        { class: 'acts' },
        turn.id && may('GET /requests/{id}') && open,
        copyButton(turn.text, ''),
        last &&
          button('', act.again, {
            kind: 'small quiet',
            sign: 'redo',
            title: 'Answer once more (a new call)',
          }),
      ),
    ),
    place,
  ];
}

const WAITS_MS = [0, 150, 400, 1000, 2000];

/** Fetches a trace. Retries, because the server writes it after the call has ended. */
async function traceOf(id, signal) {
  for (const [at, wait] of WAITS_MS.entries()) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    try {
      return await get(`requests/${segment(id)}`, { signal, quiet: true });
    } catch (error) {
      if (error.status !== 404 || at === WAITS_MS.length - 1) throw error;
    }
  }
  return null;
}
