// The operators of the server, with their sign-in links.

import { fetchAll, post, remove, segment } from '../api.js';
import { h } from '../dom.js';
import { may } from '../session.js';
import { badge, button, card, copyButton, toast, when } from '../ui/parts.js';
import { confirm, dialog, field, formDialog, showSecret } from '../ui/dialog.js';
import { table } from '../ui/table.js';

/** The list of operators. Calls `draw` after a change. */
export async function showOperators(draw, signal) {
  const rows = await fetchAll('operators', { signal });
  return card(
    null,
    { class: 'flush' },
    table(
      'Operators',
      [
        {
          name: 'Name',
          sort: (row) => row.name,
          cell: (row) => [h('b', {}, row.name), h('div', { class: 'mono small muted' }, row.id)],
        },
        {
          name: 'Role',
          sort: (row) => row.role,
          cell: (row) => [
            badge(row.role, 'info'),
            row.org && h('div', { class: 'small muted' }, `in ${row.org}`),
            row.user && h('div', { class: 'mono small muted' }, row.user),
          ],
        },
        { name: 'Created', cell: (row) => when(row.created) },
        { name: 'State', cell: (row) => (row.revoked ? badge('removed', 'bad') : badge('active', 'good')) },
        {
          name: '',
          num: true,
          cell: (row) =>
            !row.revoked &&
            h(
              'div',
              { class: 'acts end' },
              may('POST /operators/{id}/link') && button('Link', () => operatorLink(row), { kind: 'small' }),
              may('DELETE /operators/{id}') &&
                button('Remove', () => removeOperator(row, draw), { kind: 'small' }),
            ),
        },
      ],
      rows,
      { rowClass: (row) => row.revoked && 'gone' },
    ),
  );
}

/** Creates an operator and shows the key. */
export async function newOperator(draw) {
  const created = await formDialog('New operator', {
    submit: 'Create operator',
    fields: {
      name: field('Name', { required: true }),
      role: field('Role', {
        kind: 'select',
        value: 'viewer',
        options: [
          ['viewer', 'Viewer: reads everything'],
          ['developer', 'Developer: keys, playground'],
          ['billing', 'Billing: money'],
          ['admin', 'Admin: everything but operators'],
          ['owner', 'Owner: everything'],
        ],
      }),
      org: field('Organisation', {
        placeholder: 'all',
        hint: 'The only organisation in which the operator has the role.',
      }),
    },
    act: ({ org, ...values }) => post('operators', org ? { ...values, org } : values),
  });
  if (created?.key) await showSecret('The new operator’s key', created.key);
  draw();
}

async function operatorLink(row) {
  try {
    const { link, expires } = await post(`operators/${segment(row.id)}/link`);
    await dialog(`Sign-in link for ${row.name}`, () =>
      h(
        'div',
        { class: 'dialog-body' },
        h('div', { class: 'secret' }, h('span', {}, link), copyButton(link)),
        h('p', { class: 'muted' }, 'Works once, until ', when(expires)),
      ),
    );
  } catch (error) {
    toast(error.message, 'bad');
  }
}

async function removeOperator(row, draw) {
  if (
    !(await confirm(
      `Remove ${row.name}?`,
      'Sessions of this operator end, and the key stops working.',
      'Remove',
    ))
  )
    return;
  try {
    await remove(`operators/${segment(row.id)}`);
    toast('Removed.');
  } catch (error) {
    toast(error.message, 'bad');
  }
  draw();
}
