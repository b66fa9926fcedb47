// The views of a request: waterfall, explanation, cost, concurrent calls and JSON. Also the comparison of two
// requests. Shown beside the list of requests, and below an answer of the playground.

import { get, rowsOf, segment } from './api.js';
import { keyName, modelName, shortId } from './call-names.js';
import { add, h } from './dom.js';
import { count, duration, money, percent } from './format.js';
import { reasonOf } from './cache-misses.js';
import { isModerated, verdictView } from './moderation-verdicts.js';
import { contentView } from './request-contents.js';
import { may } from './session.js';
import {
  aboutCode,
  badge,
  button,
  copyButton,
  empty,
  facts,
  jsonBlock,
  load,
  outcome,
  tabs,
  when,
} from './ui/parts.js';
import { table } from './ui/table.js';
import { waterfall } from './ui/waterfall.js';

let tab = 'waterfall';

/** Shows a request in `root`. */
export function detail(root, { id, close, step, signal }) {
  return load(
    root,
    async () => {
      const trace = await get(`requests/${segment(id)}`, { signal });
      return [headOf(trace, { close, step }), views(trace, signal)];
    },
    { lines: 9, signal },
  );
}

/** The views of a trace as tabs. */
export function views(trace, signal) {
  const id = segment(trace.id);
  const list = [
    { id: 'waterfall', name: 'Waterfall', show: (panel) => add(panel, overview(trace)) },
    may('GET /requests/{id}/explain') && {
      id: 'why',
      name: 'Why',
      show: (panel) =>
        load(panel, async () => explanation(await get(`requests/${id}/explain`, { signal })), { signal }),
    },
    isModerated(trace) &&
      may('GET /requests/{id}/explain') && {
        id: 'moderation',
        name: 'Moderation',
        show: (panel) =>
          load(panel, async () => verdictView((await get(`requests/${id}/explain`, { signal })).verdicts), {
            signal,
          }),
      },
    may('GET /requests/{id}/cost') && {
      id: 'cost',
      name: 'Cost',
      show: (panel) =>
        load(panel, async () => cost(await get(`requests/${id}/cost`, { signal })), { signal }),
    },
    may('GET /requests/{id}/beside') && {
      id: 'beside',
      name: 'Concurrent',
      show: (panel) =>
        load(panel, async () => beside(rowsOf(await get(`requests/${id}/beside`, { signal })), trace), {
          signal,
        }),
    },
    may('GET /requests/{id}/content') && {
      id: 'content',
      name: 'Content',
      show: (panel) => load(panel, () => contentView(id, signal), { signal }),
    },
    { id: 'json', name: 'JSON', show: (panel) => add(panel, jsonBlock(trace)) },
  ].filter(Boolean);
  return tabs(list, {
    chosen: tab,
    changed: (now) => {
      tab = now;
    },
    label: 'Views of the request',
  });
}

function headOf(trace, { close, step }) {
  return h(
    'div',
    { class: 'side-head' },
    h(
      'div',
      {},
      h(
        'h2',
        {},
        outcome(trace.outcome),
        ' ',
        duration(trace.duration_us),
        ' · ',
        money(trace.cost?.charged_dollars),
      ),
      h('p', { class: 'mono small muted break' }, trace.id, ' ', copyButton(trace.id, '')),
    ),
    h(
      'div',
      { class: 'acts' },
      step && button('', () => step(-1), { kind: 'quiet', sign: 'left', title: 'Previous request (k)' }),
      step && button('', () => step(1), { kind: 'quiet', sign: 'right', title: 'Next request (j)' }),
      close && button('', close, { kind: 'quiet', sign: 'close', title: 'Close the request' }),
    ),
  );
}

function overview(trace) {
  const usage = trace.usage ?? {};
  const engine = trace.engine ?? {};
  const end = trace.outcome ?? {};
  const per = trace.inter_token_us ? `${Math.round(1e6 / trace.inter_token_us)} tokens/s` : null;
  return [
    end.message &&
      h(
        'div',
        { class: `notice ${end.kind === 'refused' ? 'warn' : ''}` },
        h('b', {}, [end.status, end.code, end.stage && `in ${end.stage}`].filter(Boolean).join(' · ')),
        h('p', {}, end.message),
        aboutCode(end.code),
      ),
    end.why && h('div', { class: 'notice' }, `Cancelled: ${end.why}`),
    waterfall(trace),
    facts(
      ['Started', when(trace.started, { date: 'always' })],
      [
        'Model',
        trace.model?.asked && trace.model.asked !== trace.model.served
          ? `${modelName(trace.model)} (asked: ${trace.model.asked})`
          : modelName(trace.model),
      ],
      [
        'Call',
        [
          trace.worker_job ? `worker job of ${trace.worker_job.call}` : trace.endpoint,
          trace.stream ? 'streamed' : 'not streamed',
          trace.gateway && `gateway ${trace.gateway}`,
        ]
          .filter(Boolean)
          .join(' · '),
      ],
      ['First token', trace.time_to_first_token_us !== null && duration(trace.time_to_first_token_us)],
      ['Between tokens', trace.inter_token_us && `${duration(trace.inter_token_us)} · ${per}`],
      [
        'Prompt',
        usage.prompt_tokens !== undefined &&
          `${count(usage.prompt_tokens)} tokens, ${count(usage.cached_input_tokens)} cached`,
      ],
      [
        'Answer',
        usage.completion_tokens !== undefined &&
          `${count(usage.completion_tokens)} tokens${usage.reasoning_tokens ? `, ${count(usage.reasoning_tokens)} of reasoning` : ''}`,
      ],
      ['Finish reason', end.finish_reasons?.join(', ')],
      [
        'Cache',
        engine.prompt_blocks
          ? `${count(engine.cached_blocks)} of ${count(engine.prompt_blocks)} blocks`
          : null,
      ],
      [
        'Cache miss',
        engine.cache_miss &&
          [reasonOf(engine.cache_miss.reason)[0], engine.cache_miss.place].filter(Boolean).join(': '),
      ],
      [
        'Batch',
        engine.batch_mean &&
          `${engine.batch_min} min · ${engine.batch_mean.toFixed(1)} mean · ${engine.batch_max} max`,
      ],
      ['Held', trace.cost && money(trace.cost.held_dollars)],
      ['Charged', trace.cost && money(trace.cost.charged_dollars)],
      ['Paid upstream', trace.cost?.paid_dollars && money(trace.cost.paid_dollars)],
      ['Loss', trace.cost?.loss_nano_dollars ? money(trace.cost.loss_dollars) : null],
      ['Organisation', trace.org],
      ['Project', trace.project],
      [
        'Key',
        trace.key &&
          h(
            'a',
            { href: `#/requests?key=${encodeURIComponent(trace.key)}`, title: trace.key },
            keyName(trace),
          ),
      ],
      [
        'User',
        trace.user && h('a', { href: `#/requests?user=${encodeURIComponent(trace.user)}` }, trace.user),
      ],
      [
        'Client address',
        trace.client_address &&
          h(
            'a',
            { href: `#/requests?address=${encodeURIComponent(trace.client_address)}`, class: 'mono' },
            trace.client_address,
          ),
      ],
      [
        'Upstream',
        trace.upstream &&
          (typeof trace.upstream === 'string'
            ? trace.upstream
            : `${trace.upstream.name} · ${trace.upstream.model ?? ''} · usage ${trace.upstream.usage}`),
      ],
      ['Labels', trace.metadata && labels(trace.metadata)],
      ['Trace id', trace.trace_id && h('span', { class: 'mono small' }, trace.trace_id)],
    ),
    trace.attempts?.length > 0 &&
      h(
        'div',
        { class: 'block' },
        h('h3', {}, 'Attempts'),
        table(
          'Attempts',
          [
            { name: 'Worker', cell: (attempt) => attempt.worker },
            { name: 'Start', num: true, cell: (attempt) => duration(attempt.start_us) },
            { name: 'Took', num: true, cell: (attempt) => duration(attempt.duration_us) },
            {
              name: 'Outcome',
              wide: true,
              cell: (attempt) => [
                badge(
                  attempt.outcome?.kind ?? '–',
                  attempt.outcome?.kind === 'answered'
                    ? 'good'
                    : attempt.outcome?.kind === 'failed'
                      ? 'bad'
                      : '',
                ),
                ' ',
                attempt.outcome?.message,
              ],
            },
          ],
          trace.attempts,
        ),
      ),
    trace.rounds?.length > 1 && rounds(trace.rounds),
  ];
}

/** The labels of a call, as links to the calls with the same label. */
function labels(metadata) {
  return Object.entries(metadata).map(([name, value]) => [
    h('a', { href: `#/requests?label=${encodeURIComponent(`${name}=${value}`)}` }, `${name}=${value}`),
    ' ',
  ]);
}

/** The rounds of a call that ran more than one. */
function rounds(list) {
  return h(
    'div',
    { class: 'block' },
    h('h3', {}, 'Rounds'),
    table(
      'Rounds',
      [
        {
          name: 'Served by',
          cell: (round) => [round.model, round.worker].filter(Boolean).join(' at '),
        },
        { name: 'Start', num: true, cell: (round) => duration(round.start_us) },
        { name: 'Took', num: true, cell: (round) => duration(round.duration_us) },
        { name: 'Prompt', num: true, cell: (round) => count(round.usage?.prompt_tokens) },
        { name: 'Generated', num: true, cell: (round) => count(round.usage?.completion_tokens) },
        {
          name: 'Outcome',
          wide: true,
          cell: (round) => [
            badge(
              round.outcome?.kind ?? '–',
              round.outcome?.kind === 'answered' ? 'good' : round.outcome?.kind === 'failed' ? 'bad' : '',
            ),
            ' ',
            round.outcome?.code ?? round.outcome?.finish_reason,
          ],
        },
      ],
      list,
    ),
  );
}

/** The terms whose sum is the call's time, each with its usual duration. */
function explanation(explained) {
  const terms = (explained.terms ?? []).filter((term) => term.us > 0);
  const most = Math.max(1, ...terms.map((term) => term.us));
  const refused = explained.refusal;
  return [
    h('p', { class: 'sentence' }, explained.sentence),
    explained.money_sentence && h('p', { class: 'muted' }, explained.money_sentence),
    refused &&
      h(
        'div',
        { class: 'notice warn' },
        h('b', {}, [refused.status, refused.code].filter(Boolean).join(' · ')),
        h('p', {}, refused.text ?? refused.message),
        refused.way_out && h('p', {}, refused.way_out),
        aboutCode(refused.code),
      ),
    terms.length > 0 &&
      table(
        'Where the time went',
        [
          {
            name: 'Where the time went',
            wide: true,
            cell: (term) => [
              h('b', {}, term.name.replaceAll('_', ' ')),
              term.name === explained.dearest && [' ', badge('most', 'info')],
              term.unusual && [' ', badge('unusual', 'warn')],
              h('p', { class: 'muted small' }, term.text),
            ],
          },
          { name: 'Took', num: true, sort: (term) => term.us, cell: (term) => duration(term.us) },
          {
            name: 'Of the call',
            cell: (term) =>
              h(
                'span',
                { class: 'meter' },
                h(
                  'span',
                  { class: 'meter-track' },
                  h('span', {
                    class: `meter-fill party-${term.party}`,
                    style: { width: `${(term.us / most) * 100}%` },
                  }),
                ),
                h(
                  'span',
                  { class: 'num small' },
                  percent(term.share ?? (explained.total_us ? term.us / explained.total_us : null)),
                ),
              ),
          },
          { name: 'Usual', num: true, cell: (term) => duration(term.usual_us) },
          { name: 'Reference', num: true, cell: (term) => reference(term.reference_us) },
        ],
        terms,
      ),
    explained.compared?.calls > 0 &&
      h(
        'p',
        { class: 'muted small' },
        `Usual durations are from ${count(explained.compared.calls)} ${explained.compared.what ?? 'similar calls'}.`,
      ),
    explained.levers?.length > 0 &&
      h(
        'div',
        { class: 'block' },
        h('h3', {}, 'What would have helped'),
        h(
          'ul',
          { class: 'levers' },
          explained.levers.map((lever) =>
            h(
              'li',
              {},
              h('div', {}, h('b', {}, lever.name.replaceAll('_', ' ')), ' ', lever.text),
              h(
                'span',
                { class: 'num' },
                [
                  lever.saves_us > 0 && `−${duration(lever.saves_us)}`,
                  Number(lever.saves_dollars) > 0 && `−${money(lever.saves_dollars)}`,
                ]
                  .filter(Boolean)
                  .join(' · '),
              ),
            ),
          ),
        ),
      ),
    explained.notes?.length > 0 &&
      h(
        'ul',
        { class: 'muted small' },
        explained.notes.map((note) => h('li', {}, note)),
      ),
  ];
}

function reference(range) {
  if (range === null || range === undefined) return '–';
  if (!Array.isArray(range)) return duration(range);
  return range[0] === range[1] || !range[0]
    ? `≤ ${duration(range[1])}`
    : `${duration(range[0])} – ${duration(range[1])}`;
}

function cost(bill) {
  return [
    bill.sentence && h('p', { class: 'sentence' }, bill.sentence),
    bill.terms?.length
      ? table(
          'Price by term',
          [
            { name: 'What', cell: (term) => String(term.class).replaceAll('_', ' ') },
            { name: 'Tokens', num: true, cell: (term) => count(term.tokens) },
            {
              name: 'Per million',
              num: true,
              cell: (term) => [
                money(term.price_per_million_dollars),
                term.usual_price_per_million_dollars &&
                  term.usual_price_per_million_dollars !== term.price_per_million_dollars &&
                  h(
                    'div',
                    { class: 'muted small' },
                    `usually ${money(term.usual_price_per_million_dollars)}`,
                  ),
              ],
            },
            {
              name: 'Amount',
              num: true,
              sort: (term) => Number(term.dollars),
              cell: (term) => money(term.dollars),
            },
          ],
          bill.terms,
        )
      : empty('Nothing was charged.'),
    facts(
      ['Total', money(bill.total_dollars)],
      ['Held', bill.held_dollars && money(bill.held_dollars)],
      ['Saved by the cache', bill.saved_by_cache_dollars && money(bill.saved_by_cache_dollars)],
      ['Paid upstream', bill.paid_dollars && money(bill.paid_dollars)],
      ['Margin', bill.margin_dollars && money(bill.margin_dollars)],
      ['Service tier', bill.tier],
      ['Prices as of', bill.priced_at && when(bill.priced_at, { date: 'always' })],
    ),
    bill.notes?.length > 0 &&
      h(
        'ul',
        { class: 'muted small' },
        bill.notes.map((note) => h('li', {}, note)),
      ),
  ];
}

function beside(rows, trace) {
  if (rows.length === 0) return empty('No concurrent calls.', 'No other call ran at the same time.');
  return [
    h(
      'p',
      { class: 'muted' },
      `${count(rows.length)} calls ran at the same time. The longest overlap is first.`,
    ),
    table(
      'Concurrent calls',
      [
        {
          name: 'Request',
          cell: (row) =>
            h(
              'a',
              { class: 'mono small', href: `#/requests/${encodeURIComponent(row.id)}` },
              shortId(row.id),
            ),
        },
        {
          name: 'Overlap',
          cell: (row) =>
            h(
              'span',
              { class: 'meter' },
              h(
                'span',
                { class: 'meter-track' },
                h('span', {
                  class: 'meter-fill',
                  style: { width: `${Math.min(1, row.overlap_us / trace.duration_us) * 100}%` },
                }),
              ),
              h('span', { class: 'num' }, duration(row.overlap_us)),
            ),
        },
        { name: 'Model', cell: (row) => modelName(row.model) },
        {
          name: 'Tokens',
          num: true,
          cell: (row) =>
            `${count(row.prompt_tokens ?? row.usage?.prompt_tokens)} → ${count(row.completion_tokens ?? row.usage?.completion_tokens)}`,
        },
        { name: 'Outcome', cell: (row) => outcome(row.outcome) },
        {
          name: 'Caller',
          cell: (row) => [
            row.key || row.key_name
              ? keyName(row)
              : (row.org ?? (row.same_org ? 'the same organisation' : 'another organisation')),
            row.project && h('div', { class: 'small muted' }, row.project),
          ],
        },
      ],
      rows,
    ),
  ];
}

/** Shows the comparison of two requests in `root`. */
export function comparison(root, { a, b, close, signal }) {
  return load(
    root,
    async () => {
      const [comparison, first, second] = await Promise.all([
        get('requests/compare', { query: { a, b }, signal }),
        get(`requests/${segment(a)}`, { signal }),
        get(`requests/${segment(b)}`, { signal }),
      ]);
      const most = Math.max(
        1,
        ...(comparison.terms ?? []).map((term) => Math.max(term.a_us ?? 0, term.b_us ?? 0)),
      );
      const bar = (us, kind) =>
        h(
          'span',
          { class: 'meter' },
          h(
            'span',
            { class: 'meter-track' },
            h('span', { class: `meter-fill ${kind}`, style: { width: `${((us ?? 0) / most) * 100}%` } }),
          ),
          h('span', { class: 'num' }, duration(us)),
        );
      const link = (trace, name) =>
        h('a', { href: `#/requests/${encodeURIComponent(trace.id)}` }, `${name} ${shortId(trace.id)}`);
      return [
        h(
          'div',
          { class: 'side-head' },
          h('h2', {}, 'Two requests compared'),
          button('', close, { kind: 'quiet', sign: 'close', title: 'Close the comparison' }),
        ),
        comparison.sentence && h('p', { class: 'sentence' }, comparison.sentence),
        table(
          'Terms of both',
          [
            {
              name: 'Term',
              wide: true,
              cell: (term) => [
                h('b', {}, String(term.name).replaceAll('_', ' ')),
                term.text && h('p', { class: 'muted small' }, term.text),
              ],
            },
            { name: link(first, 'A'), cell: (term) => bar(term.a_us, '') },
            { name: link(second, 'B'), cell: (term) => bar(term.b_us, 'warn') },
            {
              name: 'B − A',
              num: true,
              cell: (term) => {
                const delta = term.delta_us ?? (term.b_us ?? 0) - (term.a_us ?? 0);
                return `${delta > 0 ? '+' : delta < 0 ? '−' : ''}${duration(Math.abs(delta))}`;
              },
            },
          ],
          comparison.terms ?? [],
        ),
        comparison.facts?.length > 0 &&
          table(
            'Facts of both',
            [
              { name: 'What', cell: (fact) => String(fact.name).replaceAll('_', ' ') },
              { name: 'A', wide: true, cell: (fact) => fact.a ?? '–' },
              { name: 'B', wide: true, cell: (fact) => fact.b ?? '–' },
            ],
            comparison.facts,
          ),
      ];
    },
    { lines: 9, signal },
  );
}
