// Shows the endpoints that receive alerts, their last results and the newest deliveries. Tests and resumes
// endpoints.

import { get, post, segment } from '../api.js';
import { h } from '../dom.js';
import { count } from '../format.js';
import { may } from '../session.js';
import { badge, button, card, empty, toast, when } from '../ui/parts.js';
import { table } from '../ui/table.js';

const STATES = { delivered: 'good', pending: 'warn', failed: 'bad' };

/** Makes the content of the tab. `draw` shows it again. */
export async function showWebhooks(draw, signal) {
  const [rows, deliveries] = await Promise.all([
    get('webhooks', { signal }),
    get('webhook-deliveries', { signal }),
  ]);
  if (rows.length === 0)
    return empty(
      'No endpoint receives alerts.',
      'A [[webhooks]] table of the settings names an endpoint that gets each alert, signed.',
    );
  return h('div', {}, endpoints(rows, draw), deliveries.length > 0 && newest(deliveries));
}

function endpoints(rows, draw) {
  return card(
    'Endpoints',
    { class: 'flush' },
    table(
      'Endpoints',
      [
        {
          name: 'Name',
          wide: true,
          sort: (row) => row.name,
          cell: (row) => [h('b', {}, row.name), h('div', { class: 'small muted' }, row.host)],
        },
        {
          name: 'State',
          cell: (row) =>
            row.gone
              ? [badge('gone', 'bad'), h('div', { class: 'small muted' }, 'since ', when(row.gone))]
              : badge('active', 'good'),
        },
        { name: 'Waiting', num: true, cell: (row) => count(row.pending) },
        { name: 'Delivered', num: true, cell: (row) => count(row.delivered) },
        { name: 'Given up', num: true, cell: (row) => count(row.failed) },
        {
          name: 'Last try',
          cell: (row) =>
            row.last_at
              ? [when(row.last_at), h('div', { class: 'small muted' }, row.last_result)]
              : h('span', { class: 'muted' }, 'none yet'),
        },
        {
          name: '',
          cell: (row) => [
            may('POST /webhooks/{id}/test') && button('Test', () => test(row, draw)),
            row.gone && may('POST /webhooks/{id}/resume') && button('Resume', () => resume(row, draw)),
          ],
        },
      ],
      rows,
    ),
  );
}

function newest(rows) {
  return card(
    'Newest deliveries',
    { class: 'flush' },
    table(
      'Deliveries',
      [
        { name: 'Time', sort: (row) => row.at, cell: (row) => when(row.at) },
        {
          name: 'Event',
          wide: true,
          cell: (row) => [row.kind, h('div', { class: 'small muted' }, row.event)],
        },
        { name: 'Endpoint', sort: (row) => row.webhook, cell: (row) => row.webhook },
        { name: 'State', sort: (row) => row.state, cell: (row) => badge(row.state, STATES[row.state] ?? '') },
        { name: 'Tries', num: true, cell: (row) => count(row.tries) },
        { name: 'Result', cell: (row) => row.last_result ?? '–' },
        { name: 'Next try', cell: (row) => (row.next ? when(row.next) : '–') },
      ],
      rows,
    ),
  );
}

async function test(row, draw) {
  try {
    const { accepted, result } = await post(`webhooks/${segment(row.name)}/test`, {});
    toast(`${row.name}: ${result}`, accepted ? '' : 'bad');
  } catch (error) {
    toast(`${error.message} ${error.remedy ?? ''}`, 'bad');
  }
  draw();
}

async function resume(row, draw) {
  try {
    await post(`webhooks/${segment(row.name)}/resume`, {});
    toast(`${row.name} receives events again.`);
  } catch (error) {
    toast(`${error.message} ${error.remedy ?? ''}`, 'bad');
  }
  draw();
}
