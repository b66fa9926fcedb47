// The frame of the pages: side bar, top bar, the reader's choices, and keys that work on every page. Knows
// pages by name only.

import { add, h, icon, put } from './dom.js';
import { PAGES, go } from './router.js';
import { may, name, role, signOut } from './session.js';
import { openPalette } from './palette.js';
import { clock, theme } from './shell/choices.js';
import { isTyping } from './shell/typing.js';
import { button } from './ui/parts.js';
import { dialog } from './ui/dialog.js';

/** Whether the operator may see a page. */
const mayOpen = (page) => may(page.needs);

/** Creates the frame. Its `mark(page)` marks the page that is shown. */
export function shell({ leave }) {
  const links = new Map();
  const side = h(
    'nav',
    { class: 'side', id: 'side', 'aria-label': 'Pages' },
    h('a', { class: 'brand', href: '#/now' }, mark(), h('span', {}, 'Headrace')),
  );
  for (const group of [...new Set(PAGES.map((page) => page.group))]) {
    const pages = PAGES.filter((page) => page.group === group && mayOpen(page));
    if (pages.length === 0) continue;
    add(
      side,
      h('p', { class: 'side-group' }, group),
      h(
        'ul',
        {},
        pages.map((page) => {
          const link = h(
            'a',
            { href: `#/${page.path}`, title: `${page.name} (g ${page.key})` },
            icon(page.icon),
            h('span', {}, page.name),
          );
          links.set(page.path, link);
          return h('li', {}, link);
        }),
      ),
    );
  }
  add(
    side,
    h('p', { class: 'side-group' }, 'Read'),
    h(
      'ul',
      {},
      h(
        'li',
        {},
        h('a', { href: '/docs/', title: 'The Headrace book' }, icon('book'), h('span', {}, 'The book')),
      ),
    ),
  );
  const drawer = button('', () => toggle(), {
    kind: 'quiet only-narrow',
    sign: 'menu',
    title: 'Pages',
    'aria-expanded': 'false',
    'aria-controls': 'side',
  });
  const where = h('span', { class: 'where only-narrow' });
  const main = h('main', { id: 'main', tabindex: -1 });
  const node = h(
    'div',
    { class: 'shell' },
    h(
      'a',
      {
        class: 'skip',
        href: '#main',
        on: {
          click: (event) => {
            event.preventDefault();
            main.focus();
          },
        },
      },
      'Skip to the page',
    ),
    side,
    h(
      'div',
      { class: 'column' },
      h(
        'header',
        { class: 'top' },
        drawer,
        where,
        h(
          'button',
          { type: 'button', class: 'find', on: { click: () => openPalette() } },
          icon('search'),
          h('span', {}, 'Search or jump to…'),
          h('kbd', {}, 'Ctrl K'),
        ),
        h('div', { class: 'top-end' }, clock(), theme(), operator(leave)),
      ),
      main,
    ),
  );

  function toggle(force) {
    const on = node.classList.toggle('side-open', force);
    drawer.setAttribute('aria-expanded', String(on));
    if (on) side.querySelector('a')?.focus();
  }
  side.addEventListener('click', () => toggle(false));
  main.addEventListener('click', () => node.classList.contains('side-open') && toggle(false));
  listen(() => toggle(false));
  return {
    node,
    main,
    mark(page) {
      for (const [path, link] of links)
        path === page.path ? link.setAttribute('aria-current', 'page') : link.removeAttribute('aria-current');
      put(where, page.name);
    },
  };
}

function mark() {
  return h(
    'span',
    { class: 'brand-mark', 'aria-hidden': 'true' },
    h('img', { src: '/icon.svg', alt: '', width: 22, height: 22 }),
  );
}

function operator(leave) {
  return h(
    'span',
    { class: 'operator' },
    h('span', { class: 'operator-name' }, name(), h('span', { class: 'muted' }, ` ${role()}`)),
    button(
      '',
      async () => {
        await signOut().catch(() => {});
        leave();
      },
      { kind: 'quiet', sign: 'out', title: 'Sign out' },
    ),
  );
}

let listening = null;

/** Listens for the keys that work on every page. Ignores keys in text fields. */
function listen(close) {
  listening?.abort();
  listening = new AbortController();
  // Event times start at 0 when a page loads, so "long ago" is minus infinity.
  let goPressedAt = -Infinity;
  document.addEventListener(
    'keydown',
    (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
        event.preventDefault();
        openPalette();
        return;
      }
      if (event.key === 'Escape') close();
      if (
        event.ctrlKey ||
        event.metaKey ||
        event.altKey ||
        event.defaultPrevented ||
        isTyping(event.target) ||
        document.querySelector('dialog[open]')
      )
        return;
      if (event.timeStamp - goPressedAt < 1200) {
        goPressedAt = -Infinity;
        const page = PAGES.find((entry) => entry.key === event.key && mayOpen(entry));
        if (page) {
          event.preventDefault();
          go(page.path);
        }
      } else if (event.key === 'g') goPressedAt = event.timeStamp;
      else if (event.key === '/') {
        const box = document.querySelector('main [data-search]');
        if (box) {
          event.preventDefault();
          box.focus();
          box.select();
        } else {
          event.preventDefault();
          openPalette();
        }
      } else if (event.key === '?') help();
    },
    { signal: listening.signal },
  );
}

/** Shows the list of keys. */
export function help() {
  const rows = [
    ['Ctrl K', 'Search or jump: pages, requests, acts'],
    ['/', 'Search on this page'],
    ['?', 'This list'],
    ['Esc', 'Close'],
    ...PAGES.filter(mayOpen).map((page) => [`g ${page.key}`, page.name]),
    ['j k · ↑ ↓', 'Move in a list of requests'],
    ['Enter', 'Open the row'],
    ['c', 'Mark a request to compare'],
    ['Enter', 'Playground: send; Shift Enter starts a line, Esc stops'],
  ];
  dialog('Keys', () =>
    h(
      'div',
      { class: 'dialog-body' },
      h(
        'dl',
        { class: 'keys-list' },
        rows.map(([key, meaning]) =>
          h(
            'div',
            {},
            h(
              'dt',
              {},
              key.split(' ').map((part) => (part === '·' ? ' ' : h('kbd', {}, part))),
            ),
            h('dd', {}, meaning),
          ),
        ),
      ),
    ),
  );
}
