// Shows tokens: an answer with the probability and the alternatives of each token, and a prompt as the model
// sees it with the end of its cached part.

import { h, put } from '../dom.js';
import { count, percent } from '../format.js';
import { empty, facts } from '../ui/parts.js';

/** A token's text with visible spaces, tabs and line ends. */
export function visible(text) {
  return text === '' ? '∅' : text.replaceAll('\n', '↵').replaceAll('\t', '⇥').replaceAll(' ', '·');
}

/** An answer by tokens. The less likely a token was, the stronger is its colour. */
export function heat(tokens) {
  const tip = h('div', { class: 'token-tip', role: 'status', hidden: true });
  let at = -1;
  const spans = tokens.map((token) =>
    h('span', { class: 'heat', style: { '--doubt': String(Math.min(1, 1 - Math.exp(token.lp))) } }, token.t),
  );
  const text = h(
    'div',
    {
      class: 'answer-text',
      tabindex: 0,
      role: 'group',
      'aria-label': 'The answer by tokens: arrow keys move between them',
      on: {
        pointerover: (event) => {
          const index = spans.indexOf(event.target);
          if (index >= 0) point(index);
        },
        pointerleave: () => point(-1),
        blur: () => point(-1),
        keydown: (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (!step) return;
          event.preventDefault();
          point(Math.max(0, Math.min(spans.length - 1, at + step)));
        },
      },
    },
    spans,
  );
  function point(index) {
    spans[at]?.classList.remove('at');
    at = index;
    tip.hidden = index < 0;
    if (index < 0) return;
    spans[index].classList.add('at');
    const { t, lp, top } = tokens[index];
    const rows = top.length ? top : [{ t, lp }];
    put(
      tip,
      h(
        'table',
        {},
        h(
          'tbody',
          {},
          rows.map((row) =>
            h(
              'tr',
              { class: row.t === t ? 'chosen' : null },
              h('td', { class: 'mono' }, visible(row.t)),
              h('td', { class: 'num' }, percent(Math.exp(row.lp))),
              h(
                'td',
                {},
                h(
                  'span',
                  { class: 'meter-track' },
                  h('span', { class: 'meter-fill', style: { width: `${Math.exp(row.lp) * 100}%` } }),
                ),
              ),
            ),
          ),
        ),
      ),
    );
    const box = spans[index].getBoundingClientRect();
    const home = node.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(home.width - 250, box.left - home.left))}px`;
    tip.style.top = `${box.bottom - home.top + 4}px`;
  }
  const node = h('div', { class: 'heat-box' }, text, tip);
  return node;
}

/**
 * A prompt by tokens in alternating colours. The template's control tokens look different, and a line marks
 * the end of the cached blocks. `tokenViewOptions` makes the argument.
 */
export function tokenView({
  tokens,
  total = tokens.length,
  cached,
  lastCached,
  max,
  cost,
  parts,
  template,
  block,
  spelled,
  truncated,
}) {
  if (tokens.length === 0) return empty('No tokens.', 'Write something first.');
  const status = h(
    'p',
    { class: 'muted small lens-said', role: 'status' },
    'Point at a token to see its id. Arrow keys move between tokens.',
  );
  let at = -1;
  let tint = 0;
  const spans = tokens.map((token) =>
    h(
      'span',
      { class: ['token', token.special ? 'special' : `tint-${tint++ % 4}`].join(' ') },
      token.text.replaceAll('\n', '↵\n') || '∅',
    ),
  );
  const places = new Map(spans.map((span, index) => [span, index]));
  const edge =
    cached > 0 &&
    h(
      'span',
      { class: 'cache-edge', role: 'separator', 'aria-label': 'The cache ends here' },
      `a warm cache gives the ${count(cached)} tokens above: whole blocks of ${count(block)}`,
    );
  const body = h(
    'div',
    {
      class: 'lens',
      tabindex: 0,
      role: 'group',
      'aria-label': 'Tokens of the prompt',
      on: {
        pointerover: (event) => places.has(event.target) && point(places.get(event.target)),
        keydown: (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (!step) return;
          event.preventDefault();
          point(Math.max(0, Math.min(spans.length - 1, at + step)));
          spans[at].scrollIntoView({ block: 'nearest' });
        },
      },
    },
    spans.map((span, index) => [edge && index === Math.min(cached, spans.length) ? edge : null, span]),
    edge && cached >= spans.length ? edge : null,
  );
  function point(index) {
    spans[at]?.classList.remove('at');
    at = index;
    const token = tokens[at];
    spans[at].classList.add('at');
    status.textContent = [
      `Token ${count(at + 1)}`,
      `id ${token.id}`,
      JSON.stringify(token.text),
      token.special &&
        (token.special === 'special'
          ? 'special: not in decoded texts'
          : 'a control token that no text produces'),
      token.part ?? 'from the template',
      cached > 0 && (at < cached ? 'from a warm cache' : 'computed'),
    ]
      .filter(Boolean)
      .join(' · ');
  }
  return [
    facts(
      ['Tokens', count(total)],
      ['Control tokens', count(tokens.filter((token) => token.special).length)],
      ['From the template', template !== undefined && count(template)],
      [
        'From a warm cache',
        cached !== null && cached !== undefined && `${count(cached)} (${percent(cached / total)})`,
      ],
      ['Cached in the last call', lastCached !== null && lastCached !== undefined && count(lastCached)],
      ['Context window', max && `${count(max)}, ${percent(total / max)} used`],
      ['Input cost', cost],
      ...(parts ?? []).map(([name, n]) => [name, `${count(n)} tokens`]),
    ),
    spelled?.length > 0 &&
      h(
        'p',
        { class: 'notice warn' },
        'Written in the text, but not control tokens: ',
        spelled.map((text) => [h('code', {}, text), ' ']),
      ),
    body,
    truncated && h('p', { class: 'muted small' }, truncated),
    status,
  ];
}
