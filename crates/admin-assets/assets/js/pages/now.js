// Shows the current state: calls by stage, speed, waiting times, cache hits, errors and spend, and notes
// about slow and refused calls.

import { get, rowsOf } from '../api.js';
import { keyName, modelName, shortId } from '../call-names.js';
import { h, icon, put } from '../dom.js';
import { count, duration, money, percent, short } from '../format.js';
import { listen } from '../live.js';
import { go } from '../router.js';
import { may } from '../session.js';
import { GROUPS, describeStage } from '../stages.js';
import { chart } from '../ui/chart.js';
import { aboutCode, badge, button, card, empty, failure, head, outcome, tile, when } from '../ui/parts.js';
import { DAY_S, HOUR_S, spendChart } from '../ui/spend.js';
import { table } from '../ui/table.js';

const HISTORY_S = 300;
const MAX_LAST_CALLS = 12;
const DAY_DRAWN_EVERY_MS = 60_000;
/** The charts' data. Kept in the module, so that it survives a visit to another page. */
const chartData = { at: [], generated: [], read: [], first: [], queue: [] };
const lastCalls = [];

/** Shows the page. */
export async function show(root, { signal }) {
  const lamp = h('span', { class: 'lamp' }, h('i'), h('span', {}, 'Connecting'));
  const tiles = {
    flight: tile('In flight', { hint: 'Calls that have started and not ended' }),
    generated: tile('Generated', { unit: 'tokens/s', hint: 'Tokens written by all models' }),
    read: tile('Read', { unit: 'tokens/s', hint: 'Prompt tokens computed' }),
    first: tile('Time to first token', { hint: 'Median of the last minute, from the end of the request' }),
    queue: tile('Queue', { hint: 'Median time in the queue, and the number of calls that wait now' }),
    batch: tile('Batch', { unit: 'sequences', hint: 'Sequences computed together' }),
    kv: tile('KV memory', { hint: 'Blocks in use' }),
    cache: tile('Prompt cache', { hint: 'Prompt tokens found in the cache, of the last minute' }),
    errors: tile('Errors', { unit: '/min', hint: 'Failed and refused, of the last minute' }),
    spend: tile('Spend', { hint: 'Charged in the last minute' }),
  };
  const path = pipeline();
  const noteList = h('ul', { class: 'notes' });
  const flight = h('div');
  const recent = h('div');
  const day = h('div', { hidden: !may('GET /usage') });
  const speed = chart({
    windowS: HISTORY_S,
    label: 'Tokens a second over the last five minutes',
    signal,
    lines: [
      { name: 'generated', color: '--engine', show: short },
      { name: 'read', color: '--gateway', show: short },
    ],
  });
  const wait = chart({
    windowS: HISTORY_S,
    label: 'Time to first token and time in the queue over the last five minutes',
    signal,
    lines: [
      { name: 'first token', color: '--accent', show: duration },
      { name: 'queue', color: '--warn', show: duration },
    ],
  });
  put(
    root,
    head('Now', 'Calls in flight by stage, and what needs attention.', lamp),
    h(
      'div',
      { class: 'tiles' },
      Object.values(tiles).map((figure) => figure.node),
    ),
    card('In flight by stage', { note: 'choose a stage to read what it does' }, path.node),
    h(
      'div',
      { class: 'grid' },
      card('Tokens per second', {}, speed.node),
      card('Waiting', {}, wait.node),
      day,
    ),
    card('Needs attention', { note: 'the last minute' }, noteList),
    card('Calls', { class: 'flush' }, flight, recent),
  );

  const draw = (now) => {
    drawTiles(tiles, now);
    path.set(now.in_flight?.by_stage ?? {});
    remember(now);
    speed.set(chartData.at, chartData.generated, chartData.read);
    wait.set(chartData.at, chartData.first, chartData.queue);
    drawNotes(noteList, now.notes ?? []);
    drawFlight(flight, now.calls ?? []);
  };
  drawRecent(recent);
  try {
    if (may('GET /usage')) drawDay(day, signal);
    const now = await get('now', { signal });
    prependHistory(now.history);
    draw(now);
    if (lastCalls.length === 0 && may('GET /requests')) {
      lastCalls.push(...((await get('requests', { query: { limit: MAX_LAST_CALLS }, signal })).data ?? []));
      drawRecent(recent);
    }
  } catch (error) {
    if (signal.aborted) return;
    put(noteList, h('li', {}, failure(error)));
  }
  listen('now', draw, signal);
  listen(
    'call',
    (row) => {
      lastCalls.unshift(row);
      lastCalls.length = Math.min(lastCalls.length, MAX_LAST_CALLS);
      drawRecent(recent);
    },
    signal,
  );
  listen(
    'state',
    (state) => {
      lamp.className = `lamp ${state}`;
      put(lamp, h('i'), h('span', {}, { open: 'Live', lost: 'Lost, reconnecting' }[state] ?? 'Connecting'));
    },
    signal,
  );
}

function drawTiles(tiles, now) {
  const minute = now.per_minute ?? {};
  const errors = (minute.failed ?? 0) + (minute.refused ?? 0);
  const kv = now.kv ?? {};
  const cache = now.cache ?? {};
  tiles.flight.set(
    count(now.in_flight?.total ?? 0),
    minute.calls !== undefined ? `${count(minute.calls)} ended in the last minute` : '',
  );
  tiles.generated.set(short(now.tokens_per_s?.completion ?? 0));
  tiles.read.set(short(now.tokens_per_s?.prompt ?? 0));
  tiles.first.set(
    duration(now.ttft_us?.p50),
    now.ttft_us?.p95 ? `p95 ${duration(now.ttft_us.p95)}` : 'no call in the last minute',
  );
  tiles.queue.set(duration(now.queue_us?.p50), `${count(now.queue_depth ?? 0)} waiting`);
  tiles.batch.set(
    now.batch?.mean ? short(now.batch.mean, 2) : '–',
    now.batch?.max ? `at most ${count(now.batch.max)}` : '',
  );
  tiles.kv.set(
    kv.blocks ? percent(kv.used_blocks / kv.blocks) : '–',
    kv.blocks ? `${count(kv.used_blocks)} of ${count(kv.blocks)} blocks` : '',
  );
  tiles.cache.set(
    cache.prompt_tokens ? percent(cache.hit_tokens / cache.prompt_tokens) : '–',
    cache.prompt_tokens ? `${short(cache.hit_tokens)} of ${short(cache.prompt_tokens)} tokens` : '',
  );
  tiles.errors.set(
    count(errors),
    errors ? `${count(minute.refused ?? 0)} refused, ${count(minute.failed ?? 0)} failed` : '',
  );
  tiles.spend.set(
    money(minute.spend_dollars ?? minute.spend_nano_dollars ?? minute.spend),
    'in the last minute',
  );
}

/** Draws the spend of the last 24 hours by hour. */
async function drawDay(root, signal) {
  let drawn = new AbortController();
  const draw = async () => {
    const from = new Date(Date.now() - (DAY_S - HOUR_S) * 1000).toISOString();
    const usage = await get('usage', { query: { interval: 'hour', from }, signal }).catch(() => null);
    if (!usage || signal.aborted) return;
    drawn.abort();
    drawn = new AbortController();
    put(
      root,
      spendChart(rowsOf(usage.rows ? { data: usage.rows } : usage), null, {
        from,
        stepS: HOUR_S,
        signal: drawn.signal,
        title: 'Spend, last 24 hours',
      }),
    );
  };
  await draw();
  const timer = setInterval(() => document.hidden || draw(), DAY_DRAWN_EVERY_MS);
  signal.addEventListener('abort', () => {
    clearInterval(timer);
    drawn.abort();
  });
}

/** Adds the server's history before the data that this page has collected. */
function prependHistory(history) {
  const first = chartData.at[0] ?? Infinity;
  const known = (history?.at_unix_s ?? [])
    .map((at, index) => [at, index])
    .filter(([at]) => at < first && at > Date.now() / 1000 - HISTORY_S);
  const before = { at: known.map(([at]) => at) };
  for (const [name, list] of [
    ['generated', 'completion_tokens_per_s'],
    ['read', 'prompt_tokens_per_s'],
    ['first', 'ttft_p50_us'],
    ['queue', 'queue_p50_us'],
  ])
    before[name] = known.map(([, index]) => history[list]?.[index] ?? null);
  for (const [name, list] of Object.entries(before)) chartData[name].unshift(...list);
}

/** Adds the figures of a second, unless the data has that second. */
function remember(now) {
  const at = Math.floor(new Date(now.at ?? Date.now()).getTime() / 1000);
  if (chartData.at.at(-1) >= at) return;
  chartData.at.push(at);
  chartData.generated.push(now.tokens_per_s?.completion ?? 0);
  chartData.read.push(now.tokens_per_s?.prompt ?? 0);
  chartData.first.push(now.ttft_us?.p50 ?? null);
  chartData.queue.push(now.queue_us?.p50 ?? null);
  const old = chartData.at.findIndex((second) => second > at - HISTORY_S);
  if (old > 0) for (const list of Object.values(chartData)) list.splice(0, old);
}

function pipeline() {
  const counts = new Map();
  const stageText = h('p', { class: 'small muted pipe-said', role: 'status' });
  const list = h(
    'ol',
    { class: 'pipeline' },
    GROUPS.map((group) =>
      h(
        'li',
        { class: `pipe-group ${group.id}` },
        h('span', { class: 'pipe-name' }, group.name),
        h(
          'ol',
          {},
          group.stages.map((stage) => {
            const number = h('b', {}, '0');
            const item = h(
              'button',
              {
                type: 'button',
                title: describeStage(stage),
                on: { click: () => put(stageText, h('b', {}, stage), `: ${describeStage(stage)}.`) },
              },
              number,
              h('span', {}, stage),
            );
            counts.set(stage, [item, number]);
            return h('li', {}, item);
          }),
        ),
      ),
    ),
  );
  return {
    node: h('div', {}, list, stageText),
    set(byStage) {
      for (const [stage, [item, number]] of counts) {
        const n = byStage[stage] ?? 0;
        if (number.textContent !== String(n)) number.textContent = String(n);
        item.classList.toggle('busy', n > 0);
      }
    },
  };
}

const NOTE_KINDS = {
  slow: ['slow', 'warn'],
  refused: ['refused', 'warn'],
  failed: ['failed', 'bad'],
  queue: ['queue', 'warn'],
  upstream: ['upstream', 'bad'],
};

function drawNotes(list, notes) {
  put(
    list,
    notes.length === 0
      ? h('li', { class: 'calm muted' }, icon('check'), ' Nothing is slow, refused or failing.')
      : notes.map((note) =>
          h(
            'li',
            {},
            badge(...(NOTE_KINDS[note.kind] ?? [note.kind, ''])),
            h(
              'span',
              {},
              note.text,
              ' ',
              note.request &&
                h('a', { href: `#/requests/${encodeURIComponent(note.request)}` }, 'show the request'),
              note.code && [' ', aboutCode(note.code, 'span')],
            ),
          ),
        ),
  );
}

function drawFlight(root, calls) {
  if (calls.length === 0) return put(root);
  put(
    root,
    table(
      'Calls in flight',
      [
        {
          name: 'In flight',
          cell: (call) =>
            h(
              'a',
              { href: `#/requests/${encodeURIComponent(call.id)}`, class: 'mono small' },
              shortId(call.id),
            ),
        },
        { name: 'Stage', cell: (call) => badge(call.stage, 'info') },
        { name: 'Age', num: true, cell: (call) => duration(call.age_us) },
        { name: 'Model', cell: (call) => modelName(call.model) },
        { name: 'Caller', cell: callerCell },
        { name: 'Tokens', num: true, cell: (call) => count(call.completion_tokens) },
      ],
      calls.slice(0, 20),
    ),
  );
}

function drawRecent(root) {
  if (lastCalls.length === 0) {
    return put(
      root,
      empty(
        'No call has ended yet.',
        'Send one from the playground, or with the commands that `headrace up` printed.',
        may('POST /playground/chat/completions') &&
          button('Open the playground', () => go('playground'), { sign: 'play' }),
      ),
    );
  }
  put(
    root,
    table(
      'The newest calls that ended',
      [
        {
          name: 'Ended',
          cell: (row) => h('a', { href: `#/requests/${encodeURIComponent(row.id)}` }, when(row.started)),
        },
        { name: 'Outcome', cell: (row) => outcome(row.outcome) },
        { name: 'Took', num: true, cell: (row) => duration(row.duration_us) },
        { name: 'Model', cell: (row) => modelName(row.model) },
        { name: 'Caller', cell: callerCell },
        {
          name: 'Tokens',
          num: true,
          cell: (row) => `${count(row.usage?.prompt_tokens)} → ${count(row.usage?.completion_tokens)}`,
        },
        { name: 'Charged', num: true, cell: (row) => money(row.cost?.charged_dollars) },
      ],
      lastCalls,
      { open: (row) => go(`requests/${encodeURIComponent(row.id)}`) },
    ),
  );
}

/** The key and project of a call, with its user and organisation below. */
function callerCell(row) {
  return [
    h('b', {}, keyName(row)),
    row.project && ` · ${row.project}`,
    h('div', { class: 'small muted' }, [row.user && `for ${row.user}`, row.org].filter(Boolean).join(' · ')),
  ];
}
