// Tables: a sortable one for short lists, and one for long lists that draws only the rows in view.

import { h, put } from '../dom.js';

/** The classes that make a table narrower, in this order: less space between columns, broken words, cards. */
const TIGHTER_CLASSES = ['tight', 'broken', 'cards'];

/**
 * A table of few rows. A table that is wider than its container becomes tighter. If that is not enough, each
 * row becomes a card with the names of the columns. Sets ARIA roles, because browsers drop a table's roles
 * when a style sheet changes its layout.
 * Columns: `name`, `cell(row)`, `num` (right-aligned), `sort(row)` (sorts by the column's head), `wide`.
 */
export function table(caption, columns, rows, { open, rowClass } = {}) {
  let order = null;
  const body = h('tbody', { role: 'rowgroup' });
  const heads = columns.map((column, at) => {
    const props = { scope: 'col', role: 'columnheader', class: column.num ? 'num' : null };
    if (!column.sort) return h('th', props, column.name || h('span', { class: 'off-screen' }, 'Actions'));
    return h(
      'th',
      props,
      h('button', { type: 'button', class: 'sort', on: { click: () => sortBy(at) } }, column.name),
    );
  });
  function sortBy(at) {
    order = order?.at === at ? { at, down: !order.down } : { at, down: Boolean(columns[at].num) };
    heads.forEach((head, index) =>
      index === at
        ? head.setAttribute('aria-sort', order.down ? 'descending' : 'ascending')
        : head.removeAttribute('aria-sort'),
    );
    draw();
  }
  function draw() {
    const shown = [...rows];
    if (order) {
      const sortKey = columns[order.at].sort;
      shown.sort((a, b) => compare(sortKey(a), sortKey(b)) * (order.down ? -1 : 1));
    }
    put(
      body,
      shown.map((row) =>
        h(
          'tr',
          {
            role: 'row',
            class: [rowClass?.(row), open && 'opens'].filter(Boolean).join(' ') || null,
            on: open && { click: (event) => event.target.closest('a,button,input') || open(row) },
          },
          columns.map((column) =>
            h(
              'td',
              {
                role: 'cell',
                class: [column.num && 'num', column.wide && 'wide'].filter(Boolean).join(' ') || null,
                data: { name: column.name },
              },
              h('div', {}, column.cell(row)),
            ),
          ),
        ),
      ),
    );
  }
  draw();
  const node = h(
    'table',
    { class: 'table', role: 'table' },
    h('caption', { class: 'off-screen' }, caption),
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, heads)),
    body,
  );
  const wrap = h('div', { class: 'table-wrap', tabindex: 0, role: 'region', 'aria-label': caption }, node);
  fit(wrap, node);
  return wrap;
}

/** Keeps a table within its container when the container's width changes. */
export function fit(wrap, node) {
  let width = -1;
  new ResizeObserver(() => {
    if (wrap.clientWidth === width) return;
    width = wrap.clientWidth;
    node.classList.remove(...TIGHTER_CLASSES);
    for (const name of TIGHTER_CLASSES) if (wrap.scrollWidth > wrap.clientWidth) node.classList.add(name);
  }).observe(wrap);
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}

const ROW_PX = 38;
const BEYOND_ROWS = 12;
/** The space between columns, and at both ends of a row together, as in the style sheet. */
const GAP_PX = 12;
const ENDS_PX = 24;

/** The columns that fit into `px` pixels. */
function fittingIn(columns, px) {
  const ranks = [...new Set(columns.map((column) => column.rank ?? 0))].sort((a, b) => a - b);
  const upTo = (rank) => columns.filter((column) => (column.rank ?? 0) <= rank);
  const needs = (some) => some.reduce((sum, column) => sum + column.least + GAP_PX, ENDS_PX - GAP_PX);
  return ranks.map(upTo).findLast((some) => needs(some) <= px) ?? upTo(ranks[0]);
}

const templateOf = (columns) =>
  columns.map(({ least, grow }) => (grow ? `minmax(${least}px, ${grow}fr)` : `${least}px`)).join(' ');

/**
 * A list of any length. Draws the rows in view and a few beyond. Arrow keys, Home, End and Page move, and
 * Enter opens. Columns have a least width in pixels (`least`), a share of the remaining width (`grow`), and a
 * `rank`. If there is not enough room, the columns of the highest rank are left out.
 * @param {{caption: string, columns: object[], open: (row) => void, more?: () => void, key: (row) => string}} how
 */
export function longTable({ caption, columns, open, more, key, onKey }) {
  let rows = [];
  let at = -1;
  let chosen = null;
  let frame = 0;
  const drawn = new Map();
  const spacer = h('div', { class: 'long-space', role: 'presentation' });
  let shown = columns;
  let template = templateOf(shown);
  const top = h('div', { class: 'long-head', role: 'rowgroup' });
  const view = h(
    'div',
    { class: 'long-view', role: 'rowgroup', on: { scroll: () => schedule(), keydown: pressed } },
    spacer,
  );
  const node = h(
    'div',
    { class: 'long', role: 'grid', 'aria-label': caption, 'aria-readonly': 'true' },
    top,
    view,
  );
  new ResizeObserver(() => fitColumns()).observe(view);
  drawHead();

  /** Shows the columns that fit. */
  function fitColumns() {
    const fitting = fittingIn(columns, view.clientWidth);
    if (fitting.length === shown.length) return schedule();
    shown = fitting;
    template = templateOf(shown);
    drawHead();
    redraw();
  }

  function drawHead() {
    put(
      top,
      h(
        'div',
        { role: 'row', class: 'long-row', 'aria-rowindex': 1, style: { 'grid-template-columns': template } },
        shown.map((column) =>
          h('div', { role: 'columnheader', class: column.num ? 'num' : null }, column.name),
        ),
      ),
    );
  }

  function schedule() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  }

  function draw() {
    const first = Math.max(0, Math.floor(view.scrollTop / ROW_PX) - BEYOND_ROWS);
    const last = Math.min(
      rows.length,
      Math.ceil((view.scrollTop + view.clientHeight) / ROW_PX) + BEYOND_ROWS,
    );
    for (const [index, line] of drawn) {
      if (index < first || index >= last) {
        if (line.contains(document.activeElement)) view.focus({ preventScroll: true });
        line.remove();
        drawn.delete(index);
      }
    }
    for (let index = first; index < last; index++)
      if (!drawn.has(index)) {
        const line = lineOf(index);
        drawn.set(index, line);
        spacer.append(line);
      }
    if (more && rows.length && last >= rows.length - 40) more();
  }

  function lineOf(index) {
    const row = rows[index];
    return h(
      'div',
      {
        role: 'row',
        class: ['long-row', key(row) === chosen && 'chosen'].filter(Boolean).join(' '),
        'aria-rowindex': index + 2,
        'aria-selected': String(key(row) === chosen),
        tabindex: index === Math.max(0, at) ? 0 : -1,
        data: { index: String(index) },
        style: { transform: `translateY(${index * ROW_PX}px)`, 'grid-template-columns': template },
        on: {
          click: (event) => {
            at = index;
            if (!event.target.closest('button,input,a')) open(row);
          },
          focus: () => {
            at = index;
          },
        },
      },
      shown.map((column) =>
        h('div', { role: 'gridcell', class: column.num ? 'num' : null }, column.cell(row)),
      ),
    );
  }

  function pressed(event) {
    if (event.target.closest('input')) return;
    const page = Math.max(1, Math.floor(view.clientHeight / ROW_PX) - 1);
    const step = {
      ArrowDown: 1,
      j: 1,
      ArrowUp: -1,
      k: -1,
      PageDown: page,
      PageUp: -page,
      Home: -Infinity,
      End: Infinity,
    }[event.key];
    if (step !== undefined && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      event.stopPropagation();
      focus(Math.max(0, Math.min(rows.length - 1, Math.max(0, at) + step)));
    } else if (event.key === 'Enter' && rows[at]) {
      event.preventDefault();
      open(rows[at]);
    } else if (rows[at] && onKey?.(event.key, rows[at])) {
      event.preventDefault();
    }
  }

  function focus(index) {
    if (!rows[index]) return;
    at = index;
    const y = index * ROW_PX;
    if (y < view.scrollTop) view.scrollTop = y;
    else if (y + ROW_PX > view.scrollTop + view.clientHeight) view.scrollTop = y + ROW_PX - view.clientHeight;
    draw();
    for (const [other, line] of drawn) line.tabIndex = other === index ? 0 : -1;
    drawn.get(index)?.focus({ preventScroll: true });
  }

  function redraw() {
    const hadFocus = view.contains(document.activeElement) && document.activeElement !== view;
    for (const line of drawn.values()) line.remove();
    drawn.clear();
    spacer.style.height = `${rows.length * ROW_PX}px`;
    node.setAttribute('aria-rowcount', String(rows.length + 1));
    draw();
    if (hadFocus) drawn.get(at)?.focus({ preventScroll: true });
  }

  return {
    node,
    focus: () => focus(Math.max(0, at)),
    redraw,
    set(next, { keep = false } = {}) {
      rows = next;
      if (!keep) {
        at = -1;
        view.scrollTop = 0;
      }
      redraw();
    },
    choose(id) {
      chosen = id;
      at = Math.max(
        at,
        rows.findIndex((row) => key(row) === id),
      );
      redraw();
    },
    step(by) {
      const index = rows.findIndex((row) => key(row) === chosen);
      const next = rows[index + by];
      if (next) {
        focus(index + by);
        open(next);
      }
    },
  };
}
