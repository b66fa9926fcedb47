// Shows the audit log, newest first.

import { actOf, actorOf, detailOf } from '../audit-acts.js';
import { fetchAll, get, rowsOf } from '../api.js';
import { h, put } from '../dom.js';
import { listen } from '../live.js';
import { may } from '../session.js';
import { badge, button, card, empty, head, load, when } from '../ui/parts.js';
import { field } from '../ui/dialog.js';
import { table } from '../ui/table.js';

const PAGE_ROWS = 200;

/** Shows the page. */
export async function show(root, { signal }) {
  const rows = [];
  const names = new Map();
  let cursor = null;
  let text = '';
  const place = h('div');
  const foot = h('div', { class: 'pad' });
  const box = field('Find in the loaded entries', {
    placeholder: 'Actor, act or subject',
    changed: (value) => {
      text = value.toLowerCase();
      draw();
    },
  });
  box.input.dataset.search = '';
  const body = h('div');
  put(root, head('Audit', 'Every act of an operator. The log cannot be changed.'), body);
  async function fetchPage() {
    const page = await get('audit', { query: { limit: PAGE_ROWS, cursor }, signal });
    rows.push(...rowsOf(page));
    cursor = page.next ?? null;
  }
  /** Fetches the names of keys and operators by id. */
  async function learnNames() {
    const lists = await Promise.all(
      ['keys', 'operators']
        .filter((list) => may(`GET /${list}`))
        .map((list) => fetchAll(list, { signal }).catch(() => [])),
    );
    for (const row of lists.flat()) names.set(row.id, row.name);
  }
  function draw() {
    const shown = rows.filter((row) =>
      `${row.actor} ${row.act} ${actOf(row.act)[0]} ${row.subject} ${names.get(row.subject) ?? ''} ${row.detail} ${detailOf(row.detail)}`
        .toLowerCase()
        .includes(text),
    );
    put(
      place,
      shown.length === 0
        ? empty('No entry matches.', cursor && 'Older entries are not loaded yet.')
        : table(
            'Audit log',
            [
              { name: 'When', cell: (row) => when(row.at) },
              {
                name: 'Who',
                cell: (row) => h('b', { title: actorOf(row.actor).id }, actorOf(row.actor).name),
              },
              { name: 'What', cell: (row) => h('span', { title: row.act }, badge(...actOf(row.act))) },
              {
                name: 'To',
                cell: (row) =>
                  names.has(row.subject)
                    ? h('span', { class: 'ident', title: row.subject }, names.get(row.subject))
                    : h('span', { class: 'mono small ident' }, row.subject),
              },
              { name: 'How', wide: true, cell: (row) => detailOf(row.detail) },
              { name: '№', num: true, cell: (row) => h('span', { class: 'muted' }, row.seq) },
            ],
            shown,
          ),
    );
    put(
      foot,
      cursor &&
        button('Older', async () => {
          await fetchPage();
          draw();
        }),
    );
  }
  const start = () =>
    load(
      body,
      async () => {
        rows.length = 0;
        cursor = null;
        await Promise.all([fetchPage(), learnNames()]);
        if (rows.length === 0)
          return empty('The log is empty.', 'Acts such as new keys, grants and reloads appear here.');
        draw();
        return card(null, { class: 'flush' }, h('div', { class: 'pad finder' }, box.node), place, foot);
      },
      { signal, lines: 8 },
    );
  await start();
  listen(
    'changed',
    async () => {
      const page = await get('audit', { query: { limit: 20 }, signal }).catch(() => null);
      const known = new Set(rows.map((row) => row.seq));
      const fresh = rowsOf(page).filter((row) => !known.has(row.seq));
      if (fresh.length && rows.length) {
        rows.unshift(...fresh);
        draw();
      }
    },
    signal,
  );
}
