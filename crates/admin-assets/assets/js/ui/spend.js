// Draws spend over time from rows of usage: a line for each of the largest groups.

import { dollars, short } from '../format.js';
import { chart } from './chart.js';
import { card } from './parts.js';

export const HOUR_S = 3600;
export const DAY_S = 24 * HOUR_S;
const MOST_LINES = 5;
const COLORS = ['--accent', '--engine', '--back', '--warn', '--bad'];

/** The charge of a row of usage. */
export const charge = (row) => row.charged ?? row.charged_dollars;

/** The name that is shown for a row of usage. Keys have a name of their own. */
export const nameBy = (row, by) => (by === 'key' && row.key_name) || (row[by] ?? '–');

const secondsOf = (at) => Math.floor(new Date(at).getTime() / 1000);

/** The start of each time step from a time until now, in Unix seconds. Includes steps without a call. */
function stepsOf(from, stepS) {
  const first = Math.floor(secondsOf(from) / stepS) * stepS;
  return Array.from(
    { length: Math.floor((Date.now() / 1000 - first) / stepS) + 1 },
    (_, at) => first + at * stepS,
  );
}

/**
 * @param {object[]} rows usage by time step
 * @param {string|null} by the field that groups the rows, or `null` for a single line
 * @param {{from: string, stepS: number, signal: AbortSignal, title?: string}} how
 */
export function spendChart(rows, by, { from, stepS, signal, title = 'Spend' }) {
  const lineOf = (row) => (by ? nameBy(row, by) : 'spend');
  const sums = new Map();
  for (const row of rows) sums.set(lineOf(row), (sums.get(lineOf(row)) ?? 0) + dollars(charge(row)));
  const names = [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a)).slice(0, MOST_LINES);
  const times = stepsOf(from, stepS);
  const show = (value) => `$${short(value)}`;
  const lines = chart({
    label: by ? `Spend by ${by} over time` : `${title}, over time`,
    signal,
    height: by ? 190 : 160,
    axis: show,
    lines: (names.length ? names : ['spend']).map((name, at) => ({ name, color: COLORS[at], show })),
  });
  lines.set(
    times,
    ...(names.length ? names : ['']).map((name) =>
      times.map((time) =>
        rows
          .filter((row) => lineOf(row) === name && secondsOf(row.start) === time)
          .reduce((sum, row) => sum + dollars(charge(row)), 0),
      ),
    ),
  );
  return card(
    title,
    {
      note: [
        stepS === HOUR_S ? 'hour by hour' : 'day by day (UTC)',
        sums.size > MOST_LINES && `the ${MOST_LINES} largest`,
      ]
        .filter(Boolean)
        .join(', '),
    },
    lines.node,
  );
}
