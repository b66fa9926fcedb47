// The balances of organisations, with their grants and the budgets of projects.

import { fetchAll, post, replace, segment } from '../api.js';
import { h } from '../dom.js';
import { dollars, money } from '../format.js';
import { initialChoice } from '../last-used.js';
import { lots } from './lots.js';
import { may } from '../session.js';
import { button, card, empty, load, meter, toast, when } from '../ui/parts.js';
import { dialog, field, formDialog } from '../ui/dialog.js';
import { table } from '../ui/table.js';

/** Shows the balances. Calls `draw` after a change. */
export function balances(panel, signal, draw) {
  return load(
    panel,
    async () => {
      const rows = await fetchAll('credit', { signal });
      if (rows.length === 0)
        return empty(
          'There is no account yet.',
          'Each project has one. Create a project, then grant its organisation credit.',
        );
      return card(
        null,
        { class: 'flush' },
        table(
          'Balances',
          [
            { name: 'Organisation', wide: true, sort: (row) => row.org, cell: (row) => h('b', {}, row.org) },
            { name: 'Project', sort: (row) => row.project, cell: (row) => row.project },
            {
              name: 'Available',
              num: true,
              sort: (row) => dollars(row.available),
              cell: (row) => h('b', {}, money(row.available)),
            },
            { name: 'Held', num: true, sort: (row) => dollars(row.held), cell: (row) => money(row.held) },
            {
              name: 'Balance',
              num: true,
              sort: (row) => dollars(row.balance),
              cell: (row) => money(row.balance),
            },
            {
              name: 'Owed',
              num: true,
              sort: (row) => dollars(row.owed),
              cell: (row) => money(row.owed),
            },
            { name: 'Budget', cell: (row) => budgetCell(row.budget) },
            {
              name: '',
              num: true,
              cell: (row) =>
                h(
                  'div',
                  { class: 'acts end' },
                  may('POST /projects/{id}/credit') &&
                    button('Grant', () => grant(row, draw), { kind: 'small' }),
                  may('PUT /projects/{id}/budget') &&
                    button('Budget', () => setBudget(row, draw), { kind: 'small' }),
                  may('GET /projects/{id}/grants') &&
                    button('Grants', () => grants(row, signal), { kind: 'small quiet' }),
                  may('GET /lots') && button('Lots', () => lots(row, signal), { kind: 'small quiet' }),
                ),
            },
          ],
          rows,
        ),
      );
    },
    { signal, lines: 6 },
  );
}

function budgetCell(budget) {
  if (!budget) return h('span', { class: 'muted' }, 'none');
  const share = dollars(budget.spent) / (dollars(budget.limit) || 1);
  return [
    meter(
      share,
      `${money(budget.spent)} of ${money(budget.limit)}`,
      share > 0.9 ? 'bad' : share > 0.7 ? 'warn' : '',
    ),
    h(
      'div',
      { class: 'small muted' },
      budget.period === 'month'
        ? ['monthly', budget.resets && h('div', {}, 'resets ', when(budget.resets, { seconds: false }))]
        : 'in total',
    ),
  ];
}

/** Asks for a grant, to the organisation of a row or of a chosen project. */
export async function grant(row, draw) {
  const projects = row
    ? [row.project]
    : (await fetchAll('projects').catch(() => [])).map((project) => project.id);
  const done = await formDialog('Grant credit', {
    submit: 'Grant',
    intro: row
      ? `To the balance of ${row.org}, which all of its projects spend.`
      : 'To the balance of the project’s organisation.',
    fields: {
      project: field('Project', {
        kind: 'select',
        value: initialChoice('project', projects),
        options: projects.map((id) => [id, id]),
      }),
      amount: field('Dollars', { required: true, placeholder: '25.00' }),
      kind: field('Source', {
        kind: 'select',
        options: [
          ['paid', 'Paid in by the customer'],
          ['promotional', 'Promotional'],
        ],
      }),
      reference: field('Reference', {
        placeholder: 'invoice 17',
        hint: 'A second grant with the same reference has no effect.',
      }),
      correct: field('Correction', {
        kind: 'check',
        hint: 'Takes the amount back. Give the reason as reference.',
      }),
    },
    act: ({ project, ...values }) =>
      post(`projects/${segment(project)}/credit`, {
        amount: values.amount.replace('$', ''),
        kind: values.kind,
        ...(values.reference && { reference: values.reference }),
        ...(values.correct && { correct: true }),
      }),
  });
  if (done) {
    toast(
      done.before
        ? 'A grant with this reference exists already. Nothing was added.'
        : `The balance is ${money(done.balance)} now.`,
    );
    draw();
  }
}

async function setBudget(row, draw) {
  const done = await formDialog(`Budget of ${row.project}`, {
    submit: 'Set budget',
    fields: {
      limit: field('At most', {
        value: row.budget ? money(row.budget.limit).replace(/[$,]/g, '') : '',
        placeholder: 'no budget',
        hint: 'Dollars. Empty removes the budget, and 0 stops the project.',
      }),
      period: field('Over', {
        kind: 'select',
        value: row.budget?.period ?? 'month',
        options: [
          ['month', 'a calendar month (UTC)'],
          ['total', 'all time'],
        ],
      }),
    },
    act: ({ limit, period }) =>
      replace(`projects/${segment(row.project)}/budget`, {
        limit: limit ? limit.replace('$', '') : null,
        period,
      }),
  });
  if (done) {
    toast('The budget is set.');
    draw();
  }
}

async function grants(row, signal) {
  return dialog(
    `Grants to ${row.org}`,
    () => {
      const place = h('div', { class: 'dialog-body' });
      load(
        place,
        async () => {
          const rows = await fetchAll(`projects/${segment(row.project)}/grants`, { signal });
          return rows.length
            ? table(
                'Grants',
                [
                  { name: 'When', cell: (granted) => when(granted.at) },
                  { name: 'Amount', num: true, cell: (granted) => money(granted.amount) },
                  { name: 'Kind', cell: (granted) => granted.kind },
                  { name: 'Reference', wide: true, cell: (granted) => granted.reference },
                  { name: 'By', cell: (granted) => granted.actor },
                ],
                rows,
              )
            : empty('Nothing was granted yet.');
        },
        { signal },
      );
      return place;
    },
    { wide: true },
  );
}
