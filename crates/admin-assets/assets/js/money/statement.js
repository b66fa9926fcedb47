// The statement of a project for a month.

import { fetchAll, get, rowsOf } from '../api.js';
import { h, put } from '../dom.js';
import { count, dollars, money, plural } from '../format.js';
import { initialChoice } from '../last-used.js';
import { card, empty, facts, jsonBlock, load } from '../ui/parts.js';
import { field } from '../ui/dialog.js';
import { table } from '../ui/table.js';

/** The names of token classes in a statement. */
const CLASSES = {
  input: 'Input',
  cached_input: 'Input from the cache',
  cache_write: 'Written to the cache',
  cache_write_1h: 'Written to the cache, 1 h',
  output: 'Output',
  reasoning: 'Reasoning',
  web_search: 'Web searches',
};

/** Formats a month: `2026-11` is November 2026. */
function monthName(month) {
  const at = new Date(`${month}-01T00:00:00Z`);
  return Number.isNaN(at.getTime())
    ? month
    : at.toLocaleDateString('en', { month: 'long', year: 'numeric', timeZone: 'UTC' });
}

/** Shows the statement of a project and month that the reader chooses. */
export function statement(panel, signal) {
  const month = new Date().toISOString().slice(0, 7);
  const place = h('div', { class: 'page-body' });
  const query = { project: '', month };
  const draw = () =>
    query.project &&
    load(
      place,
      async () => {
        const statement = await get('statement', { query, signal });
        const lines = statement.lines ?? rowsOf(statement);
        const calls = statement.calls ?? {};
        return [
          h(
            'p',
            { class: 'sentence' },
            `${monthName(statement.month ?? query.month)}: `,
            h('b', {}, money(statement.total)),
            ` charged to project ${statement.project ?? query.project}`,
            statement.org && ` of organisation ${statement.org}`,
            '. ',
            statement.closed
              ? 'The month is over: these figures are final.'
              : 'The month is not over yet: later calls will be added.',
          ),
          facts(
            ['Calls', calls.settled !== undefined && plural(calls.settled, 'call')],
            ['Completed', calls.settled !== undefined && count(calls.completed)],
            ['Cancelled by callers', calls.settled !== undefined && count(calls.cancelled)],
            ['Failed', calls.settled !== undefined && count(calls.failed)],
            ['Not charged, at list price', statement.not_charged && money(statement.not_charged)],
          ),
          lines.length > 0
            ? card(
                'Charges by model',
                { class: 'flush' },
                table(
                  'Statement',
                  [
                    {
                      name: 'Model',
                      wide: true,
                      sort: (line) => line.model,
                      cell: (line) => h('b', {}, line.model ?? '–'),
                    },
                    {
                      name: 'For',
                      sort: (line) => line.class,
                      cell: (line) => CLASSES[line.class] ?? String(line.class ?? '–').replaceAll('_', ' '),
                    },
                    {
                      name: 'Tokens',
                      num: true,
                      sort: (line) => line.tokens,
                      cell: (line) => count(line.tokens),
                    },
                    {
                      name: 'Per million',
                      num: true,
                      cell: (line) => money(line.price_per_million ?? line.price),
                    },
                    {
                      name: 'Amount',
                      num: true,
                      sort: (line) => dollars(line.amount),
                      cell: (line) => h('b', {}, money(line.amount)),
                    },
                  ],
                  lines,
                ),
              )
            : empty(
                'Nothing was charged in this month.',
                'Each model and token class has a line here after a call is settled.',
              ),
          statement.days?.length > 0 &&
            card(
              'Day by day (UTC)',
              { class: 'flush' },
              table(
                'Days',
                [
                  { name: 'Day', sort: (row) => row.day, cell: (row) => row.day },
                  {
                    name: 'Charged',
                    num: true,
                    sort: (row) => dollars(row.charged),
                    cell: (row) => money(row.charged),
                  },
                ],
                statement.days,
              ),
            ),
          h('details', { class: 'more' }, h('summary', {}, 'As JSON'), jsonBlock(statement)),
        ];
      },
      { signal, lines: 6 },
    );
  const bar = h('div', { class: 'acts bar' });
  put(panel, bar, place);
  load(
    bar,
    async () => {
      const projects = await fetchAll('projects', { signal });
      query.project = initialChoice(
        'project',
        projects.map((project) => project.id),
      );
      draw();
      return [
        field('Project', {
          kind: 'select',
          value: query.project,
          options: projects.map((project) => [project.id, project.id]),
          changed: (value) => {
            query.project = value;
            draw();
          },
        }).node,
        field('Month (UTC)', {
          value: month,
          placeholder: '2026-11',
          changed: (value) => {
            if (/^\d{4}-\d\d$/.test(value)) {
              query.month = value;
              draw();
            }
          },
        }).node,
      ];
    },
    { signal, lines: 1 },
  );
}
