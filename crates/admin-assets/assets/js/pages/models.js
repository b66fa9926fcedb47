// Shows the models, the upstreams with health, load and breakers, and the routes with their weights.

import { fetchAll, post, segment } from '../api.js';
import { h, put } from '../dom.js';
import { ago, count, duration, money, percent, short } from '../format.js';
import { listen } from '../live.js';
import { rewrite } from '../router.js';
import { may } from '../session.js';
import { badge, button, card, empty, facts, head, load, meter, tabs, toast } from '../ui/parts.js';
import { confirm } from '../ui/dialog.js';
import { table } from '../ui/table.js';

const FRESH_MS = 5000;

/** Shows the page. */
export async function show(root, { query, signal }) {
  let chosen = query.get('tab') ?? 'models';
  const body = h('div');
  const panels = { models, upstreams, routes };
  let panel = null;
  const list = [
    ['models', 'Models'],
    ['upstreams', 'Upstreams'],
    ['routes', 'Routes'],
  ].map(([id, name]) => ({
    id,
    name,
    show: (place) => {
      panel = place;
      return load(place, () => panels[id](signal, refresh), { signal, lines: 6 });
    },
  }));
  put(
    root,
    head(
      'Models and upstreams',
      'The models that callers can use, and the upstreams and routes that serve them.',
    ),
    body,
  );
  put(
    body,
    tabs(list, {
      chosen,
      label: 'What is shown',
      changed: (id) => {
        chosen = id;
        rewrite(`models?tab=${id}`);
      },
    }),
  );
  async function refresh() {
    const at = chosen;
    const content = await panels[at](signal, refresh).catch(() => null);
    if (content && at === chosen && !panel.contains(document.activeElement)) put(panel, content);
  }
  listen('changed', ({ what }) => ['routes', 'upstreams', 'settings'].includes(what) && refresh(), signal);
  const timer = setInterval(() => chosen === 'upstreams' && !document.hidden && refresh(), FRESH_MS);
  signal.addEventListener('abort', () => clearInterval(timer));
}

async function models(signal) {
  const rows = await fetchAll('models', { signal });
  const prices = await fetchAll('prices', { signal }).catch(() => []);
  if (rows.length === 0)
    return empty(
      'No model is served.',
      'Add one to the configuration, or start with `headrace up`, which includes one.',
    );
  const price = (row) => prices.find((candidate) => candidate.model === row.name);
  return card(
    null,
    { class: 'flush' },
    table(
      'Models',
      [
        {
          name: 'Model',
          wide: true,
          sort: (row) => row.name,
          cell: (row) => [
            h('b', {}, row.name),
            row.aliases?.length > 0 && h('div', { class: 'small muted' }, `also ${row.aliases.join(', ')}`),
          ],
        },
        {
          name: 'State',
          cell: (row) =>
            notReadyReasons(row).length > 0
              ? [
                  badge('not ready', 'warn'),
                  notReadyReasons(row).map((why) => h('p', { class: 'small muted' }, why)),
                ]
              : badge('ready', 'good'),
        },
        {
          name: 'Input',
          cell: (row) => [
            row.input ? row.input.join(', ') : h('span', { class: 'muted' }, 'depends on the upstream'),
            h(
              'div',
              { class: 'small muted' },
              { tokens: 'sent as token ids', texts: 'sent as texts', messages: 'sent as messages' }[
                row.lane
              ] ?? row.lane,
            ),
          ],
        },
        {
          name: 'Window',
          num: true,
          sort: windowOf,
          cell: (row) => [
            count(windowOf(row)),
            defaultOf(row) &&
              h('div', { class: 'small muted' }, `answers ${count(defaultOf(row))}`, h('br'), 'by default'),
          ],
        },
        {
          name: 'Endpoints',
          wide: true,
          cell: (row) =>
            row.endpoints?.length
              ? h('span', { class: 'small' }, row.endpoints.join(', '))
              : h('span', { class: 'muted' }, 'depends on the upstream'),
        },
        {
          name: 'Per million',
          num: true,
          cell: (row) =>
            price(row)
              ? [
                  h('div', {}, `${money(price(row).input)} in`),
                  h('div', {}, `${money(price(row).output)} out`),
                ]
              : '–',
        },
        {
          name: '',
          num: true,
          cell: (row) =>
            h(
              'div',
              { class: 'acts end' },
              may('GET /models/{name}/doctor') &&
                h(
                  'a',
                  {
                    class: 'button small quiet',
                    href: `#/prompt?tab=doctor&model=${encodeURIComponent(row.name)}`,
                  },
                  'Doctor',
                ),
              may('GET /requests') &&
                h(
                  'a',
                  { class: 'button small quiet', href: `#/requests?model=${encodeURIComponent(row.name)}` },
                  'Requests',
                ),
            ),
        },
      ],
      rows,
    ),
  );
}

const defaultOf = (row) => row.max_output_tokens ?? row.default_max_tokens;
const windowOf = (row) => row.context_window ?? row.context_tokens;
/** The reasons why a model is not ready. An empty text if the server gives no reason. */
const notReadyReasons = (row) => row.not_ready ?? row.why_not ?? (row.ready === false ? [''] : []);

const KIND = {
  healthy: 'good',
  up: 'good',
  ready: 'good',
  closed: 'good',
  ok: 'good',
  open: 'bad',
  down: 'bad',
  failing: 'bad',
  drained: 'warn',
  draining: 'warn',
  half_open: 'warn',
  probing: 'warn',
  suspect: 'warn',
};
const stateBadge = (word) =>
  badge(String(word ?? '–').replaceAll('_', ' '), KIND[String(word).replaceAll('-', '_')] ?? '');

async function upstreams(signal, refresh) {
  const rows = await fetchAll('upstreams', { signal });
  if (rows.length === 0)
    return empty(
      'There is no upstream.',
      'The local engine answers all calls. To put Headrace in front of other servers, add [[upstreams]] to the configuration.',
    );
  return h(
    'div',
    { class: 'page-body' },
    rows.map((row) =>
      card(
        row.name,
        {
          note: [row.kind, row.lane, row.at, row.region].filter(Boolean).join(' · '),
          acts: upstreamActs(row, refresh),
        },
        h('p', {}, stateBadge(row.state), ' ', row.said),
        facts(
          ['In flight', count(row.in_flight)],
          ['Waiting', count(row.waiting)],
          ['Calls', count(row.calls)],
          [
            'Failed',
            row.calls ? `${count(row.failed)} (${percent(row.failed / row.calls)})` : count(row.failed),
          ],
          ['Rate limited', count(row.rate_limited)],
          [
            'Last contact',
            row.last_contact_age_s !== null &&
              row.last_contact_age_s !== undefined &&
              ago(Date.now() - row.last_contact_age_s * 1000),
          ],
          ['Last error', row.last_error && `${row.last_error} (${row.last_error_age_s} s ago)`],
          ['Load', row.load_fault],
          ['Cache reports', row.cache_fault],
        ),
        row.models?.length > 0 &&
          h(
            'div',
            { class: 'block' },
            table(
              `Models at ${row.name}`,
              [
                {
                  name: 'Model',
                  wide: true,
                  cell: (model) => [
                    h('b', {}, model.model),
                    h('div', { class: 'small muted mono' }, model.worker),
                  ],
                },
                { name: 'State', cell: (model) => stateBadge(model.standing) },
                {
                  name: 'Breaker',
                  cell: (model) => [
                    stateBadge(model.breaker),
                    model.trips ? h('div', { class: 'small muted' }, `opened ${count(model.trips)} ×`) : null,
                  ],
                },
                { name: 'In flight', num: true, cell: (model) => count(model.in_flight) },
                {
                  name: 'First token',
                  num: true,
                  cell: (model) =>
                    model.first_ms !== null && model.first_ms !== undefined
                      ? duration(model.first_ms * 1000)
                      : '–',
                },
                {
                  name: 'Failed, last minute',
                  num: true,
                  cell: (model) =>
                    model.failed_permille_last_minute === null ||
                    model.failed_permille_last_minute === undefined
                      ? '–'
                      : percent(model.failed_permille_last_minute / 1000),
                },
                {
                  name: 'Load',
                  cell: (model) =>
                    model.load
                      ? [
                          `${count(model.load.running)} running, ${count(model.load.waiting)} waiting`,
                          model.load.cache_used_permille !== null &&
                            model.load.cache_used_permille !== undefined &&
                            meter(
                              model.load.cache_used_permille / 1000,
                              `KV ${percent(model.load.cache_used_permille / 1000)}`,
                            ),
                          h('div', { class: 'small muted' }, `${model.load.age_s} s old`),
                        ]
                      : '–',
                },
                { name: 'Cached blocks', num: true, cell: (model) => short(model.cached_blocks) },
              ],
              row.models,
            ),
          ),
      ),
    ),
  );
}

function upstreamActs(row, refresh) {
  const drained = /drain/.test(row.state ?? '');
  const act = (action, message) => async () => {
    if (
      action === 'drain' &&
      !(await confirm(`Drain ${row.name}?`, 'It gets no new calls. Calls in flight can finish.', 'Drain', {
        kind: 'primary',
      }))
    )
      return;
    try {
      await post(`upstreams/${segment(row.name)}/${action}`);
      toast(message);
    } catch (error) {
      toast(`${error.message} ${error.remedy ?? ''}`, 'bad');
    }
    document.activeElement?.blur();
    refresh();
  };
  return [
    may('POST /upstreams/{name}/probe') &&
      button('Probe', act('probe', 'The probe was sent.'), { kind: 'small' }),
    drained
      ? may('POST /upstreams/{name}/resume') &&
        button('Resume', act('resume', 'The upstream gets calls again.'), { kind: 'small primary' })
      : may('POST /upstreams/{name}/drain') &&
        button('Drain', act('drain', 'The upstream gets no new calls.'), { kind: 'small' }),
  ];
}

async function routes(signal, refresh) {
  const rows = await fetchAll('routes', { signal });
  if (rows.length === 0)
    return empty(
      'There is no route.',
      'A route is a public name that shares its calls between several models by weight, for example with a canary. See [[routes]] in the configuration.',
    );
  return h(
    'div',
    { class: 'page-body' },
    rows.map((row) => {
      const sum = row.to.reduce((all, arm) => all + arm.weight, 0) || 1;
      const rolled = row.to.some((arm) => arm.canary?.rolled_back_unix_s);
      return card(
        row.name,
        {
          note: `sticky by ${row.sticky}`,
          acts:
            rolled && may('POST /routes/{name}/resume')
              ? button(
                  'Try again',
                  async () => {
                    await post(`routes/${segment(row.name)}/resume`).then(
                      () => toast('The canary is on trial again.'),
                      (error) => toast(error.message, 'bad'),
                    );
                    refresh();
                  },
                  { kind: 'small' },
                )
              : null,
        },
        table(
          `Targets of ${row.name}`,
          [
            { name: 'Model', cell: (arm) => h('b', {}, arm.model) },
            { name: 'Share', cell: (arm) => meter(arm.weight / sum, percent(arm.weight / sum)) },
            {
              name: 'Canary',
              wide: true,
              cell: (arm) =>
                arm.canary
                  ? [
                      arm.canary.rolled_back_unix_s ? badge('rolled back', 'bad') : badge('on trial', 'info'),
                      h(
                        'p',
                        { class: 'small muted' },
                        arm.canary.why ??
                          `${count(arm.canary.calls?.[1])} calls, ${count(arm.canary.errors?.[1])} errors`,
                      ),
                    ]
                  : '–',
            },
          ],
          row.to,
        ),
      );
    }),
  );
}
