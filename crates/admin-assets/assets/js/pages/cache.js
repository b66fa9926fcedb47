// Shows the cached share of prompts by organisation, model or prefix, the reasons of misses, and where
// prompts differ.

import { get, rowsOf } from '../api.js';
import { h, put } from '../dom.js';
import { count, duration, percent, short } from '../format.js';
import { reasonOf } from '../cache-misses.js';
import { rewrite } from '../router.js';
import { card, empty, head, load, meter, segmented, when } from '../ui/parts.js';
import { field } from '../ui/dialog.js';
import { table } from '../ui/table.js';

const BY = [
  ['org', 'Organisation'],
  ['model', 'Model'],
  ['prefix', 'Prefix'],
];
const SPANS = [
  ['1h', 'Last hour'],
  ['24h', 'Last day'],
  ['7d', 'Last 7 days'],
  ['30d', 'Last 30 days'],
];
const SPAN_MS = { '1h': 36e5, '24h': 864e5, '7d': 6048e5, '30d': 2592e6 };

const MOST_PLACES = 4;

/** Shows the page. */
export async function show(root, { query, signal }) {
  let by = BY.some(([id]) => id === query.get('by')) ? query.get('by') : 'model';
  let span = SPAN_MS[query.get('last')] ? query.get('last') : '24h';
  const body = h('div', { class: 'page-body' });
  const draw = () => {
    rewrite(`cache?by=${by}&last=${span}`);
    return load(
      body,
      async () =>
        report(
          await get('cache', {
            query: { by, from: new Date(Date.now() - SPAN_MS[span]).toISOString() },
            signal,
          }),
          by,
        ),
      { signal, lines: 7 },
    );
  };
  put(
    root,
    head(
      'Cache',
      'Prompt tokens that were found in the cache. They are faster and cheaper than computed ones.',
      field('Over', {
        kind: 'select',
        value: span,
        options: SPANS,
        changed: (value) => {
          span = value;
          draw();
        },
      }).node,
      segmented('By', BY, by, (value) => {
        by = value;
        draw();
      }),
    ),
    body,
  );
  await draw();
}

function report(usage, by) {
  const rows = rowsOf(usage.rows ? { data: usage.rows } : usage);
  if (rows.length === 0)
    return empty(
      'There was no prompt in this time.',
      'Calls whose prompt this server renders are counted here.',
    );
  const prompt = sum(rows, promptOf);
  const found = sum(rows, foundOf);
  const misses = missesOf(rows);
  const saved = {
    tokens: sum(rows.flatMap(placesOf), (place) => place.could_save_tokens),
    us: sum(rows.flatMap(placesOf), (place) => place.could_save_prefill_us),
  };
  return [
    h(
      'div',
      { class: 'tiles' },
      [
        ['Found', percent(prompt ? found / prompt : null), `${short(found)} of ${short(prompt)} tokens`],
        ['Calls', count(sum(rows, (row) => row.calls ?? 0)), ''],
        [
          'Could be saved',
          saved.tokens ? short(saved.tokens) : '–',
          saved.tokens ? `tokens, ${duration(saved.us)} of prefill, by better ordering` : '',
        ],
      ]
        .filter(([, value]) => value !== '–')
        .map(([name, value, note]) =>
          h(
            'div',
            { class: 'tile' },
            h('span', { class: 'tile-name' }, name),
            h('span', { class: 'tile-value' }, value),
            h('span', { class: 'tile-note muted small' }, note),
          ),
        ),
    ),
    card(
      null,
      { class: 'flush' },
      table(
        `Cache by ${by}`,
        [
          {
            name: BY.find(([id]) => id === by)[1],
            wide: true,
            sort: (row) => nameOf(row, by),
            cell: (row) => [
              h('b', {}, nameOf(row, by)),
              row.text && h('p', { class: 'muted small mono' }, row.text),
            ],
          },
          { name: 'Calls', num: true, sort: (row) => row.calls, cell: (row) => count(row.calls) },
          {
            name: 'Found',
            sort: (row) => foundOf(row) / promptOf(row),
            cell: (row) =>
              meter(
                foundOf(row) / promptOf(row),
                percent(promptOf(row) ? foundOf(row) / promptOf(row) : null),
              ),
          },
          { name: 'Prompt tokens', num: true, sort: promptOf, cell: (row) => short(promptOf(row)) },
          { name: 'Found tokens', num: true, sort: foundOf, cell: (row) => short(foundOf(row)) },
        ],
        rows,
      ),
    ),
    misses.length > 0 &&
      card(
        'Why the rest was not found',
        { class: 'flush' },
        table(
          'Misses by reason',
          [
            {
              name: 'Reason',
              wide: true,
              cell: (miss) => [
                h('b', {}, reasonOf(miss.reason)[0]),
                h('p', { class: 'muted small' }, miss.text ?? reasonOf(miss.reason)[1]),
              ],
            },
            { name: 'Calls', num: true, sort: (miss) => miss.calls, cell: (miss) => count(miss.calls) },
            { name: 'Tokens', num: true, sort: (miss) => miss.tokens, cell: (miss) => short(miss.tokens) },
            {
              name: 'Where prompts differ',
              wide: true,
              cell: (miss) =>
                miss.places
                  .slice(0, MOST_PLACES)
                  .map((place) =>
                    h(
                      'p',
                      { class: 'small' },
                      place.place,
                      h(
                        'span',
                        { class: 'muted' },
                        ` ${count(place.calls)} ×`,
                        place.could_save_tokens
                          ? `, ${short(place.could_save_tokens)} tokens could be saved`
                          : '',
                      ),
                      place.example && [
                        ' ',
                        h('a', { href: `#/requests/${encodeURIComponent(place.example)}` }, 'example'),
                      ],
                    ),
                  ),
            },
          ],
          misses,
        ),
      ),
    usage.how_savings_are_estimated && h('p', { class: 'muted small' }, usage.how_savings_are_estimated),
    usage.whole === false &&
      h(
        'p',
        { class: 'muted small' },
        'Covers only the traces that were read',
        usage.since && [': since ', when(usage.since)],
        '.',
      ),
  ];
}

const sum = (rows, figure) => rows.reduce((total, row) => total + Number(figure(row) || 0), 0);
const promptOf = (row) => row.prompt_tokens ?? row.tokens ?? 0;
const foundOf = (row) => row.cached_input_tokens ?? row.cached_tokens ?? row.hit_tokens ?? 0;
const nameOf = (row, by) => row[by] ?? row.name ?? row.prefix ?? '–';

const placesOf = (row) => row.places ?? [];

/** Sums the misses of all rows by reason, with the places where prompts differ. */
function missesOf(rows) {
  const byReason = new Map();
  const entryOf = (reason) =>
    byReason.get(reason) ?? byReason.set(reason, { reason, calls: 0, tokens: 0, places: [] }).get(reason);
  for (const miss of rows.flatMap((row) => row.misses ?? [])) {
    const entry = entryOf(miss.reason);
    entry.calls += miss.calls ?? 0;
    entry.tokens += miss.computed_tokens ?? 0;
  }
  for (const place of rows.flatMap(placesOf)) if (place.place) entryOf(place.reason).places.push(place);
  return [...byReason.values()].sort((a, b) => b.tokens - a.tokens);
}
