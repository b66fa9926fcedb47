// Draws lines over time with the vendored uPlot, which is fetched for the first chart. Colours come from the
// style sheet, and are read again when the reader changes them.

import { add, h, put } from '../dom.js';
import { time } from '../format.js';
import { choice } from '../settings.js';

const MAX_NAME_CHARS = 40;
let library = null;

/** Fetches the library once. It sets styles by CSSOM only, as the page's content security policy requires. */
function uplot() {
  library ??= new Promise((resolve, reject) => {
    document.head.append(h('link', { rel: 'stylesheet', href: '/vendor/uplot.css' }));
    document.head.append(
      h('script', {
        src: '/vendor/uplot.js',
        on: {
          load: () => resolve(window.uPlot),
          error: () => reject(new Error('The charts could not be loaded.')),
        },
      }),
    );
  });
  return library;
}

/** The label of a time below the axis: a date if the steps are days, else a time of day. */
function clock(at, splits) {
  const day = splits.length > 1 && splits[1] - splits[0] >= 43200;
  return day
    ? time(at * 1e3, { date: 'always' }).slice(5, 10)
    : time(at * 1e3, { seconds: splits.length > 1 && splits[1] - splits[0] < 60, date: 'never' });
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The current value of a colour variable, which may differ between light and dark. */
function resolved(name) {
  const probe = h('span', { class: 'off-screen', style: { color: `var(${name})` } });
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value || color(name);
}

/** The names and colours of the lines, and the time and values under the pointer. */
function legendOf(lines, data) {
  const at = h('li', {}, '–');
  const values = lines.map(() => h('b', { class: 'num' }));
  const node = h(
    'ul',
    { class: 'legend small muted' },
    lines.map((line, index) =>
      h(
        'li',
        {},
        h('i', { style: { background: `var(${line.color})` }, 'aria-hidden': 'true' }),
        line.name.slice(0, MAX_NAME_CHARS),
        values[index],
      ),
    ),
    at,
  );
  return {
    node,
    set(index) {
      const [xs, ...ys] = data();
      const known = index !== null && index !== undefined && xs[index] !== undefined;
      put(at, known ? time(xs[index] * 1e3) : '–');
      values.forEach((value, line) =>
        put(
          value,
          known && ys[line][index] !== null && ys[line][index] !== undefined
            ? ` ${lines[line].show(ys[line][index])}`
            : '',
        ),
      );
    },
  };
}

/**
 * Creates a chart of lines.
 * @param {object} options `lines` have a `name`, a `color` and `show(value)`, which formats a value. `axis(value)`
 * formats the labels of the axis. `windowS` fixes the length of the time axis, in seconds.
 * @returns {{node: HTMLElement, set: (xs: number[], ...ys: number[][]) => void}} `xs` in seconds since 1970
 */
export function chart({ label, lines, height = 160, axis, bars = false, windowS, signal }) {
  const plane = h('div', { role: 'img', 'aria-label': label, style: { 'min-height': `${height}px` } });
  const node = h('div', { class: 'chart' }, plane);
  let plot = null;
  let data = [[], ...lines.map(() => [])];
  let making = false;

  async function make() {
    if (making) return;
    making = true;
    const uPlot = await uplot();
    making = false;
    if (!node.isConnected) return;
    plot?.destroy();
    const ink = resolved('--muted');
    const grid = resolved('--line');
    const ticks = {
      stroke: ink,
      grid: { stroke: grid, width: 1 },
      ticks: { show: false },
      font: '11px system-ui, sans-serif',
    };
    plot = new uPlot(
      {
        width: Math.max(120, node.clientWidth),
        height,
        tzDate: (ts) =>
          choice('clock') === 'utc' ? uPlot.tzDate(new Date(ts * 1e3), 'Etc/UTC') : new Date(ts * 1e3),
        cursor: { y: false, points: { size: 6 } },
        legend: { show: false },
        hooks: { setCursor: [(at) => legend.set(at.cursor.idx)] },
        scales: {
          ...(windowS && { x: { range: (_, low, high) => [(high ?? 0) - windowS, high ?? windowS] } }),
          y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] },
        },
        axes: [
          { ...ticks, size: 26, values: (_, splits) => splits.map((at) => clock(at, splits)) },
          { ...ticks, size: 58, values: (_, values) => values.map((v) => (axis ?? lines[0].show)(v)) },
        ],
        series: [
          {},
          ...lines.map((line) => ({
            stroke: resolved(line.color),
            width: 1.75,
            fill:
              lines.length === 1 ? resolved(line.color).replace(/rgb\((.*)\)/, 'rgba($1, 0.10)') : undefined,
            points: { show: false },
            spanGaps: false,
            paths: bars ? uPlot.paths.bars({ size: [0.7, 60] }) : undefined,
          })),
        ],
      },
      data,
      plane,
    );
  }

  const legend = legendOf(lines, () => data);

  const resize = new ResizeObserver(() => {
    const width = Math.max(120, node.clientWidth);
    if (!plot) make().catch(() => {});
    else if (plot.width !== width) plot.setSize({ width, height });
  });
  add(node, lines.length > 1 || bars ? legend.node : null);
  resize.observe(node);
  const redraw = () => {
    make().catch(() => {});
  };
  document.addEventListener('choice', redraw, { signal });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw, { signal });
  signal?.addEventListener('abort', () => {
    resize.disconnect();
    plot?.destroy();
    plot = null;
  });

  return {
    node,
    set(...columns) {
      data = columns;
      node.dataset.points = String(columns[0].length);
      plot?.setData(columns);
    },
  };
}
