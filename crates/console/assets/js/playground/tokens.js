// Tokens under the pointer: how likely each one was and what else could have come; and the prompt as the model sees it, with the place
// where the cache ended.

import { h, put } from '../dom.js';
import { count, percent } from '../format.js';
import { empty, facts } from '../ui/parts.js';

/** A token so that its edges can be seen: line ends and spaces have signs. */
export function visible(text) {
  return text === '' ? '∅' : text.replaceAll('\n', '↵').replaceAll('\t', '⇥').replaceAll(' ', '·');
}

/** An answer whose tokens are as warm as they were unlikely. */
export function heat(tokens) {
  const tip = h('div', { class: 'token-tip', role: 'status', hidden: true });
  let at = -1;
  const spans = tokens.map((token) => h('span', { class: 'heat', style: { '--doubt': String(Math.min(1, 1 - Math.exp(token.lp))) } }, token.t));
  const text = h('div', { class: 'answer-text', tabindex: 0, role: 'group', 'aria-label': 'The answer by tokens: arrow keys move along it', on: {
    pointerover: (event) => { const index = spans.indexOf(event.target); if (index >= 0) point(index); },
    pointerleave: () => point(-1), blur: () => point(-1),
    keydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      point(Math.max(0, Math.min(spans.length - 1, at + step)));
    } } }, spans);
  function point(index) {
    spans[at]?.classList.remove('at');
    at = index;
    tip.hidden = index < 0;
    if (index < 0) return;
    spans[index].classList.add('at');
    const { t, lp, top } = tokens[index];
    const rows = top.length ? top : [{ t, lp }];
    put(tip, h('table', {}, h('tbody', {}, rows.map((row) => h('tr', { class: row.t === t ? 'chosen' : null }, h('td', { class: 'mono' }, visible(row.t)), h('td', { class: 'num' }, percent(Math.exp(row.lp))),
      h('td', {}, h('span', { class: 'meter-track' }, h('span', { class: 'meter-fill', style: { width: `${Math.exp(row.lp) * 100}%` } }))))))));
    const box = spans[index].getBoundingClientRect();
    const home = node.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(home.width - 250, box.left - home.left))}px`;
    tip.style.top = `${box.bottom - home.top + 4}px`;
  }
  const node = h('div', { class: 'heat-box' }, text, tip);
  return node;
}

/**
 * The prompt by tokens.
 * @param {{tokens: {id: number, text: string, special: boolean, part?: string}[], cached?: number|null, block?: number|null, max?: number|null, price?: string|null, exact?: boolean}} sight
 */
export function lens({ tokens, cached, max, cost, parts }) {
  if (tokens.length === 0) return empty('No tokens.', 'Write something first.');
  const said = h('span', { class: 'muted', role: 'status' }, 'Point at a token for its id.');
  let tint = 0;
  const body = h('div', { class: 'lens', tabindex: 0, role: 'group', 'aria-label': 'Tokens of the prompt', on: { pointerover: (event) => {
    const index = event.target.dataset?.at;
    if (index === undefined) return;
    const token = tokens[Number(index)];
    said.textContent = `Token ${count(Number(index) + 1)} · id ${token.id} · ${JSON.stringify(token.text)}${token.special ? ' · special' : ''}${token.part ? ` · ${token.part}` : ''}`;
  } } }, tokens.map((token, at) => [
    cached && at === cached ? h('span', { class: 'cache-edge', role: 'separator' }, `cached up to here (${count(cached)} tokens)`) : null,
    h('span', { class: ['token', token.special ? 'special' : `tint-${tint++ % 4}`, cached && at < cached && 'cached'].filter(Boolean).join(' '), data: { at: String(at) } }, token.text.replaceAll('\n', '↵\n') || '∅'),
  ]));
  return [
    facts(['Tokens', count(tokens.length)], ['Special', count(tokens.filter((token) => token.special).length)], ['From the cache, last time', cached ? `${count(cached)} (${percent(cached / tokens.length)})` : null],
      ['Window', max && `${count(max)}, ${percent(tokens.length / max)} used`], ['Input costs', cost], ...(parts ?? []).map(([name, n]) => [name, `${count(n)} tokens`])),
    body, said];
}
