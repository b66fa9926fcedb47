// Shows balances, spend, holds, prices, margin and statements, and verifies the ledger.

import { fetchAll, get, post, rowsOf } from '../api.js';
import { h, put } from '../dom.js';
import { count, dollars, money, plural, short } from '../format.js';
import { balances, grant } from '../money/balances.js';
import { statement } from '../money/statement.js';
import { rewrite } from '../router.js';
import { may } from '../session.js';
import { button, card, empty, head, load, meter, segmented, tabs, when } from '../ui/parts.js';
import { field } from '../ui/dialog.js';
import { table } from '../ui/table.js';
import { DAY_S, HOUR_S, charge, nameBy, spendChart } from '../ui/spend.js';

const TABS = [
  ['balances', 'Balances', 'GET /credit'],
  ['spend', 'Spend', 'GET /usage'],
  ['holds', 'Holds', 'GET /holds'],
  ['prices', 'Prices', 'GET /prices'],
  ['margin', 'Margin', 'GET /margin'],
  ['statement', 'Statement', 'GET /statement'],
  ['ledger', 'Ledger', 'GET /ledger/totals'],
];
const DAYS = [
  ['1', 'Last day'],
  ['7', 'Last 7 days'],
  ['30', 'Last 30 days'],
  ['90', 'Last 90 days'],
];

/** Shows the page. */
export async function show(root, { query, signal }) {
  const allowed = TABS.filter(([, , route]) => may(route));
  const body = h('div');
  put(root, head('Money', 'Balances, spend, holds of calls in flight, prices and statements.'), body);
  const draw = (tab) =>
    put(
      body,
      tabs(
        allowed.map(([id, name]) => ({ id, name, show: (panel) => SHOW[id](panel, signal, () => draw(id)) })),
        { chosen: tab, label: 'What is shown', changed: (id) => rewrite(`money?tab=${id}`) },
      ),
    );
  draw(query.get('tab') ?? allowed[0]?.[0]);
  if (query.get('new') === 'credit') {
    rewrite('money?tab=balances');
    grant(null, () => draw('balances'));
  }
}

const SHOW = { balances, spend, holds, prices, margin, statement, ledger };

function spend(panel, signal) {
  let by = 'model';
  let days = '30';
  const body = h('div', { class: 'page-body' });
  const draw = () =>
    load(
      body,
      async () => {
        const interval = days === '1' ? 'hour' : 'day';
        const from = new Date(Date.now() - Number(days) * 864e5).toISOString();
        const [parts, time] = await Promise.all([
          get('usage', { query: { by, from }, signal }),
          get('usage', { query: { by, interval, from }, signal }),
        ]);
        const rows = rowsOf(parts.rows ? { data: parts.rows } : parts);
        if (rows.length === 0)
          return empty('Nothing was spent in this time.', 'Charges appear here when calls are settled.');
        return [
          spendChart(rowsOf(time.rows ? { data: time.rows } : time), by, {
            from,
            stepS: interval === 'hour' ? HOUR_S : DAY_S,
            signal,
          }),
          card(null, { class: 'flush' }, usageTable(rows, by)),
          without(parts.missing_gateways ?? []),
        ];
      },
      { signal, lines: 8 },
    );
  put(
    panel,
    h(
      'div',
      { class: 'acts bar' },
      segmented(
        'By',
        [
          ['model', 'Model'],
          ['org', 'Organisation'],
          ['project', 'Project'],
          ['key', 'Key'],
          ['upstream', 'Upstream'],
          ['user', 'User'],
          ['tag', 'Tag'],
        ],
        by,
        (value) => {
          by = value;
          draw();
        },
      ),
      field('Over', {
        kind: 'select',
        value: days,
        options: DAYS,
        changed: (value) => {
          days = value;
          draw();
        },
      }).node,
    ),
    body,
  );
  draw();
}

/** Names the gateways whose traces are missing. The ledger still has the charges of their calls. */
function without(missing) {
  if (missing.length === 0) return null;
  const names = missing.map(({ gateway, why }) => `${gateway} (${why})`).join(', ');
  return h(
    'p',
    { class: 'small muted' },
    `Calls have no key, user, tag or upstream here if they ran on ${names}.`,
  );
}

function usageTable(rows, by) {
  const most = Math.max(...rows.map((row) => dollars(charge(row))), 1e-12);
  return table(
    `Spend by ${by}`,
    [
      {
        name: by[0].toUpperCase() + by.slice(1),
        wide: true,
        sort: (row) => row[by],
        cell: (row) => [
          h('b', {}, nameBy(row, by)),
          by === 'key' && row.key_name && h('div', { class: 'small muted mono' }, row.key),
        ],
      },
      {
        name: 'Charged',
        sort: (row) => dollars(charge(row)),
        cell: (row) => meter(dollars(charge(row)) / most, money(charge(row))),
      },
      { name: 'Calls', num: true, sort: (row) => row.calls, cell: (row) => count(row.calls) },
      { name: 'Refused', num: true, sort: (row) => row.refused, cell: (row) => count(row.refused) },
      { name: 'Failed', num: true, sort: (row) => row.failed, cell: (row) => count(row.failed) },
      {
        name: 'Tokens in',
        num: true,
        cell: (row) =>
          short(row.prompt_tokens ?? tokens(row, ['input', 'cached_input', 'cache_write', 'cache_write_1h'])),
      },
      {
        name: 'Tokens out',
        num: true,
        cell: (row) => short(row.completion_tokens ?? tokens(row, ['output', 'reasoning'])),
      },
    ],
    [...rows].sort((a, b) => dollars(charge(b)) - dollars(charge(a))),
  );
}

const tokens = (row, classes) =>
  classes.reduce(
    (sum, name) =>
      sum + Number(row[`${name}_tokens`] ?? row.tokens?.[name] ?? row.usage?.[`${name}_tokens`] ?? 0),
    0,
  );

function holds(panel, signal) {
  return load(
    panel,
    async () => {
      const rows = await fetchAll('holds', { signal });
      return rows.length
        ? card(
            null,
            { class: 'flush' },
            table(
              'Holds',
              [
                {
                  name: 'Request',
                  cell: (row) =>
                    h('a', { class: 'mono small', href: `#/requests/${encodeURIComponent(row.id)}` }, row.id),
                },
                { name: 'Organisation', cell: (row) => row.org },
                { name: 'Project', cell: (row) => row.project },
                {
                  name: 'Held',
                  num: true,
                  sort: (row) => dollars(row.amount),
                  cell: (row) => money(row.amount),
                },
                { name: 'Since', cell: (row) => when(row.since) },
                { name: 'Expires', cell: (row) => when(row.expires) },
              ],
              rows,
            ),
          )
        : empty(
            'Nothing is held.',
            'A running call holds the most that it can cost. The rest is released when it ends.',
          );
    },
    { signal },
  );
}

function prices(panel, signal) {
  return load(
    panel,
    async () => {
      const rows = await fetchAll('prices', { signal });
      const classes = [
        ['input', 'Input'],
        ['cached_input', 'Cached input'],
        ['cache_write', 'Cache write'],
        ['cache_write_1h', 'Cache write, 1 h'],
        ['output', 'Output'],
        ['reasoning', 'Reasoning'],
      ].filter(([name]) => rows.some((row) => row[name]));
      return rows.length
        ? card(
            'Dollars per million tokens',
            { class: 'flush' },
            table(
              'Prices',
              [
                { name: 'Model', wide: true, sort: (row) => row.model, cell: (row) => h('b', {}, row.model) },
                {
                  name: 'From',
                  sort: (row) => row.from,
                  cell: (row) => (row.from ? when(row.from, { date: 'always' }) : 'the beginning'),
                },
                ...classes.map(([name, label]) => ({
                  name: label,
                  num: true,
                  sort: (row) => dollars(row[name]),
                  cell: (row) => money(row[name]),
                })),
              ],
              rows,
            ),
          )
        : empty(
            'No model has a price.',
            'Prices are set in the configuration, with the day from which they apply.',
          );
    },
    { signal },
  );
}

function margin(panel, signal) {
  return load(
    panel,
    async () => {
      const margin = await get('margin', { signal });
      const rows = rowsOf(margin.rows ? { data: margin.rows } : margin);
      if (rows.length === 0)
        return empty(
          'There is no margin yet.',
          'The margin is what callers are charged, minus what upstreams charge for the same calls.',
        );
      const by = (margin.by ?? ['org', 'model']).filter((name) => rows[0][name] !== undefined);
      const sum = (sums, name) => sums?.[name] ?? sums?.[`${name}_nano_dollars`];
      return [
        card(
          null,
          { class: 'flush' },
          table(
            'Margin',
            [
              ...by.map((name) => ({
                name: name[0].toUpperCase() + name.slice(1),
                wide: true,
                sort: (row) => row[name],
                cell: (row) => h('b', {}, row[name] ?? '–'),
              })),
              { name: 'Calls', num: true, sort: (row) => row.calls, cell: (row) => count(row.calls) },
              ...[
                ['charged', 'Charged'],
                ['paid', 'Paid upstream'],
                ['margin', 'Margin'],
              ].map(([name, label]) => ({
                name: label,
                num: true,
                sort: (row) => dollars(sum(row, name)),
                cell: (row) => money(sum(row, name)),
              })),
              {
                name: 'Cost unknown',
                num: true,
                cell: (row) =>
                  row.cost_unknown?.calls
                    ? [
                        plural(row.cost_unknown.calls, 'call'),
                        h(
                          'div',
                          { class: 'small muted' },
                          `${money(sum(row.cost_unknown, 'charged'))} charged`,
                        ),
                      ]
                    : '–',
              },
            ],
            rows,
          ),
        ),
        h(
          'p',
          { class: 'muted small' },
          'The cost of calls to local engines is unknown. They count under “cost unknown”.',
        ),
      ];
    },
    { signal },
  );
}

function ledger(panel, signal) {
  const verdictBox = h('div');
  const verify = async () => {
    put(verdictBox, h('p', { class: 'muted', role: 'status' }, 'The journal is being replayed…'));
    try {
      const verdict = await post('ledger/verify');
      put(
        verdictBox,
        h(
          'div',
          { class: verdict.ok ? 'notice' : 'notice warn' },
          h(
            'b',
            {},
            verdict.ok ? 'Every invariant holds. ' : `${plural(verdict.finding_count, 'finding')}. `,
          ),
          `${plural(verdict.rows, 'row')} replayed, ${plural(verdict.transactions ?? 0, 'transaction')}.`,
          (verdict.findings ?? []).map((finding) =>
            h('p', { class: 'small' }, `Row ${finding.row}: ${finding.what}`),
          ),
        ),
      );
    } catch (error) {
      put(verdictBox, h('p', { class: 'fault' }, error.message));
    }
  };
  return load(
    panel,
    async () => {
      const totals = await get('ledger/totals', { signal });
      return [
        h(
          'div',
          { class: 'tiles' },
          [
            ['Available', totals.available],
            ['Held', totals.held],
            ['Charged in total', totals.revenue],
            ['Written off', totals.loss],
          ].map(([name, value]) =>
            h(
              'div',
              { class: 'tile' },
              h('span', { class: 'tile-name' }, name),
              h('span', { class: 'tile-value' }, money(value)),
            ),
          ),
          h(
            'div',
            { class: 'tile' },
            h('span', { class: 'tile-name' }, 'Holds'),
            h('span', { class: 'tile-value' }, count(totals.open_holds)),
            h('span', { class: 'tile-note muted small' }, `${count(totals.settled)} settled`),
          ),
        ),
        may('POST /ledger/verify') &&
          h(
            'div',
            { class: 'acts bar' },
            button('Verify the ledger', verify, { sign: 'check' }),
            h('span', { class: 'muted small' }, 'Replays the journal and checks every invariant.'),
          ),
        verdictBox,
      ];
    },
    { signal },
  );
}
