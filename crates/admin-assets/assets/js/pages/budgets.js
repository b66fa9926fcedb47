// Manages budget rules: limits in dollars, tokens or requests by window. Shows their use, raises and alerts.

import { fetchAll, get, post, remove, replace, segment } from '../api.js';
import { showWebhooks } from '../budgets/webhooks.js';
import { h, put } from '../dom.js';
import { count, money } from '../format.js';
import { listen } from '../live.js';
import { rewrite } from '../router.js';
import { may } from '../session.js';
import { badge, button, card, empty, head, load, meter, tabs, toast, when } from '../ui/parts.js';
import { confirm, field, formDialog } from '../ui/dialog.js';
import { table } from '../ui/table.js';

const TABS = [
  ['rules', 'Rules', 'GET /budgets'],
  ['use', 'Use', 'GET /budgets'],
  ['alerts', 'Alerts', 'GET /budget-alerts'],
  ['webhooks', 'Webhooks', 'GET /webhooks'],
];
const SCOPES = [
  ['org', 'Each organisation'],
  ['project', 'Each project'],
  ['key', 'Each key'],
  ['user', 'Each user'],
  ['model', 'Each model within an organisation'],
];
const WINDOWS = [
  ['hour', 'an hour'],
  ['day', 'a day'],
  ['week', 'a week, from Monday'],
  ['month', 'a month'],
  ['total', 'in total'],
];
const MEASURES = [
  ['dollars', 'Dollars'],
  ['tokens', 'Tokens'],
  ['requests', 'Requests'],
];
const HOURS = [
  [1, 'One hour'],
  [24, 'One day'],
  [168, 'One week'],
  [720, '30 days'],
];
const HOUR_S = 3600;

/** Shows the page. */
export async function show(root, { query, signal }) {
  const open = TABS.filter(([, , route]) => may(route));
  let chosen = open.some(([id]) => id === query.get('tab')) ? query.get('tab') : open[0]?.[0];
  const create =
    may('PUT /budgets/{id}') &&
    button('New budget', () => setRule(null, draw), { kind: 'primary', sign: 'plus' });
  const body = h('div');
  put(
    root,
    head(
      'Budgets',
      'What keys, users, projects, organisations and models may use in an hour, a day, a week or a month.',
      h('div', { class: 'acts' }, create),
    ),
    body,
  );
  function draw() {
    put(
      body,
      tabs(
        open.map(([id, name]) => ({
          id,
          name,
          show: (panel) => load(panel, () => SHOW[id](draw, signal), { signal, lines: 5 }),
        })),
        {
          chosen,
          label: 'What is shown',
          changed: (id) => {
            chosen = id;
            rewrite(`budgets?tab=${id}`);
          },
        },
      ),
    );
  }
  draw();
  listen(
    'changed',
    ({ what }) => what === 'budgets' && !document.querySelector('dialog[open]') && draw(),
    signal,
  );
}

const SHOW = {
  rules: showRules,
  use: showUse,
  alerts: showAlerts,
  webhooks: showWebhooks,
};

const amount = (measure, text) => (measure === 'dollars' ? money(text) : count(Number(text)));
const unit = (measure) => (measure === 'dollars' ? '' : ` ${measure}`);
const windowOf = (rule) => (rule.window === 'total' ? 'in total' : `per ${rule.window}`);
const noRule = () =>
  empty(
    'There is no budget rule yet.',
    'A hard rule refuses calls beyond its limit, a soft one only raises alerts.',
  );

/** Whose use counts, in words. */
function subjects(rule) {
  const whose = rule.subject
    ? [`${rule.scope} `, h('b', {}, rule.subject)]
    : rule.scope === 'org'
      ? 'each organisation'
      : `each ${rule.scope}`;
  const parts = [rule.org && `of ${rule.org}`, rule.tier && `with tier ${rule.tier}`].filter(Boolean);
  return [whose, parts.length > 0 && h('div', { class: 'small muted' }, parts.join(', '))];
}

function limitOf(rule) {
  const raised = rule.raised_until && [
    h('div', {}, badge(`raised to ${amount(rule.measure, rule.limit_now)}`, 'info')),
    h('div', { class: 'small muted' }, 'until ', when(rule.raised_until, { seconds: false })),
  ];
  return [
    `${amount(rule.measure, rule.limit)}${unit(rule.measure)} ${windowOf(rule)}`,
    rule.window !== 'total' && h('div', { class: 'small muted' }, rule.zone),
    raised,
  ];
}

async function showRules(draw, signal) {
  const rows = await fetchAll('budgets', { signal });
  if (rows.length === 0) return noRule();
  return card(
    null,
    { class: 'flush' },
    table(
      'Budget rules',
      [
        {
          name: 'Name',
          wide: true,
          sort: (row) => row.name,
          cell: (row) => [
            h('b', {}, row.name),
            row.from_settings && h('div', { class: 'small muted' }, 'from the settings'),
          ],
        },
        { name: 'Counts', sort: (row) => row.scope, cell: subjects },
        { name: 'Limit', cell: limitOf },
        {
          name: 'Beyond it',
          sort: (row) => String(row.hard),
          cell: (row) => (row.hard ? badge('refused', 'bad') : badge('alert only', 'info')),
        },
        { name: 'Alerts', cell: (row) => row.thresholds.map((at) => `${at} %`).join(', ') || '–' },
        {
          name: '',
          num: true,
          cell: (row) =>
            h(
              'div',
              { class: 'acts end' },
              may('POST /budgets/{id}/raise') && button('Raise', () => raise(row, draw), { kind: 'small' }),
              !row.from_settings &&
                may('PUT /budgets/{id}') &&
                button('Change', () => setRule(row, draw), { kind: 'small' }),
              !row.from_settings &&
                may('DELETE /budgets/{id}') &&
                button('Remove', () => removeRule(row, draw), { kind: 'small' }),
            ),
        },
      ],
      rows,
    ),
  );
}

async function showUse(draw, signal) {
  const rules = await fetchAll('budgets', { signal });
  if (rules.length === 0) return noRule();
  const rows = rules.flatMap((rule) => rule.counters.map((counter) => ({ rule, ...counter })));
  if (rows.length === 0)
    return empty('Nothing was used yet.', 'A counter begins with the first call of its window.');
  const share = (row) => Number(row.used) / (Number(row.rule.limit_now) || 1);
  const text = (row, value) => amount(row.rule.measure, value);
  return card(
    null,
    { class: 'flush' },
    table(
      'Use in the current windows',
      [
        { name: 'Subject', wide: true, sort: (row) => row.subject, cell: (row) => h('b', {}, row.subject) },
        {
          name: 'Budget',
          sort: (row) => row.rule.name,
          cell: (row) => [row.rule.name, h('div', { class: 'small muted' }, windowOf(row.rule))],
        },
        {
          name: 'Used',
          sort: share,
          cell: (row) =>
            meter(
              share(row),
              `${text(row, row.used)} of ${text(row, row.rule.limit_now)}${unit(row.rule.measure)}`,
              share(row) > 0.9 ? 'bad' : share(row) > 0.7 ? 'warn' : '',
            ),
        },
        {
          name: 'Reserved',
          num: true,
          sort: (row) => Number(row.reserved),
          cell: (row) => text(row, row.reserved),
        },
        {
          name: 'Left',
          num: true,
          sort: (row) => Number(row.left),
          cell: (row) => h('b', {}, text(row, row.left)),
        },
        {
          name: 'Resets',
          sort: (row) => row.resets ?? '',
          cell: (row) => (row.resets ? when(row.resets, { seconds: false }) : 'never'),
        },
        {
          name: 'Alerts',
          cell: (row) => (row.alerted.length > 0 ? row.alerted.map((at) => badge(`${at} %`, 'warn')) : '–'),
        },
      ],
      rows,
    ),
  );
}

async function showAlerts(draw, signal) {
  const rows = await get('budget-alerts', { signal });
  if (rows.length === 0)
    return empty('No budget has raised an alert.', 'Each threshold raises one alert per subject and window.');
  return card(
    null,
    { class: 'flush' },
    table(
      'Alerts',
      [
        { name: 'Time', sort: (row) => row.at, cell: (row) => when(row.at) },
        { name: 'Budget', sort: (row) => row.budget, cell: (row) => row.budget },
        { name: 'Subject', wide: true, sort: (row) => row.subject, cell: (row) => h('b', {}, row.subject) },
        {
          name: 'Threshold',
          num: true,
          sort: (row) => row.percent,
          cell: (row) => badge(`${row.percent} %`, row.percent >= 100 ? 'bad' : 'warn'),
        },
        { name: 'Used', num: true, cell: (row) => row.used },
        { name: 'Limit', num: true, cell: (row) => row.limit },
        {
          name: 'Window ends',
          sort: (row) => row.resets ?? '',
          cell: (row) => (row.resets ? when(row.resets, { seconds: false }) : 'never'),
        },
      ],
      rows,
    ),
  );
}

/** Asks for a rule: a new one, or the new form of a rule that an operator has set. */
async function setRule(row, draw) {
  const name = field('Name', { required: true, placeholder: 'monthly' });
  const fields = {
    ...(row ? {} : { name }),
    scope: field('Counts', { kind: 'select', value: row?.scope ?? 'org', options: SCOPES }),
    subject: field('Only', {
      value: row?.subject ?? '',
      placeholder: 'each of them',
      hint: 'The id of the only one that counts.',
    }),
    org: field('Organisation', { value: row?.org ?? '', placeholder: 'all' }),
    tier: field('Tier', { value: row?.tier ?? '', placeholder: 'with or without one' }),
    measure: field('Measure', { kind: 'select', value: row?.measure ?? 'dollars', options: MEASURES }),
    limit: field('Limit', { required: true, value: row?.limit ?? '', placeholder: '25.00' }),
    window: field('In', { kind: 'select', value: row?.window ?? 'month', options: WINDOWS }),
    zone: field('Time zone', { value: row?.zone ?? 'UTC', hint: 'An IANA zone such as Europe/Berlin.' }),
    hard: field('Beyond the limit', {
      kind: 'select',
      value: row && !row.hard ? 'soft' : 'hard',
      options: [
        ['hard', 'Refuse calls'],
        ['soft', 'Only raise alerts'],
      ],
    }),
    thresholds: field('Alerts at', {
      value: (row?.thresholds ?? [80, 100]).join(', '),
      hint: 'Percent of the limit, separated by commas.',
    }),
  };
  await formDialog(row ? `Budget ${row.name}` : 'New budget', {
    submit: 'Set budget',
    intro: row && 'The use of the current window stays.',
    fields,
    act: async ({ name: chosen, subject, org, tier, zone, hard, thresholds, ...rest }) => {
      await replace(`budgets/${segment(row?.name ?? chosen)}`, {
        ...rest,
        subject: subject || null,
        org: org || null,
        tier: tier || null,
        zone: zone || null,
        hard: hard === 'hard',
        thresholds: thresholds
          .split(/[\s,%]+/)
          .filter(Boolean)
          .map(Number),
      });
      toast('The budget is set.');
    },
  });
  draw();
}

function raise(row, draw) {
  const fields = {
    limit: field('Limit meanwhile', {
      required: true,
      value: row.limit_now,
      hint: `Without the raise: ${amount(row.measure, row.limit)}${unit(row.measure)}.`,
    }),
    hours: field('For', { kind: 'select', value: 24, options: HOURS }),
    end: row.raised_until && field('End the raise now', { kind: 'check' }),
  };
  return formDialog(`Raise ${row.name}`, {
    submit: 'Raise',
    intro: 'The raise ends by itself. Other windows keep their limit.',
    fields: Object.fromEntries(Object.entries(fields).filter(([, input]) => input)),
    act: async ({ limit, hours, end }) => {
      const seconds = end ? 0 : Number(hours) * HOUR_S;
      await post(`budgets/${segment(row.name)}/raise`, { limit, seconds });
      toast(end ? 'The raise has ended.' : 'Raised.');
      draw();
    },
  });
}

async function removeRule(row, draw) {
  if (!(await confirm(`Remove ${row.name}?`, 'Its counters are lost. Other limits stay in force.', 'Remove')))
    return;
  try {
    await remove(`budgets/${segment(row.name)}`);
    toast('Removed.');
  } catch (error) {
    toast(`${error.message} ${error.remedy ?? ''}`, 'bad');
  }
  draw();
}
