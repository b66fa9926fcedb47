// The parts that pages consist of: headings, cards, buttons, badges, empty and failed states, tabs, figures.

import { add, h, icon, put } from '../dom.js';
import { ago, bothTimes, time } from '../format.js';
import { errorPagePath } from '../book-titles.js';

/** The head of a page: its name, one sentence, and its buttons. */
export function head(title, sentence, ...acts) {
  return h(
    'header',
    { class: 'head' },
    h('div', {}, h('h1', {}, title), sentence && h('p', { class: 'muted' }, sentence)),
    acts.length > 0 && h('div', { class: 'acts' }, acts),
  );
}

export function card(title, props, ...children) {
  const { note, acts, ...rest } = props ?? {};
  return h(
    'section',
    { ...rest, class: ['card', rest.class].filter(Boolean).join(' ') },
    title &&
      h(
        'div',
        { class: 'card-head' },
        h('h2', {}, title),
        note && h('span', { class: 'muted small' }, note),
        acts && h('div', { class: 'acts' }, acts),
      ),
    children,
  );
}

export function button(text, act, { kind = '', sign, title, disabled, ...rest } = {}) {
  return h(
    'button',
    {
      type: 'button',
      class: ['button', kind].filter(Boolean).join(' '),
      title,
      disabled,
      'aria-label': text ? null : title,
      ...rest,
      on: { click: act },
    },
    sign && icon(sign),
    text && h('span', {}, text),
  );
}

/** A word on a coloured background. Kinds: `good`, `warn`, `bad`, `info`, or none. */
export function badge(text, kind = '') {
  return h('span', { class: `badge ${kind}` }, text);
}

/** The badge of a call's outcome. */
export function outcome(ending) {
  const kind = typeof ending === 'string' ? ending : ending?.kind;
  if (!kind) return badge('in flight', 'info');
  const badges = {
    completed: ['completed', 'good'],
    cancelled: ['cancelled', ''],
    refused: [ending?.code ? `refused · ${ending.code}` : 'refused', 'warn'],
    failed: [ending?.stage ? `failed in ${ending.stage}` : 'failed', 'bad'],
  };
  return badge(...(badges[kind] ?? [kind, '']));
}

const DAY_LENGTH = '2026-11-26'.length;

/**
 * A time with its local and UTC forms in the title. `ago` shows the distance from now, `day` the date only.
 */
export function when(at, options) {
  if (!at) return h('span', { class: 'muted' }, '–');
  return h(
    'time',
    { datetime: String(at), title: bothTimes(at) },
    options?.ago
      ? ago(at)
      : options?.day
        ? time(at, { date: 'always' }).slice(0, DAY_LENGTH)
        : time(at, options),
  );
}

/** Grey lines in the place of content that is being fetched. */
export function skeleton(lines = 4) {
  return h(
    'div',
    { class: 'skeleton', role: 'status', 'aria-label': 'Loading' },
    Array.from({ length: lines }, (_, at) => h('div', { style: { width: `${90 - ((at * 37) % 50)}%` } })),
  );
}

/** The state without content, with the next step. */
export function empty(title, sentence, ...acts) {
  return h(
    'div',
    { class: 'empty' },
    h('p', { class: 'empty-title' }, title),
    sentence && h('p', { class: 'muted' }, sentence),
    acts.length > 0 && h('div', { class: 'acts' }, acts),
  );
}

/** The message of an error, with its remedy. */
export function failure(error, retry) {
  const doc = error.doc && /^(\/docs\/|https:\/\/)/.test(error.doc) ? error.doc : null;
  return h(
    'div',
    { class: 'failure', role: 'alert' },
    icon('warn'),
    h(
      'div',
      {},
      h('p', { class: 'failure-title' }, error.message || 'Something went wrong.'),
      error.remedy && h('p', {}, error.remedy),
      (error.field || error.code) &&
        h(
          'p',
          { class: 'muted small' },
          [error.field && `Field: ${error.field}`, error.code && `Code: ${error.code}`]
            .filter(Boolean)
            .join(' · '),
          doc && [
            ' · ',
            h('a', { href: doc, target: '_blank', rel: 'noopener noreferrer' }, 'about this error'),
          ],
        ),
      retry && h('div', { class: 'acts' }, button('Retry', retry, { sign: 'redo' })),
    ),
  );
}

/** A link to the page about an error code. */
export function aboutCode(code, tag = 'p') {
  const page = errorPagePath(code);
  return page && h(tag, { class: 'small' }, h('a', { href: page }, 'about ', h('code', {}, code)));
}

/** Fills `root` with the result of `make`. Shows a skeleton until then, and the error if `make` fails. */
export async function load(root, make, { lines = 4, signal } = {}) {
  put(root, skeleton(lines));
  try {
    const content = await make();
    if (!signal?.aborted) put(root, content);
  } catch (error) {
    if (signal?.aborted || error.name === 'AbortError') return;
    put(
      root,
      failure(error, () => load(root, make, { lines, signal })),
    );
  }
}

/** A button that copies a text, or the result of a function, and confirms it. */
export function copyButton(text, label = 'Copy') {
  const node = button(
    label,
    async () => {
      const value = typeof text === 'function' ? text() : text;
      try {
        await navigator.clipboard.writeText(value);
      } catch {
        copyBySelection(value);
      }
      toast('Copied.');
    },
    { kind: 'quiet', sign: 'copy', title: label ? null : 'Copy' },
  );
  return node;
}

/** A value as JSON, with a button that copies it. */
export function jsonBlock(value) {
  const text = JSON.stringify(value, null, 2);
  return h('div', { class: 'with-copy' }, copyButton(text), h('pre', { class: 'code', tabindex: 0 }, text));
}

/** Copies without the clipboard API, which browsers refuse to pages of other machines without TLS. */
function copyBySelection(value) {
  const area = h('textarea', { class: 'off-screen', 'aria-hidden': 'true' });
  area.value = value;
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

let toasts = null;

/** Shows a short message at the edge of the page for some seconds. Screen readers read it. */
export function toast(text, kind = '') {
  if (!toasts?.isConnected) {
    toasts = h('div', { class: 'toasts', role: 'status', 'aria-live': 'polite' });
    document.body.append(toasts);
  }
  const node = h('div', { class: `toast ${kind}` }, text);
  toasts.append(node);
  setTimeout(() => node.remove(), kind === 'bad' ? 8000 : 3500);
}

/**
 * Tabs as in the ARIA practices: arrow keys move between tabs, and the Tab key reaches the chosen one only.
 * @param {{name: string, id: string, show: (root: HTMLElement) => void}[]} list
 */
export function tabs(list, { chosen, changed, label = 'Views' } = {}) {
  const panel = h('div', { class: 'tab-panel', role: 'tabpanel', tabindex: 0, id: `panel-${list[0].id}` });
  const heads = list.map((tab, at) =>
    h(
      'button',
      {
        type: 'button',
        role: 'tab',
        class: 'tab',
        id: `tab-${tab.id}`,
        'aria-controls': panel.id,
        on: {
          click: () => choose(at),
          keydown: (event) => {
            const step = { ArrowRight: 1, ArrowLeft: -1, Home: -at, End: list.length - 1 - at }[event.key];
            if (step === undefined) return;
            event.preventDefault();
            choose((at + step + list.length) % list.length, true);
          },
        },
      },
      tab.name,
    ),
  );
  function choose(at, focus, quiet) {
    heads.forEach((tab, index) => {
      tab.setAttribute('aria-selected', String(index === at));
      tab.tabIndex = index === at ? 0 : -1;
    });
    panel.setAttribute('aria-labelledby', heads[at].id);
    if (focus) heads[at].focus();
    put(panel);
    list[at].show(panel);
    if (!quiet) changed?.(list[at].id);
  }
  const node = h(
    'div',
    { class: 'tabs' },
    h('div', { role: 'tablist', class: 'tab-list', 'aria-label': label }, heads),
    panel,
  );
  choose(
    Math.max(
      0,
      list.findIndex((tab) => tab.id === chosen),
    ),
    false,
    true,
  );
  return node;
}

/** A choice between a few options, as buttons beside each other. */
export function segmented(label, options, chosen, changed) {
  const buttons = options.map(([value, text]) =>
    h(
      'button',
      {
        type: 'button',
        'aria-pressed': String(value === chosen),
        on: {
          click: () => {
            buttons.forEach((other, at) =>
              other.setAttribute('aria-pressed', String(options[at][0] === value)),
            );
            changed(value);
          },
        },
      },
      text,
    ),
  );
  return h('div', { class: 'segmented', role: 'group', 'aria-label': label }, buttons);
}

/** The most characters of a tile's figure in large type. */
const LONG_VALUE = 10;

/** A figure with its name, its unit and a remark. */
export function tile(name, { unit, hint } = {}) {
  const value = h('span', { class: 'tile-value' }, '–');
  const note = h('span', { class: 'tile-note muted small' });
  const node = h(
    'div',
    { class: 'tile', title: hint },
    h('span', { class: 'tile-name' }, name),
    h('span', {}, value, unit && h('span', { class: 'tile-unit muted' }, ` ${unit}`)),
    note,
  );
  return {
    node,
    set(text, remark = '') {
      value.classList.toggle('long', text.length > LONG_VALUE);
      if (value.textContent !== text) value.textContent = text;
      if (note.textContent !== remark) note.textContent = remark;
    },
  };
}

/** Names and values in two columns. */
export function facts(...pairs) {
  const list = h('dl', { class: 'facts' });
  for (const [name, value] of pairs.filter(Boolean)) {
    if (value === null || value === undefined || value === false || value === '') continue;
    add(list, h('div', {}, h('dt', {}, name), h('dd', {}, value)));
  }
  return list;
}

/** A share between 0 and 1 as a bar, with a text beside it. */
export function meter(share, text, kind = '') {
  const width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return h(
    'span',
    { class: 'meter' },
    h(
      'span',
      { class: 'meter-track', 'aria-hidden': 'true' },
      h('span', { class: `meter-fill ${kind}`, style: { width } }),
    ),
    h('span', { class: 'num' }, text),
  );
}
