// Searches requests, newest first, and shows a request beside the list. The address contains the search.

import { get, rowsOf } from '../api.js';
import { keyName, modelName } from '../call-names.js';
import { h, put } from '../dom.js';
import { count, duration, money } from '../format.js';
import { listen } from '../live.js';
import { DECIDED } from '../moderation-verdicts.js';
import { comparison, detail } from '../request-views.js';
import { go, rewrite, route } from '../router.js';
import { may } from '../session.js';
import { STAGES } from '../stages.js';
import { button, empty, failure, head, outcome, skeleton, toast, when } from '../ui/parts.js';
import { field } from '../ui/dialog.js';
import { longTable } from '../ui/table.js';

const PAGE_ROWS = 500;
/** Filters that have the same name in the address and in the admin API. */
const FILTERS = [
  'outcome',
  'model',
  'org',
  'project',
  'key',
  'user',
  'upstream',
  'stage',
  'slower_than_ms',
  'dearer_than',
  'text',
  'moderation',
  'content_rule',
  'content',
  'label',
  'address',
  'from',
  'to',
];
const SPANS = [
  ['', 'Any time'],
  ['15m', 'Last 15 minutes'],
  ['1h', 'Last hour'],
  ['24h', 'Last day'],
  ['7d', 'Last 7 days'],
  ['30d', 'Last 30 days'],
  ['custom', 'From … to …'],
];
const SPAN_MS = { '15m': 9e5, '1h': 36e5, '24h': 864e5, '7d': 6048e5, '30d': 2592e6 };

let view = null;

/** Shows the page. */
export async function show(root, at) {
  view = new View(root, at);
  await view.start(at);
}

/** Shows another address within the page. */
export function update(at) {
  view.follow(at);
}

class View {
  constructor(root, { signal, query }) {
    this.signal = signal;
    this.rows = [];
    this.cursor = null;
    this.searchCount = 0;
    this.marked = [];
    this.filters = {};
    this.readFilters(query);
    this.form = h('div');
    put(this.form, this.bar());
    this.side = h('section', { class: 'split-side', 'aria-label': 'Request', hidden: true });
    this.countText = h('span', { class: 'muted small', role: 'status' });
    this.live = h('button', {
      type: 'button',
      class: 'button small',
      hidden: true,
      on: { click: () => this.search() },
    });
    this.compare = button(
      'Compare',
      () =>
        go(
          `requests/compare?a=${encodeURIComponent(this.marked[0])}&b=${encodeURIComponent(this.marked[1])}`,
        ),
      { kind: 'small', hidden: true },
    );
    this.table = longTable({
      caption: 'Requests, newest first',
      key: (row) => row.id,
      open: (row) => this.open(row.id),
      more: () => this.more(),
      columns: columns(this),
      onKey: (key, row) => key === 'c' && (this.mark(row.id), true),
    });
    this.body = h('div', { class: 'list-body' });
    put(
      root,
      head('Requests', 'Every call with its duration, cost and outcome. Open one to see the details.'),
      this.form,
      h(
        'div',
        { class: 'split' },
        h(
          'section',
          { class: 'card flush list', 'aria-label': 'List' },
          h('div', { class: 'list-said' }, this.countText, this.live, this.compare),
          this.body,
        ),
        this.side,
      ),
    );
    root.classList.add('fills');
  }

  /** Reads the filters from an address. */
  readFilters(query) {
    // Changes the object in place, because the fields of the form write into it.
    Object.assign(this.filters, Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ''])));
    this.last = query.get('last') ?? (this.filters.from || this.filters.to ? 'custom' : '');
  }

  async start(at) {
    let fresh = 0;
    listen(
      'call',
      () => {
        fresh += 1;
        this.live.hidden = false;
        put(this.live, `${count(fresh)} new: show`);
      },
      this.signal,
    );
    this.live.addEventListener('click', () => {
      fresh = 0;
      this.live.hidden = true;
    });
    this.follow(at);
    await this.search();
  }

  bar() {
    const { filters } = this;
    const changed = (name) => (value) => {
      filters[name] = String(value ?? '');
      this.searchSoon();
    };
    const text = (name, label, more) =>
      field(label, { value: filters[name], changed: changed(name), ...more }).node;
    const search = field('Error contains', {
      value: filters.text,
      placeholder: 'Text of an error',
      changed: changed('text'),
    });
    search.input.dataset.search = '';
    const custom = h(
      'div',
      { class: 'fields', hidden: this.last !== 'custom' },
      text('from', 'From', { placeholder: '2026-11-22T08:00Z or 2h' }),
      text('to', 'To', { placeholder: 'now' }),
    );
    const more = h(
      'details',
      {
        class: 'more',
        open: [
          'project',
          'key',
          'user',
          'upstream',
          'stage',
          'dearer_than',
          'moderation',
          'content_rule',
          'content',
          'label',
          'address',
        ].some((name) => filters[name]),
      },
      h('summary', {}, 'More'),
      h(
        'div',
        { class: 'fields' },
        text('project', 'Project'),
        text('key', 'Key', { placeholder: 'key_…' }),
        text('user', 'User', { placeholder: 'as named by the caller' }),
        text('upstream', 'Upstream'),
        text('stage', 'Stage', {
          kind: 'select',
          options: [['', 'Any'], ...STAGES.map((stage) => [stage, stage])],
        }),
        text('dearer_than', 'Costs more than', { placeholder: '$', kind: 'number' }),
        text('label', 'Label', { placeholder: 'tag=checkout' }),
        text('address', 'Client address', { placeholder: '203.0.113.0/24' }),
        text('moderation', 'Content rules decided', {
          kind: 'select',
          options: [['', 'Anything or nothing'], ...DECIDED],
        }),
        text('content_rule', 'Content rule', { placeholder: 'personal-data' }),
        may('GET /requests/{id}/content') &&
          text('content', 'Request or answer contains', { placeholder: 'Only what is recorded' }),
      ),
    );
    return h(
      'form',
      {
        class: 'card filters',
        role: 'search',
        'aria-label': 'Requests',
        on: {
          submit: (event) => {
            event.preventDefault();
            this.search();
          },
          reset: () => setTimeout(() => this.clear()),
        },
      },
      h(
        'div',
        { class: 'fields' },
        search.node,
        field('When', {
          kind: 'select',
          options: SPANS,
          value: this.last,
          changed: (value) => {
            this.last = value;
            custom.hidden = value !== 'custom';
            this.searchSoon();
          },
        }).node,
        text('outcome', 'Outcome', {
          kind: 'select',
          options: [
            ['', 'Any'],
            ['completed', 'Completed'],
            ['refused', 'Refused'],
            ['failed', 'Failed'],
            ['cancelled', 'Cancelled'],
          ],
        }),
        text('model', 'Model'),
        text('org', 'Organisation'),
        text('slower_than_ms', 'Slower than (ms)', { kind: 'number' }),
      ),
      custom,
      more,
    );
  }

  clear() {
    go('requests');
  }

  searchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.search(), 250);
  }

  query() {
    const given = Object.fromEntries(
      Object.entries(this.filters).filter(
        ([name, value]) => value !== '' && (this.last === 'custom' || !['from', 'to'].includes(name)),
      ),
    );
    if (SPAN_MS[this.last]) given.from = new Date(Date.now() - SPAN_MS[this.last]).toISOString();
    return given;
  }

  /** The address of a path with the current filters. */
  address(path) {
    const query = new URLSearchParams(Object.entries(this.filters).filter(([, value]) => value !== ''));
    if (this.last) query.set('last', this.last);
    const text = query.toString();
    return path + (text ? `?${text}` : '');
  }

  async search() {
    clearTimeout(this.timer);
    const turn = ++this.searchCount;
    const { rest } = route();
    if (rest[0] !== 'compare') rewrite(this.address(['requests', ...rest.map(encodeURIComponent)].join('/')));
    this.rows = [];
    this.cursor = null;
    const wait = setTimeout(() => put(this.body, h('div', { class: 'pad' }, skeleton(8))), 100);
    try {
      await this.fetch(turn);
      if (turn !== this.searchCount) return;
      put(this.body, this.rows.length ? this.table.node : this.emptyState());
      this.table.set(this.rows);
      this.table.choose(route().rest[0]);
    } catch (error) {
      if (turn !== this.searchCount || this.signal.aborted) return;
      this.countText.textContent = '';
      put(
        this.body,
        h(
          'div',
          { class: 'pad' },
          failure(error, () => this.search()),
        ),
      );
    } finally {
      clearTimeout(wait);
    }
  }

  /**
   * Fetches the next rows. The server's pages may be short, so fetches until there are enough rows to show.
   */
  async fetch(turn) {
    const before = this.rows.length;
    let rounds = 0;
    let missing = [];
    do {
      const page = await get('requests', {
        query: { ...this.query(), limit: PAGE_ROWS, cursor: this.cursor },
        signal: this.signal,
      });
      if (turn !== this.searchCount) return;
      this.rows.push(...rowsOf(page));
      this.cursor = page.next ?? null;
      missing = page.missing_gateways ?? [];
    } while (this.cursor && this.rows.length < before + 50 && ++rounds < 20);
    const without = missing.map(({ gateway, why }) => `${gateway} (${why})`).join(', ');
    this.countText.textContent =
      `${count(this.rows.length)}${this.cursor ? ' or more' : ''} ${this.rows.length === 1 ? 'request' : 'requests'}` +
      (without && `, without those of ${without}`);
  }

  async more() {
    if (!this.cursor || this.fetching) return;
    this.fetching = true;
    const turn = this.searchCount;
    try {
      await this.fetch(turn);
      if (turn === this.searchCount) this.table.set(this.rows, { keep: true });
    } catch (error) {
      if (!this.signal.aborted) toast(error.message, 'bad');
      this.cursor = null;
    } finally {
      this.fetching = false;
    }
  }

  emptyState() {
    const any = Object.keys(this.query()).length > 0;
    return any
      ? empty(
          'No request matches.',
          'Choose a longer time or remove a filter.',
          button('Clear the search', () => go('requests')),
        )
      : empty(
          'There is no request yet.',
          'Every call appears here with its waterfall, price and outcome.',
          may('POST /playground/chat/completions') &&
            button('Open the playground', () => go('playground'), { sign: 'play' }),
        );
  }

  open(id) {
    go(this.address(`requests/${encodeURIComponent(id)}`));
  }

  mark(id) {
    this.marked = this.marked.includes(id)
      ? this.marked.filter((other) => other !== id)
      : [...this.marked, id].slice(-2);
    this.compare.hidden = this.marked.length !== 2 || !may('GET /requests/compare');
    this.table.redraw();
  }

  follow({ rest, query }) {
    const id = rest[0];
    const before = this.address('');
    // A link to a request keeps the filters of the list.
    if (!id || (id !== 'compare' && query.size > 0)) this.readFilters(query);
    if (this.address('') !== before) {
      put(this.form, this.bar());
      if (this.searchCount > 0) this.search();
    }
    this.side.hidden = !id;
    this.side.closest('.split').classList.toggle('with-side', Boolean(id));
    this.table.choose(id);
    if (!id) return put(this.side);
    const close = () => go(this.address('requests'));
    if (id === 'compare')
      comparison(this.side, { a: query.get('a'), b: query.get('b'), close, signal: this.signal });
    else detail(this.side, { id, close, step: (by) => this.table.step(by), signal: this.signal });
  }
}

function columns(view) {
  const mark = (row) =>
    h('input', {
      type: 'checkbox',
      'aria-label': `Compare ${row.id}`,
      checked: view.marked.includes(row.id),
      tabindex: -1,
      on: { change: () => view.mark(row.id) },
    });
  return [
    { name: h('span', { class: 'off-screen' }, 'Compare'), least: 18, cell: mark },
    { name: 'Started', least: 72, grow: 1, cell: (row) => when(row.started) },
    { name: 'Outcome', least: 92, grow: 1, cell: (row) => outcome(row.outcome) },
    { name: 'Took', least: 76, num: true, cell: (row) => duration(row.duration_us) },
    {
      name: 'First token',
      least: 82,
      rank: 6,
      num: true,
      cell: (row) => duration(row.time_to_first_token_us),
    },
    {
      name: 'Model',
      least: 80,
      grow: 1.8,
      rank: 1,
      cell: (row) => h('span', { title: modelName(row.model) }, modelName(row.model)),
    },
    {
      name: 'Project',
      least: 64,
      grow: 0.9,
      rank: 3,
      cell: (row) =>
        h('span', { title: [row.project, row.org].filter(Boolean).join(' of ') }, row.project ?? '–'),
    },
    {
      name: 'Key',
      least: 90,
      grow: 1.8,
      rank: 3,
      cell: (row) => h('span', { title: row.key ?? '' }, row.worker_job ? 'worker job' : keyName(row)),
    },
    {
      name: 'User',
      least: 84,
      grow: 1,
      rank: 5,
      cell: (row) => h('span', { title: row.user ?? '' }, row.user ?? '–'),
    },
    {
      name: 'Tokens',
      least: 104,
      rank: 4,
      num: true,
      cell: (row) => `${count(row.usage?.prompt_tokens)} → ${count(row.usage?.completion_tokens)}`,
    },
    { name: 'Charged', least: 112, rank: 2, num: true, cell: (row) => money(row.cost?.charged_dollars) },
  ];
}
