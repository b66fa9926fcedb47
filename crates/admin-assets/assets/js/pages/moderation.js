// Lists the recent calls that content rules matched, and what each project records of its calls.

import { fetchAll, get, rowsOf } from '../api.js';
import { modelName } from '../call-names.js';
import { h, put } from '../dom.js';
import { count } from '../format.js';
import { editRecords, recordsOf } from '../keys/records.js';
import { DECIDED, verdictList } from '../moderation-verdicts.js';
import { go, rewrite } from '../router.js';
import { may } from '../session.js';
import { button, card, empty, head, load, outcome, toast, when } from '../ui/parts.js';
import { field } from '../ui/dialog.js';
import { table } from '../ui/table.js';

const SPANS = [
  ['1h', 'Last hour'],
  ['24h', 'Last day'],
  ['7d', 'Last 7 days'],
  ['30d', 'Last 30 days'],
];
const SPAN_MS = { '1h': 36e5, '24h': 864e5, '7d': 6048e5, '30d': 2592e6 };
const FILTERS = ['moderation', 'content_rule', 'project'];
const PAGE_ROWS = 100;
/** The most pages of the server for one page of rows. The server's pages may be short. */
const MOST_FETCHES = 20;

/** Shows the page. */
export async function show(root, { query, signal }) {
  const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? '']));
  filters.moderation ||= 'any';
  let span = SPAN_MS[query.get('last')] ? query.get('last') : '7d';
  const calls = h('div');
  const policy = h('div');
  let timer = null;
  let search = new AbortController();

  const draw = () => {
    clearTimeout(timer);
    // The answer to an earlier search must not replace that of a later one.
    search.abort();
    search = new AbortController();
    const of = AbortSignal.any([signal, search.signal]);
    const given = Object.entries(filters).filter(([, value]) => value !== '');
    rewrite(`moderation?${new URLSearchParams([...given, ['last', span]])}`);
    return load(calls, () => callList({ ...filters, from: startOf(span) }, of), { signal: of, lines: 7 });
  };
  const text = (name, label, placeholder) =>
    field(label, {
      value: filters[name],
      placeholder,
      changed: (value) => {
        filters[name] = value;
        clearTimeout(timer);
        timer = setTimeout(draw, 250);
      },
    }).node;
  put(
    root,
    head(
      'Moderation',
      'Calls that content rules matched, and what projects record. Open a call to see what each rule decided.',
    ),
    h(
      'form',
      {
        class: 'card filters',
        role: 'search',
        'aria-label': 'Calls with verdicts',
        on: {
          submit: (event) => {
            event.preventDefault();
            draw();
          },
        },
      },
      h(
        'div',
        { class: 'fields' },
        field('Decided', {
          kind: 'select',
          value: filters.moderation,
          options: DECIDED,
          changed: (value) => {
            filters.moderation = value;
            draw();
          },
        }).node,
        text('content_rule', 'Rule', 'personal-data'),
        text('project', 'Project'),
        field('When', {
          kind: 'select',
          value: span,
          options: SPANS,
          changed: (value) => {
            span = value;
            draw();
          },
        }).node,
      ),
    ),
    calls,
    policy,
  );
  await Promise.all([draw(), may('GET /projects') && showPolicy(policy, signal)]);
}

const startOf = (span) => new Date(Date.now() - SPAN_MS[span]).toISOString();

/** The calls that meet the filters, newest first, with a button for older ones. */
async function callList(query, signal) {
  const found = await fetchCalls(query, null, signal);
  if (found.rows.length === 0)
    return empty('No call matches.', 'Choose a longer time, another rule or another project.');
  const rows = found.rows;
  let { cursor, missing } = found;
  const body = h('div');
  const more = button('Older calls', older, { kind: 'small' });
  async function older() {
    more.disabled = true;
    try {
      const next = await fetchCalls(query, cursor, signal);
      rows.push(...next.rows);
      ({ cursor, missing } = next);
      fill();
    } catch (error) {
      if (!signal.aborted) toast(error.message, 'bad');
    } finally {
      more.disabled = false;
    }
  }
  function fill() {
    const without = missing.map(({ gateway, why }) => `${gateway} (${why})`).join(', ');
    put(
      body,
      card(
        'Calls',
        {
          class: 'flush',
          note: `${count(rows.length)}${cursor ? ' or more' : ''}${without && `, without those of ${without}`}`,
        },
        callTable(rows),
      ),
      cursor && h('div', { class: 'acts' }, more),
    );
  }
  fill();
  return body;
}

async function fetchCalls(query, cursor, signal) {
  const found = { rows: [], cursor, missing: [] };
  let fetches = 0;
  do {
    const page = await get('requests', {
      query: { ...query, limit: PAGE_ROWS, cursor: found.cursor },
      signal,
    });
    found.rows.push(...rowsOf(page));
    found.cursor = page.next ?? null;
    found.missing = page.missing_gateways ?? [];
  } while (found.cursor && found.rows.length < PAGE_ROWS && ++fetches < MOST_FETCHES);
  return found;
}

function callTable(rows) {
  return table(
    'Calls with verdicts, newest first',
    [
      { name: 'Started', cell: (row) => link(row, when(row.started)) },
      { name: 'Rules', wide: true, cell: (row) => verdictList(row.verdicts) },
      { name: 'Outcome', cell: (row) => outcome(row.outcome) },
      { name: 'Project', cell: (row) => row.project ?? '–' },
      { name: 'Model', cell: (row) => modelName(row.model) },
    ],
    rows,
    { open: (row) => go(`requests/${encodeURIComponent(row.id)}`) },
  );
}

const link = (row, text) => h('a', { href: `#/requests/${encodeURIComponent(row.id)}` }, text);

/** Shows what each project records, with a button for operators who may change it. */
async function showPolicy(root, signal) {
  const draw = () =>
    load(root, async () => policyTable(await fetchAll('projects', { signal }), draw), { signal, lines: 3 });
  await draw();
}

function policyTable(projects, draw) {
  if (projects.length === 0) return null;
  return card(
    'Content policy',
    { class: 'flush', note: 'What projects record of requests and answers, and for how long' },
    table(
      'Content policy of projects',
      [
        { name: 'Project', sort: (row) => row.id, cell: (row) => h('b', {}, row.id) },
        { name: 'Organisation', sort: (row) => row.org, cell: (row) => row.org },
        { name: 'Records', cell: (row) => recordsOf(row.records) },
        {
          name: '',
          num: true,
          cell: (row) =>
            may('PATCH /projects/{id}') &&
            button('Change', () => editRecords(row, draw), {
              kind: 'small',
              title: `Change the records of ${row.id}`,
            }),
        },
      ],
      projects,
    ),
  );
}
