// Manages users, service accounts, groups and SCIM credentials. Shows a secret once and does not store it.

import { fetchAll, patch, post, remove, segment } from '../api.js';
import { h, put } from '../dom.js';
import { count } from '../format.js';
import { initialChoice } from '../last-used.js';
import { listen } from '../live.js';
import { rewrite } from '../router.js';
import { may } from '../session.js';
import { badge, button, card, empty, head, load, tabs, toast, when } from '../ui/parts.js';
import { confirm, field, formDialog, showSecret } from '../ui/dialog.js';
import { table } from '../ui/table.js';

const TABS = [
  ['users', 'Users', 'GET /users'],
  ['service-accounts', 'Service accounts', 'GET /service-accounts'],
  ['groups', 'Groups', 'GET /groups'],
  ['scim', 'Identity providers', 'GET /scim'],
];
const ROLES = [
  ['', 'No role'],
  ['viewer', 'Viewer: reads everything'],
  ['developer', 'Developer: keys, playground'],
  ['billing', 'Billing: money'],
  ['admin', 'Admin: everything but operators'],
  ['owner', 'Owner: everything'],
];
const DAY = { day: true };

/** Shows the page. */
export async function show(root, { query, signal }) {
  const acts = h('div', { class: 'acts' });
  const body = h('div');
  const open = TABS.filter(([, , route]) => may(route));
  let chosen = open.some(([id]) => id === query.get('tab')) ? query.get('tab') : open[0]?.[0];
  put(
    root,
    head('Users', 'The people and programs of organisations. They own keys and end with them.', acts),
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
        open.map(([id, name]) => ({
          id,
          name,
          show: (panel) => load(panel, () => SHOW[id](draw, signal), { signal, lines: 6 }),
        })),
        {
          chosen,
          label: 'What is shown',
          changed: (id) => {
            chosen = id;
            rewrite(`users?tab=${id}`);
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
    ({ what }) => (what === chosen || what === 'users') && !document.querySelector('dialog[open]') && draw(),
    signal,
  );
}

const SHOW = {
  users: showUsers,
  'service-accounts': showServiceAccounts,
  groups: showGroups,
  scim: showScim,
};
const NEW = {
  users: [['New user', 'POST /users', newUser]],
  'service-accounts': [['New service account', 'POST /service-accounts', newServiceAccount]],
  scim: [['New credential', 'POST /scim', newScim]],
};

const name = (row, ...more) => [
  h('b', {}, row.name),
  h('div', { class: 'mono small muted' }, row.id),
  ...more.filter(Boolean).map((text) => h('div', { class: 'small muted' }, text)),
];
const state = (row) => (row.active ? badge('active', 'good') : badge('not active', 'warn'));

async function showUsers(draw, signal) {
  const rows = await fetchAll('users', { signal });
  if (rows.length === 0)
    return empty('There is no user yet.', 'An identity provider can create users by SCIM.');
  return card(
    null,
    { class: 'flush' },
    table(
      'Users',
      [
        { name: 'Name', wide: true, sort: (row) => row.name, cell: (row) => name(row, row.email) },
        { name: 'Organisation', sort: (row) => row.org, cell: (row) => row.org },
        {
          name: 'Role',
          sort: (row) => row.effective_role ?? '',
          cell: (row) => [
            row.effective_role ? badge(row.effective_role, 'info') : h('span', { class: 'muted' }, 'none'),
            row.groups?.length > 0 && h('div', { class: 'small muted' }, row.groups.join(', ')),
          ],
        },
        { name: 'Created', sort: (row) => row.created, cell: (row) => when(row.created, DAY) },
        { name: 'State', sort: (row) => String(row.active), cell: state },
        {
          name: '',
          num: true,
          cell: (row) =>
            h(
              'div',
              { class: 'acts end' },
              may('PATCH /users/{id}') && button('Role', () => editRole(row, draw), { kind: 'small' }),
              ...accountActs('users', row, draw),
            ),
        },
      ],
      rows,
      { rowClass: (row) => !row.active && 'gone' },
    ),
  );
}

async function showServiceAccounts(draw, signal) {
  const rows = await fetchAll('service-accounts', { signal });
  if (rows.length === 0)
    return empty('There is no service account yet.', 'A program that owns keys of a project.');
  return card(
    null,
    { class: 'flush' },
    table(
      'Service accounts',
      [
        { name: 'Name', wide: true, sort: (row) => row.name, cell: (row) => name(row) },
        {
          name: 'Project',
          sort: (row) => row.project,
          cell: (row) => [row.project, h('div', { class: 'small muted' }, row.org)],
        },
        { name: 'Created', sort: (row) => row.created, cell: (row) => when(row.created, DAY) },
        { name: 'State', sort: (row) => String(row.active), cell: state },
        {
          name: '',
          num: true,
          cell: (row) => h('div', { class: 'acts end' }, ...accountActs('service-accounts', row, draw)),
        },
      ],
      rows,
      { rowClass: (row) => !row.active && 'gone' },
    ),
  );
}

/** The buttons that end an account or let it work again. `path` is `users` or `service-accounts`. */
function accountActs(path, row, draw) {
  const at = `${path}/${segment(row.id)}`;
  return [
    row.active &&
      may(`POST /${path}/{id}/deactivate`) &&
      button(
        'Deactivate',
        () =>
          ask(
            `Deactivate ${row.name}?`,
            'Its keys and tokens are refused, its sessions end, and so do its running calls.',
            'Deactivate',
            () => post(`${at}/deactivate`),
            draw,
          ),
        { kind: 'small' },
      ),
    !row.active &&
      may(`POST /${path}/{id}/activate`) &&
      button('Activate', () => act(() => post(`${at}/activate`), 'Active.', draw), { kind: 'small' }),
    may(`DELETE /${path}/{id}`) &&
      button(
        'Remove',
        () =>
          ask(
            `Remove ${row.name}?`,
            'Its keys stay refused for good. This cannot be undone.',
            'Remove',
            () => remove(at),
            draw,
          ),
        { kind: 'small' },
      ),
  ];
}

async function ask(title, text, yes, make, draw) {
  if (await confirm(title, text, yes)) await act(make, 'Done.', draw);
}

async function act(make, done, draw) {
  try {
    await make();
    toast(done);
  } catch (error) {
    toast(`${error.message} ${error.remedy ?? ''}`, 'bad');
  }
  draw();
}

const roleField = (value) => field('Role', { kind: 'select', value: value ?? '', options: ROLES });

function editRole(row, draw) {
  return formDialog(`Role of ${row.name}`, {
    submit: 'Set role',
    intro: `The user’s own role in ${row.org}. Groups may give another one; the most powerful counts.`,
    fields: { role: roleField(row.role) },
    act: async ({ role }) => {
      await patch(`users/${segment(row.id)}`, { role: role || null });
      toast('The role is set.');
      draw();
    },
  });
}

async function orgField() {
  const orgs = await fetchAll('orgs').catch(() => []);
  const ids = orgs.map((org) => org.id);
  return field('Organisation', {
    kind: 'select',
    value: initialChoice('org', ids),
    options: ids.map((id) => [id, id]),
  });
}

async function newUser(draw) {
  await formDialog('New user', {
    submit: 'Create user',
    fields: {
      name: field('Name', { required: true, placeholder: 'ann@example.com' }),
      org: await orgField(),
      email: field('E-mail'),
      role: roleField(''),
    },
    act: async ({ name: chosen, org, email, role }) => {
      await post('users', { name: chosen, org, email: email || null, role: role || null });
      toast('The user was created.');
    },
  });
  draw();
}

async function newServiceAccount(draw) {
  const projects = await fetchAll('projects').catch(() => []);
  await formDialog('New service account', {
    submit: 'Create service account',
    fields: {
      name: field('Name', { required: true, placeholder: 'nightly' }),
      project: field('Project', {
        kind: 'select',
        value: initialChoice(
          'project',
          projects.map((project) => project.id),
        ),
        options: projects.map((project) => [project.id, `${project.id} (${project.org})`]),
      }),
    },
    act: async (values) => {
      await post('service-accounts', values);
      toast('The service account was created.');
    },
  });
  draw();
}

async function showGroups(draw, signal) {
  const rows = await fetchAll('groups', { signal });
  if (rows.length === 0) return empty('There is no group yet.', 'Identity providers create groups by SCIM.');
  return card(
    null,
    { class: 'flush' },
    table(
      'Groups',
      [
        { name: 'Name', wide: true, sort: (row) => row.name, cell: (row) => name(row) },
        { name: 'Organisation', sort: (row) => row.org, cell: (row) => row.org },
        { name: 'Members', num: true, sort: (row) => row.members, cell: (row) => count(row.members) },
        { name: 'Role', cell: (row) => (row.role ? badge(row.role, 'info') : 'none') },
        { name: 'Tier', cell: (row) => row.tier ?? 'none' },
        {
          name: '',
          num: true,
          cell: (row) =>
            may('PATCH /groups/{id}') && button('Map', () => mapGroup(row, draw), { kind: 'small' }),
        },
      ],
      rows,
    ),
  );
}

async function mapGroup(row, draw) {
  const tiers = may('GET /tiers') ? await fetchAll('tiers').catch(() => []) : [];
  const fields = { role: roleField(row.role) };
  if (may('GET /tiers'))
    fields.tier = field('Tier', {
      kind: 'select',
      value: row.tier ?? '',
      options: [['', 'No tier'], ...tiers.map((tier) => [tier.name, tier.name])],
    });
  return formDialog(`What ${row.name} gives its members`, {
    submit: 'Set',
    fields,
    act: async (values) => {
      const change = { role: values.role || null };
      if ('tier' in values) change.tier = values.tier || null;
      await patch(`groups/${segment(row.id)}`, change);
      toast('Set.');
      draw();
    },
  });
}

async function showScim(draw, signal) {
  const rows = await fetchAll('scim', { signal });
  if (rows.length === 0)
    return empty(
      'No identity provider keeps users here.',
      'It does so by SCIM, at /scim/v2 of this address, with a credential of its own.',
    );
  return card(
    null,
    { class: 'flush' },
    table(
      'SCIM credentials',
      [
        { name: 'Credential', wide: true, cell: (row) => h('span', { class: 'mono' }, row.id) },
        { name: 'Organisation', sort: (row) => row.org, cell: (row) => row.org },
        { name: 'Issuer', cell: (row) => row.issuer ?? 'none' },
        { name: 'Created', sort: (row) => row.created, cell: (row) => when(row.created, DAY) },
        { name: 'State', cell: (row) => (row.revoked ? badge('revoked', 'bad') : badge('active', 'good')) },
        {
          name: '',
          num: true,
          cell: (row) =>
            !row.revoked &&
            may('DELETE /scim/{id}') &&
            button(
              'Revoke',
              () =>
                ask(
                  'Revoke this credential?',
                  'The identity provider is refused from then on. Users and groups stay.',
                  'Revoke',
                  () => remove(`scim/${segment(row.id)}`),
                  draw,
                ),
              { kind: 'small' },
            ),
        },
      ],
      rows,
      { rowClass: (row) => row.revoked && 'gone' },
    ),
  );
}

async function newScim(draw) {
  const created = await formDialog('New SCIM credential', {
    submit: 'Create credential',
    fields: {
      org: await orgField(),
      issuer: field('Issuer', {
        placeholder: 'none',
        hint: 'The issuer of the users’ tokens, if they call with tokens.',
      }),
    },
    act: ({ org, issuer }) => post('scim', issuer ? { org, issuer } : { org }),
  });
  if (created?.secret) await showSecret('The new credential', created.secret);
  draw();
}
