// The command palette: finds pages, acts, requests by their id, and pages of the book. A combobox as in the
// ARIA practices: the focus stays in the text box, and arrow keys choose.

import { h, icon, put } from './dom.js';
import { plural } from './format.js';
import { PAGES, go } from './router.js';
import { may } from './session.js';
import { choice, choose } from './settings.js';
import { loadTitles, searchTitles } from './book-titles.js';
import { loadSections, searchSections } from './book-search.js';

/** Acts that the palette offers beside the pages. */
const ACTS = [
  {
    name: 'Create a key',
    hint: 'Keys and limits',
    sign: 'plus',
    needs: 'POST /keys',
    run: () => go('keys?new=key'),
  },
  {
    name: 'Create a project',
    hint: 'Keys and limits',
    sign: 'plus',
    needs: 'POST /projects',
    run: () => go('keys?tab=projects&new=project'),
  },
  {
    name: 'Grant credit',
    hint: 'Money',
    sign: 'money',
    needs: 'POST /projects/{id}/credit',
    run: () => go('money?new=credit'),
  },
  {
    name: 'Slow requests of the last hour',
    hint: 'Requests',
    sign: 'requests',
    needs: 'GET /requests',
    run: () => go('requests?slower_than_ms=1000&last=1h'),
  },
  {
    name: 'Refused requests',
    hint: 'Requests',
    sign: 'requests',
    needs: 'GET /requests',
    run: () => go('requests?outcome=refused'),
  },
  {
    name: 'Failed requests',
    hint: 'Requests',
    sign: 'requests',
    needs: 'GET /requests',
    run: () => go('requests?outcome=failed'),
  },
  {
    name: 'Verify the ledger',
    hint: 'Money',
    sign: 'check',
    needs: 'POST /ledger/verify',
    run: () => go('money?tab=ledger'),
  },
  {
    name: 'Reload the configuration',
    hint: 'Settings',
    sign: 'redo',
    needs: 'POST /reload',
    run: () => go('settings?do=reload'),
  },
  { name: 'Read the book', hint: 'The book', sign: 'book', run: () => location.assign('/docs/') },
  { name: 'Light colours', hint: 'This browser', sign: 'sun', run: () => choose('theme', 'light') },
  { name: 'Dark colours', hint: 'This browser', sign: 'moon', run: () => choose('theme', 'dark') },
  {
    name: 'Switch between local times and UTC',
    hint: 'This browser',
    sign: 'clock',
    run: () => choose('clock', choice('clock') === 'utc' ? 'local' : 'utc'),
  },
];

const MOST_SHOWN = 14;
/** The most titles of the book in the list. Leaves room for the line about its texts. */
const MOST_TITLES = 8;

/**
 * Opens the palette, unless it is open. `find(text, inTexts)` returns the entries for a text. `inTexts` is
 * true after the reader has chosen to search the book's texts.
 */
export function openPalette(
  find = findEverywhere,
  placeholder = 'A page, an act, the id of a request, words of the book',
) {
  // A closed palette stays in the document until the browser sends `close`.
  if (document.querySelector('.palette[open]')) return;
  let found = [];
  let at = 0;
  let inTexts = false;
  const list = h('ul', {
    class: 'palette-list',
    role: 'listbox',
    id: 'palette-list',
    'aria-label': 'Results',
  });
  const box = h('input', {
    type: 'text',
    role: 'combobox',
    placeholder,
    'aria-label': 'Search or jump to',
    'aria-expanded': 'true',
    'aria-controls': 'palette-list',
    'aria-autocomplete': 'list',
    autocomplete: 'off',
    spellcheck: 'false',
    on: {
      input: () => {
        at = 0;
        inTexts = false;
        draw();
      },
      keydown: pressed,
    },
  });
  const node = h(
    'dialog',
    {
      class: 'palette',
      'aria-label': 'Search or jump to',
      on: { close: () => node.remove(), click: (event) => event.target === node && node.close() },
    },
    h('div', { class: 'palette-box' }, icon('search'), box, h('kbd', {}, 'Esc')),
    list,
  );

  function draw() {
    found = find(box.value.trim(), inTexts).slice(0, MOST_SHOWN);
    put(
      list,
      found.length
        ? found.map((entry, index) =>
            h(
              'li',
              {
                role: 'option',
                id: `palette-${index}`,
                'aria-selected': String(index === at),
                on: {
                  click: () => run(index),
                  mousemove: () => {
                    if (at !== index) {
                      at = index;
                      highlight();
                    }
                  },
                },
              },
              icon(entry.sign),
              h(
                'span',
                {},
                entry.name,
                entry.text && h('span', { class: 'palette-text muted small' }, entry.text),
              ),
              entry.hint && h('span', { class: 'muted small' }, entry.hint),
            ),
          )
        : h(
            'li',
            { class: 'muted', role: 'option', 'aria-disabled': 'true', 'aria-selected': 'false' },
            'Nothing by that name. The id of a request starts with req_.',
          ),
    );
    highlight();
  }
  function highlight() {
    [...list.children].forEach((item, index) =>
      item.setAttribute('aria-selected', String(index === at && found.length > 0)),
    );
    found.length
      ? box.setAttribute('aria-activedescendant', `palette-${at}`)
      : box.removeAttribute('aria-activedescendant');
    list.children[at]?.scrollIntoView({ block: 'nearest' });
  }
  function pressed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      event.preventDefault();
      at = (at + step + found.length) % found.length;
      highlight();
    }
    if (event.key === 'Enter') {
      event.preventDefault();
      run(at);
    }
  }
  function run(index) {
    const entry = found[index];
    if (!entry) return;
    if (entry.texts) {
      inTexts = true;
      at = 0;
      box.focus();
      return draw();
    }
    node.close();
    entry.run();
  }

  document.body.append(node);
  node.showModal();
  draw();
  box.focus();
  // Draws the list again when the book's titles and texts have arrived.
  for (const loaded of [loadTitles(), loadSections()]) loaded.then(() => node.isConnected && draw());
}

/**
 * Finds entries of the book. If titles match: their pages, and one line that leads to the matches in texts.
 * Otherwise the matches in texts. `between` are entries that precede the texts.
 */
export function findInBook(text, inTexts, { hint, between = [] } = {}) {
  const places = searchSections(text);
  if (inTexts) return places;
  const pages = searchTitles(text, hint);
  if (pages.length === 0) return [...between, ...places];
  return [
    ...pages.slice(0, text ? MOST_TITLES : undefined),
    ...between,
    ...(places.length
      ? [
          {
            name: `${plural(places.length, 'place')} in the texts of the book`,
            hint: '',
            sign: 'search',
            texts: true,
          },
        ]
      : []),
  ];
}

function findEverywhere(text, inTexts) {
  if (inTexts) return findInBook(text, true);
  const pages = PAGES.filter((page) => may(page.needs)).map((page) => ({
    name: page.name,
    hint: `g ${page.key}`,
    sign: page.icon,
    run: () => go(page.path),
  }));
  const acts = ACTS.filter((act) => !act.needs || may(act.needs));
  if (!text) return [...pages, ...acts];
  const ids =
    /^(req_|chatcmpl-|msg_|resp_|cmpl-)\w+/.test(text) && may('GET /requests/{id}')
      ? [
          {
            name: text,
            hint: 'Request',
            sign: 'requests',
            run: () => go(`requests/${encodeURIComponent(text)}`),
          },
        ]
      : [];
  const words = text.toLowerCase().split(/\s+/);
  const matches = [...pages, ...acts].filter((entry) =>
    words.every((word) => `${entry.name} ${entry.hint}`.toLowerCase().includes(word)),
  );
  const search = may('GET /requests')
    ? [
        {
          name: `Requests whose error contains “${text}”`,
          hint: 'Requests',
          sign: 'search',
          run: () => go(`requests?text=${encodeURIComponent(text)}`),
        },
      ]
    : [];
  return [...ids, ...matches, ...findInBook(text, false, { hint: () => 'The book', between: search })];
}
