// Manages keys, projects, organisations and operators. Shows a secret once and does not store it.

import { fetchAll, get, patch, post, rowsOf, segment } from '../api.js';
import { h, put } from '../dom.js';
import { count, dollars, money } from '../format.js';
import { newOperator, showOperators } from '../keys/operators.js';
import { editRecords, recordsOf } from '../keys/records.js';
import { initialChoice, remember } from '../last-used.js';
import { listen } from '../live.js';
import { rewrite } from '../router.js';
import { may } from '../session.js';
import { badge, button, card, empty, head, load, tabs, toast, when } from '../ui/parts.js';
import { confirm, field, formDialog, showSecret } from '../ui/dialog.js';
import { table } from '../ui/table.js';

const TABS = [
  ['keys', 'Keys'],
  ['projects', 'Projects'],
  ['orgs', 'Organisations'],
  ['operators', 'Operators'],
];
const ENDPOINTS = [
  'chat.completions',
  'completions',
  'messages',
  'responses',
  'embeddings',
  'rerank',
  'score',
];

/** Shows the page. */
export async function show(root, { query, signal }) {
  const acts = h('div', { class: 'acts' });
  const body = h('div');
  let chosen = TABS.some(([id]) => id === query.get('tab')) ? query.get('tab') : 'keys';
  put(
    root,
    head('Keys and limits', 'The keys of callers, with their projects, models and limits.', acts),
    body,
  );
  const draw = () => {
    put(
      acts,
      (NEW[chosen] ?? [])
        .filter(([, route]) => may(route))
        .map(([text, , make]) => button(text, () => make(draw), { kind: 'primary', sign: 'plus' })),
    );
    put(
      body,
      tabs(
        TABS.filter(([id]) => id !== 'operators' || may('GET /operators')).map(([id, name]) => ({
          id,
          name,
          show: (panel) => load(panel, () => SHOW[id](draw, signal), { signal, lines: 6 }),
        })),
        {
          chosen,
          label: 'What is shown',
          changed: (id) => {
            chosen = id;
            rewrite(`keys?tab=${id}`);
            draw();
            body.querySelector(`#tab-${id}`)?.focus();
          },
        },
      ),
    );
  };
  draw();
  listen(
    'changed',
    ({ what }) => what === chosen && !document.querySelector('dialog[open]') && draw(),
    signal,
  );
  const wanted = query.get('new');
  if (wanted) {
    rewrite(`keys?tab=${chosen}`);
    ({ key: newKey, project: newProject, org: newOrg })[wanted]?.(draw);
  }
}

const SHOW = { keys: showKeys, projects: showProjects, orgs: showOrgs, operators: showOperators };
const NEW = {
  keys: [['New key', 'POST /keys', newKey]],
  projects: [['New project', 'POST /projects', newProject]],
  orgs: [['New organisation', 'POST /orgs', newOrg]],
  operators: [['New operator', 'POST /operators', newOperator]],
};

/** Describes limits in words. */
function limits(bounds, none = 'none') {
  const parts = [
    bounds?.requests_per_minute !== null &&
      bounds?.requests_per_minute !== undefined &&
      `${count(bounds.requests_per_minute)} requests/min`,
    bounds?.tokens_per_minute !== null &&
      bounds?.tokens_per_minute !== undefined &&
      `${count(bounds.tokens_per_minute)} tokens/min`,
    bounds?.concurrency !== null &&
      bounds?.concurrency !== undefined &&
      `${count(bounds.concurrency)} concurrent`,
  ].filter(Boolean);
  return parts.length ? parts.join(' · ') : h('span', { class: 'muted' }, none);
}

async function showKeys(draw, signal) {
  const [rows, used] = await Promise.all([fetchAll('keys', { signal }), usedBy(signal)]);
  if (rows.length === 0)
    return empty(
      'There is no key yet.',
      'A program calls the API with a key. The key’s project is charged.',
      may('POST /keys') &&
        button('Create the first key', () => newKey(draw), { kind: 'primary', sign: 'plus' }),
    );
  rows.sort(
    (a, b) => Boolean(a.revoked) - Boolean(b.revoked) || String(b.created).localeCompare(String(a.created)),
  );
  const box = field('Find', {
    placeholder: 'Name, id, project',
    changed: (text) => fill(text.toLowerCase()),
  });
  box.input.dataset.search = '';
  const place = h('div');
  const fill = (text) =>
    put(
      place,
      table(
        'Keys',
        [
          {
            name: 'Name',
            wide: true,
            sort: (key) => key.name,
            cell: (key) => [
              h('b', {}, key.name),
              h('div', { class: 'mono small muted' }, `${key.id} · ${key.hint ?? ''}`),
              key.owner && h('div', { class: 'small muted' }, `owner ${key.owner}`),
            ],
          },
          {
            name: 'Project',
            sort: (key) => key.project,
            cell: (key) => [key.project, h('div', { class: 'small muted' }, key.org)],
          },
          {
            name: 'May use',
            cell: (key) => [
              nameList(key.models, 'every model'),
              h('div', { class: 'small muted' }, nameList(key.endpoints, 'every endpoint')),
              h('div', { class: 'small' }, limits(key.limits, 'no limits')),
              key.tier && h('div', { class: 'small' }, `tier ${key.tier}`),
              key.allowed_ips?.length > 0 &&
                h('div', { class: 'small muted' }, `from ${key.allowed_ips.join(', ')}`),
            ],
          },
          {
            name: 'Created',
            sort: (key) => key.created,
            cell: (key) => [
              when(key.created, DAY),
              h(
                'div',
                { class: 'small muted' },
                key.expires ? ['expires ', when(key.expires, DAY)] : 'does not expire',
              ),
            ],
          },
          {
            name: 'Last used',
            sort: (key) => key.last_used ?? used.get(key.id)?.last_hour,
            cell: (key) => lastUsed(key.last_used, used.get(key.id)?.last_hour),
          },
          {
            name: 'Spent',
            num: true,
            sort: (key) => dollars(used.get(key.id)?.charged),
            cell: (key) => (used.has(key.id) ? money(used.get(key.id).charged) : money('0')),
          },
          { name: 'State', sort: (key) => String(key.revoked), cell: (key) => state(key) },
          { name: '', num: true, cell: (key) => keyActs(key, draw) },
        ],
        rows.filter((key) =>
          `${key.name} ${key.id} ${key.project} ${key.org} ${key.hint} ${key.owner ?? ''} ${key.tier ?? ''}`
            .toLowerCase()
            .includes(text),
        ),
        { rowClass: (key) => key.revoked && 'gone' },
      ),
    );
  fill('');
  return card(null, { class: 'flush' }, h('div', { class: 'pad finder' }, box.node), place);
}

const DAY = { day: true };
const HOUR_MS = 36e5;

/** The usage of each key by id. Empty if the operator may not read usage. */
async function usedBy(signal) {
  if (!may('GET /usage')) return new Map();
  const usage = await get('usage', { query: { by: 'key' }, signal }).catch(() => ({ rows: [] }));
  return new Map(rowsOf(usage.rows ? { data: usage.rows } : usage).map((row) => [row.key, row]));
}

/** When a key was last used: `at`, or in the hour that starts at `hour`, if the server recorded only usage by hour. */
function lastUsed(at, hour) {
  if (at) return when(at, { ago: true });
  if (!hour) return h('span', { class: 'muted' }, 'never');
  const end = new Date(hour).getTime() + HOUR_MS;
  return end > Date.now() ? 'this hour' : when(end, { ago: true });
}

const nameList = (names, every) =>
  names === null || names === undefined || names === 'all'
    ? every
    : (Array.isArray(names) ? names : (names.only ?? [])).join(', ') || 'none';

function state(key) {
  if (key.revoked)
    return [badge('revoked', 'bad'), h('div', { class: 'small muted' }, when(key.revoked, { ago: true }))];
  if (key.expires && new Date(key.expires) < new Date()) return badge('expired', 'warn');
  if (key.former_until && new Date(key.former_until) > new Date())
    return [
      badge('active', 'good'),
      h('div', { class: 'small muted' }, 'former secret until ', when(key.former_until)),
    ];
  return badge('active', 'good');
}

function keyActs(key, draw) {
  if (key.revoked) return null;
  return h(
    'div',
    { class: 'acts end' },
    may('GET /requests') &&
      h(
        'a',
        { class: 'button small quiet', href: `#/requests?key=${encodeURIComponent(key.id)}` },
        'Requests',
      ),
    may('PATCH /keys/{id}') &&
      button('Limits', () => editLimits(`keys/${segment(key.id)}`, key.name, key.limits, draw), {
        kind: 'small',
      }),
    may('POST /keys/{id}/rotate') && button('Rotate', () => rotate(key, draw), { kind: 'small' }),
    may('POST /keys/{id}/revoke') && button('Revoke', () => revoke(key, draw), { kind: 'small' }),
  );
}

/** Gives a key another secret, which is shown once. */
async function rotate(key, draw) {
  const rotated = await formDialog(`Rotate “${key.name}”`, {
    submit: 'Rotate',
    intro: 'The key keeps its id, limits and usage, and gets another secret.',
    fields: {
      hours: field('Hours', {
        kind: 'number',
        value: 24,
        required: true,
        hint: 'For how long the former secret still works. 0 ends it at once.',
      }),
    },
    act: ({ hours }) =>
      post(`keys/${segment(key.id)}/rotate`, { overlap_seconds: Math.round(Number(hours) * 3600) }),
  });
  if (rotated?.secret) await showSecret('The key’s new secret', rotated.secret);
  draw();
}

async function revoke(key, draw) {
  if (
    !(await confirm(
      `Revoke “${key.name}”?`,
      `From then on, requests with ${key.id} are refused. This cannot be undone. Programs that use the key need another one.`,
      'Revoke',
    ))
  )
    return;
  try {
    const revoked = await post(`keys/${segment(key.id)}/revoke`);
    toast(
      revoked?.durability && revoked.durability !== 'written'
        ? `Revoked, but not on disk yet: ${revoked.why ?? revoked.durability}.`
        : 'Revoked.',
    );
  } catch (error) {
    toast(`${error.message} ${error.remedy ?? ''}`, 'bad');
  }
  draw();
}

const limitFields = (bounds = {}) => ({
  requests_per_minute: field('Requests a minute', {
    kind: 'number',
    value: bounds.requests_per_minute ?? '',
    placeholder: 'no limit',
  }),
  tokens_per_minute: field('Tokens a minute', {
    kind: 'number',
    value: bounds.tokens_per_minute ?? '',
    placeholder: 'no limit',
    hint: 'Input and output together.',
  }),
  concurrency: field('Concurrent requests', {
    kind: 'number',
    value: bounds.concurrency ?? '',
    placeholder: 'no limit',
    hint: 'In flight at the same time.',
  }),
});

const limitsOf = ({ requests_per_minute, tokens_per_minute, concurrency }) => ({
  requests_per_minute,
  tokens_per_minute,
  concurrency,
});

function editLimits(path, name, now, draw) {
  return formDialog(`Limits of ${name}`, {
    fields: limitFields(now ?? {}),
    submit: 'Set limits',
    intro: 'The limits apply from the next request. An empty field means no limit.',
    act: async (values) => {
      await patch(path, { limits: limitsOf(values) });
      toast('Limits are set.');
      draw();
    },
  });
}

async function newKey(draw) {
  const [projects, models] = await Promise.all([
    fetchAll('projects').catch(() => []),
    fetchAll('models').catch(() => []),
  ]);
  if (projects.length === 0) return toast('There is no project yet: create one first.', 'bad');
  const created = await formDialog('New key', {
    submit: 'Create key',
    fields: {
      name: field('Name', {
        required: true,
        placeholder: 'web backend',
        hint: 'The program that uses the key.',
      }),
      project: field('Project', {
        kind: 'select',
        value: initialChoice(
          'project',
          projects.map((project) => project.id),
        ),
        options: projects.map((project) => [project.id, `${project.id} (${project.org})`]),
        changed: (id) => remember('project', id),
      }),
      models: field('Models', {
        placeholder: 'every model',
        hint: `Separate names with commas. Served now: ${
          models
            .map((model) => model.name)
            .slice(0, 6)
            .join(', ') || 'none'
        }.`,
      }),
      endpoints: field('Endpoints', { placeholder: 'every endpoint', hint: ENDPOINTS.join(', ') }),
      ...limitFields(),
      expires: field('Expires', { kind: 'time', hint: 'In local time. Empty: never.' }),
    },
    act: (values) => {
      const body = { project: values.project, name: values.name };
      for (const name of ['models', 'endpoints'])
        if (values[name]) body[name] = values[name].split(/[\s,]+/).filter(Boolean);
      if (Object.values(limitsOf(values)).some((limit) => limit !== null)) body.limits = limitsOf(values);
      if (values.expires) body.expires = values.expires;
      return post('keys', body);
    },
  });
  if (created?.secret)
    await showSecret(
      'The new key',
      created.secret,
      created.unserved?.length ? `Not served now: ${created.unserved.join(', ')}.` : null,
    );
  draw();
}

async function showProjects(draw, signal) {
  const rows = await fetchAll('projects', { signal });
  if (rows.length === 0)
    return empty(
      'There is no project yet.',
      'A project has keys, limits and an optional budget.',
      may('POST /projects') &&
        button('Create a project', () => newProject(draw), { kind: 'primary', sign: 'plus' }),
    );
  return card(
    null,
    { class: 'flush' },
    table(
      'Projects',
      [
        { name: 'Project', sort: (row) => row.id, cell: (row) => h('b', {}, row.id) },
        { name: 'Organisation', sort: (row) => row.org, cell: (row) => row.org },
        { name: 'Limits', cell: (row) => limits(row.limits) },
        { name: 'Records', cell: (row) => recordsOf(row.records) },
        { name: 'Created', sort: (row) => row.created, cell: (row) => when(row.created) },
        {
          name: '',
          num: true,
          cell: (row) =>
            may('PATCH /projects/{id}') &&
            h(
              'div',
              { class: 'acts end' },
              button('Limits', () => editLimits(`projects/${segment(row.id)}`, row.id, row.limits, draw), {
                kind: 'small',
              }),
              button('Records', () => editRecords(row, draw), { kind: 'small' }),
            ),
        },
      ],
      rows,
    ),
  );
}

async function newProject(draw) {
  const orgs = await fetchAll('orgs').catch(() => []);
  await formDialog('New project', {
    submit: 'Create project',
    fields: {
      id: field('Id', {
        required: true,
        placeholder: 'web',
        hint: 'Unique across organisations. Shown in statements.',
      }),
      org: field('Organisation', {
        kind: 'select',
        value: initialChoice(
          'org',
          orgs.map((org) => org.id),
        ),
        options: orgs.map((org) => [org.id, org.id]),
      }),
      ...limitFields(),
    },
    act: async (values) => {
      await post('projects', { id: values.id, org: values.org, ...given(values) });
      toast('The project was created.');
    },
  });
  draw();
}

async function showOrgs(draw, signal) {
  const rows = await fetchAll('orgs', { signal });
  return card(
    null,
    { class: 'flush' },
    table(
      'Organisations',
      [
        { name: 'Organisation', sort: (row) => row.id, cell: (row) => h('b', {}, row.id) },
        { name: 'Limits', cell: (row) => limits(row.limits) },
        { name: 'Regions', cell: (row) => row.regions?.join?.(', ') || 'any region' },
        { name: 'Created', sort: (row) => row.created, cell: (row) => when(row.created) },
        {
          name: '',
          num: true,
          cell: (row) =>
            may('PATCH /orgs/{id}') &&
            h(
              'div',
              { class: 'acts end' },
              button('Limits', () => editLimits(`orgs/${segment(row.id)}`, row.id, row.limits, draw), {
                kind: 'small',
              }),
              button('Regions', () => editRegions(row, draw), { kind: 'small' }),
            ),
        },
      ],
      rows,
    ),
  );
}

function editRegions(org, draw) {
  return formDialog(`Regions for calls of ${org.id}`, {
    submit: 'Set regions',
    fields: {
      regions: field('Regions', {
        value: org.regions?.join?.(', ') ?? '',
        placeholder: 'any region',
        hint: 'Separate names with commas, such as eu. Empty: any region.',
      }),
    },
    act: async ({ regions }) => {
      await patch(`orgs/${segment(org.id)}`, {
        regions: regions ? regions.split(/[\s,]+/).filter(Boolean) : null,
      });
      toast('Regions are set.');
      draw();
    },
  });
}

async function newOrg(draw) {
  await formDialog('New organisation', {
    submit: 'Create organisation',
    fields: {
      id: field('Id', {
        required: true,
        placeholder: 'acme',
        hint: 'An organisation has a balance, which its projects spend.',
      }),
      ...limitFields(),
    },
    act: async (values) => {
      await post('orgs', { id: values.id, ...given(values) });
      toast('The organisation was created.');
    },
  });
  draw();
}

const given = (values) =>
  Object.values(limitsOf(values)).some((limit) => limit !== null) ? { limits: limitsOf(values) } : {};
