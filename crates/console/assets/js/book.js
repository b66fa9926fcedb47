// What a page of the book gets beside its text: the search, the drawer on narrow screens, colours, buttons that copy, and keys. The page
// is whole without it. Knows no session and no page of the console but by name.

import { add, h, icon } from './dom.js';
import { ofBook, openPalette } from './palette.js';
import { PAGES } from './router.js';
import { apply, choose } from './settings.js';
import { theme } from './shell/choices.js';
import { isTyping } from './shell/typing.js';
import { titles } from './titles.js';
import { button, copyButton } from './ui/parts.js';
import { fit } from './ui/table.js';
import { dialog } from './ui/dialog.js';

const side = document.getElementById('side');
const shell = document.querySelector('.shell');
// Long ago: a page that is just there has the clock at nothing.
let went = -Infinity;

function begin() {
  apply();
  const drawer = button('', () => toggle(), { kind: 'quiet only-narrow', sign: 'menu', title: 'Contents', 'aria-expanded': 'false', 'aria-controls': 'side' });
  const find = h('button', { type: 'button', class: 'find', on: { click: search } }, icon('search'), h('span', {}, 'Search the book…'), h('kbd', {}, 'Ctrl K'));
  const top = document.getElementById('top');
  top.prepend(drawer);
  add(top, find, h('div', { class: 'top-end' }, theme()));
  for (const block of document.querySelectorAll('.with-copy')) add(block, copyButton(() => block.querySelector('code').textContent, ''));
  for (const wrap of document.querySelectorAll('.leaf .table-wrap')) named(wrap);
  side.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest' });
  document.getElementById('main').addEventListener('click', () => toggle(false));
  follow();

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
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector('dialog[open]')) return;
    if (event.timeStamp - went < 1200) {
      went = -Infinity;
      const page = PAGES.find((one) => one.key === event.key);
      if (page) location.assign(`/#/${page.path}`);
    } else if (event.key === 'g') went = event.timeStamp;
    else if (event.key === '/') { event.preventDefault(); search(); }
    else if (event.key === '?') help();
    else if (event.key === 'n' || event.key === 'p') document.querySelector(`.beside [rel="${event.key === 'n' ? 'next' : 'prev'}"]`)?.click();
  });
}

/** Makes a table of a page one that can become cards: its cells know the names of their columns, and its parts say what they are. */
function named(wrap) {
  const made = wrap.querySelector('table');
  const heads = [...made.querySelectorAll('thead :is(th, td)')].map((head) => head.textContent);
  const roles = { table: [made], rowgroup: made.querySelectorAll('thead, tbody'), row: made.querySelectorAll('tr'), columnheader: made.querySelectorAll('thead th'), cell: made.querySelectorAll('td') };
  for (const [role, nodes] of Object.entries(roles)) for (const node of nodes) node.setAttribute('role', role);
  for (const row of made.querySelectorAll('tbody tr')) [...row.children].forEach((cell, at) => {
    cell.dataset.name = heads[at] ?? '';
    cell.replaceChildren(h('div', {}, [...cell.childNodes]));
  });
  fit(wrap, made);
}

async function search() {
  const pages = PAGES.map((page) => ({ name: page.name, hint: 'The console', sign: page.icon, run: () => location.assign(`/#/${page.path}`) }));
  const colours = ['Light', 'Dark'].map((name) => ({ name: `${name} colours`, hint: 'This browser', sign: name === 'Light' ? 'sun' : 'moon', run: () => choose('theme', name.toLowerCase()) }));
  await titles();
  openPalette((text, inTexts) => [...ofBook(text, inTexts), ...(inTexts ? [] : [...pages, ...colours].filter((one) => one.name.toLowerCase().includes(text.toLowerCase())))], 'Words of the book, a code of an error, a page of the console');
}

function help() {
  const rows = [['Ctrl K', 'Search the book'], ['/', 'Search the book'], ['n', 'The next page'], ['p', 'The page before'], ['g', 'and a letter: a page of the console'], ['Esc', 'Close']];
  dialog('Keys', () => h('div', { class: 'dialog-body' }, h('dl', { class: 'keys-list' }, rows.map(([key, what]) => h('div', {}, h('dt', {}, key.split(' ').map((one) => h('kbd', {}, one))), h('dd', {}, what))))));
}

/** Marks, in what the page holds, where the reader is. */
function follow() {
  const links = new Map([...document.querySelectorAll('.on-page a')].map((link) => [link.getAttribute('href').slice(1), link]));
  const heads = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
  if (heads.length === 0) return;
  let asked = false;
  const draw = () => {
    asked = false;
    const passed = heads.filter((head) => head.getBoundingClientRect().top < 120);
    const at = (passed.at(-1) ?? heads[0]).id;
    for (const [id, link] of links) id === at ? link.setAttribute('aria-current', 'true') : link.removeAttribute('aria-current');
  };
  document.addEventListener('scroll', () => { if (!asked) { asked = true; requestAnimationFrame(draw); } }, { passive: true });
  draw();
}

begin();
