// Shows the gateways that share the ledger: their state, version, last sign of life and share of the calls.

import { get } from '../api.js';
import { h, put } from '../dom.js';
import { count, percent } from '../format.js';
import { badge, card, empty, head, load, meter, when } from '../ui/parts.js';
import { table } from '../ui/table.js';

/** Interval between two readings, in milliseconds. */
const READ_EVERY_MS = 5000;
const STATES = { live: 'good', left: '', dead: 'bad' };

/** Shows the page. */
export async function show(root, { signal }) {
  const body = h('div');
  put(
    root,
    head('Gateways', 'Servers that share one ledger, and how the calls of the last minute divide.'),
    body,
  );
  const draw = () => load(body, () => showGateways(signal), { signal, lines: 4 });
  await draw();
  const again = async () => {
    // A page in the background asks for nothing.
    if (document.hidden) return;
    try {
      const shown = await showGateways(signal);
      if (!signal.aborted) put(body, shown);
    } catch {
      // The next reading may succeed. What is shown has its times.
    }
  };
  const timer = setInterval(again, READ_EVERY_MS);
  signal.addEventListener('abort', () => clearInterval(timer));
}

async function showGateways(signal) {
  const { data: rows } = await get('gateways', { signal });
  if (rows.length === 0)
    return empty(
      'This server is alone.',
      'Gateways that share a PostgreSQL database (storage.url) are listed here with their state.',
    );
  return card(
    null,
    { class: 'flush' },
    table(
      'Gateways',
      [
        {
          name: 'Name',
          wide: true,
          sort: (row) => row.name,
          cell: (row) => [
            h('b', {}, row.name || 'without a name'),
            row.is_this && h('div', { class: 'small muted' }, 'answers this page'),
          ],
        },
        {
          name: 'State',
          sort: (row) => row.state,
          cell: (row) => [
            badge(row.state, STATES[row.state] ?? 'warn'),
            row.silent && h('div', { class: 'small muted' }, row.silent),
          ],
        },
        { name: 'Version', sort: (row) => row.version, cell: (row) => row.version },
        { name: 'Joined', sort: (row) => row.joined, cell: (row) => when(row.joined, { seconds: false }) },
        { name: 'Last seen', sort: (row) => row.seen, cell: (row) => when(row.seen, { ago: true }) },
        {
          name: 'In flight',
          num: true,
          sort: (row) => row.in_flight ?? -1,
          cell: (row) => number(row.in_flight),
        },
        {
          name: 'Calls/min',
          num: true,
          sort: (row) => row.calls_per_minute ?? -1,
          cell: (row) => number(row.calls_per_minute),
        },
        {
          name: 'Share',
          sort: (row) => row.share ?? -1,
          cell: (row) => (row.share === null ? number(null) : meter(row.share, percent(row.share))),
        },
      ],
      rows,
      { rowClass: (row) => row.state !== 'live' && 'gone' },
    ),
  );
}

const number = (value) => (value === null ? h('span', { class: 'muted' }, '–') : count(value));
