// Adds to a page of the book: the search, the drawer on narrow screens, the choice of colours, copy buttons,
// and keys. The page can be read without this script. Knows no session, and the console's pages by name only.

import { add, h, icon } from './dom.js';
import { findInBook, openPalette } from './palette.js';
import { PAGES } from './router.js';
import { apply, choose } from './settings.js';
import { theme } from './shell/choices.js';
import { isTyping } from './shell/typing.js';
import { loadTitles } from './book-titles.js';
import { button, copyButton } from './ui/parts.js';
import { fit } from './ui/table.js';
import { dialog } from './ui/dialog.js';

const side = document.getElementById('side');
const shell = document.querySelector('.shell');
// Event times start at 0 when a page loads, so "long ago" is minus infinity.
let goPressedAt = -Infinity;

function begin() {
  apply();
  const drawer = button('', () => toggle(), {
    kind: 'quiet only-narrow',
    sign: 'menu',
    title: 'Contents',
    'aria-expanded': 'false',
    'aria-controls': 'side',
  });
  const find = h(
    'button',
    { type: 'button', class: 'find', on: { click: search } },
    icon('search'),
    h('span', {}, 'Search the book…'),
    h('kbd', {}, 'Ctrl K'),
  );
  const top = document.getElementById('top');
  top.prepend(drawer);
  add(top, find, h('div', { class: 'top-end' }, theme()));
  for (const block of document.querySelectorAll('.with-copy'))
    add(
      block,
      copyButton(() => block.querySelector('code').textContent, ''),
    );
  for (const wrap of document.querySelectorAll('.leaf .table-wrap')) prepareTable(wrap);
  side.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest' });
  document.getElementById('main').addEventListener('click', () => toggle(false));
  markSection();

  function toggle(force) {
    const on = shell.classList.toggle('side-open', force);
    drawer.setAttribute('aria-expanded', String(on));
    if (on) side.querySelector('a')?.focus();
  }

  document.addEventListener('keydown', (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
      event.preventDefault();
      return search();
    }
    if (event.key === 'Escape') toggle(false);
    if (
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      isTyping(event.target) ||
      document.querySelector('dialog[open]')
    )
      return;
    if (event.timeStamp - goPressedAt < 1200) {
      goPressedAt = -Infinity;
      const page = PAGES.find((entry) => entry.key === event.key);
      if (page) location.assign(`/#/${page.path}`);
    } else if (event.key === 'g') goPressedAt = event.timeStamp;
    else if (event.key === '/') {
      event.preventDefault();
      search();
    } else if (event.key === '?') help();
    else if (event.key === 'n' || event.key === 'p')
      document.querySelector(`.beside [rel="${event.key === 'n' ? 'next' : 'prev'}"]`)?.click();
  });
}

/** Prepares a table for the layout as cards: names the column in each cell and sets the ARIA roles. */
function prepareTable(wrap) {
  const node = wrap.querySelector('table');
  const heads = [...node.querySelectorAll('thead :is(th, td)')].map((head) => head.textContent);
  const roles = {
    table: [node],
    rowgroup: node.querySelectorAll('thead, tbody'),
    row: node.querySelectorAll('tr'),
    columnheader: node.querySelectorAll('thead th'),
    cell: node.querySelectorAll('td'),
  };
  for (const [role, nodes] of Object.entries(roles))
    for (const element of nodes) element.setAttribute('role', role);
  for (const row of node.querySelectorAll('tbody tr'))
    [...row.children].forEach((cell, at) => {
      cell.dataset.name = heads[at] ?? '';
      cell.replaceChildren(h('div', {}, [...cell.childNodes]));
    });
  fit(wrap, node);
}

async function search() {
  const pages = PAGES.map((page) => ({
    name: page.name,
    hint: 'The console',
    sign: page.icon,
    run: () => location.assign(`/#/${page.path}`),
  }));
  const colours = ['Light', 'Dark'].map((name) => ({
    name: `${name} colours`,
    hint: 'This browser',
    sign: name === 'Light' ? 'sun' : 'moon',
    run: () => choose('theme', name.toLowerCase()),
  }));
  await loadTitles();
  openPalette(
    (text, inTexts) => [
      ...findInBook(text, inTexts),
      ...(inTexts
        ? []
        : [...pages, ...colours].filter((entry) => entry.name.toLowerCase().includes(text.toLowerCase()))),
    ],
    'Words of the book, a code of an error, a page of the console',
  );
}

function help() {
  const rows = [
    ['Ctrl K', 'Search the book'],
    ['/', 'Search the book'],
    ['n', 'The next page'],
    ['p', 'The previous page'],
    ['g', 'then a letter: a page of the console'],
    ['Esc', 'Close'],
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
              key.split(' ').map((part) => h('kbd', {}, part)),
            ),
            h('dd', {}, meaning),
          ),
        ),
      ),
    ),
  );
}

/** Marks the section in view in the page's table of contents, now and after scrolling. */
function markSection() {
  const links = new Map(
    [...document.querySelectorAll('.on-page a')].map((link) => [link.getAttribute('href').slice(1), link]),
  );
  const heads = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
  if (heads.length === 0) return;
  let scheduled = false;
  const draw = () => {
    scheduled = false;
    const passed = heads.filter((head) => head.getBoundingClientRect().top < 120);
    const at = (passed.at(-1) ?? heads[0]).id;
    for (const [id, link] of links)
      id === at ? link.setAttribute('aria-current', 'true') : link.removeAttribute('aria-current');
  };
  document.addEventListener(
    'scroll',
    () => {
      if (!scheduled) {
        scheduled = true;
        requestAnimationFrame(draw);
      }
    },
    { passive: true },
  );
  draw();
}

begin();
