// Manages tiers: named sets of limits and entitlements. Assigns them to organisations, projects and keys.

import { fetchAll, post, remove, replace, segment } from '../api.js';
import { h, put } from '../dom.js';
import { count } from '../format.js';
import { listen } from '../live.js';
import { may } from '../session.js';
import { button, card, empty, head, load, toast, when } from '../ui/parts.js';
import { confirm, field, formDialog } from '../ui/dialog.js';
import { table } from '../ui/table.js';

/** Shows the page. */
export async function show(root, { signal }) {
  const body = h('div');
  const draw = () => load(body, () => showTiers(draw, signal), { signal, lines: 5 });
  const create =
    may('POST /tiers') && button('New tier', () => newTier(draw), { kind: 'primary', sign: 'plus' });
  const acts = h('div', { class: 'acts' }, create);
  put(root, head('Tiers', 'What customers of one kind get: models, lengths, reasoning, limits.', acts), body);
  draw();
  listen(
    'changed',
    ({ what }) => what === 'tiers' && !document.querySelector('dialog[open]') && draw(),
    signal,
  );
}

const bound = (tokens) =>
  tokens === null || tokens === undefined ? h('span', { class: 'muted' }, 'no bound') : count(tokens);

function limits(of) {
  const parts = [
    [of?.requests_per_minute, 'requests/min'],
    [of?.tokens_per_minute, 'tokens/min'],
    [of?.concurrency, 'concurrent'],
  ].filter(([value]) => value !== null && value !== undefined);
  if (parts.length === 0) return h('span', { class: 'muted' }, 'none');
  return parts.map(([value, unit]) => `${count(value)} ${unit}`).join(' · ');
}

async function showTiers(draw, signal) {
  const rows = await fetchAll('tiers', { signal });
  if (rows.length === 0)
    return empty(
      'There is no tier yet.',
      'A tier has no effect until it is assigned to an organisation, project or key.',
    );
  return card(
    null,
    { class: 'flush' },
    table(
      'Tiers',
      [
        { name: 'Name', wide: true, sort: (row) => row.name, cell: (row) => h('b', {}, row.name) },
        { name: 'Models', cell: (row) => row.models?.join(', ') ?? 'every model' },
        { name: 'Context', num: true, cell: (row) => bound(row.max_context_tokens) },
        { name: 'Output', num: true, cell: (row) => bound(row.max_output_tokens) },
        { name: 'Reasoning', cell: (row) => (row.reasoning ? 'yes' : 'no') },
        { name: 'Limits', cell: (row) => limits(row.limits) },
        { name: 'Created', sort: (row) => row.created, cell: (row) => when(row.created, { day: true }) },
        {
          name: '',
          num: true,
          cell: (row) =>
            h(
              'div',
              { class: 'acts end' },
              may('PUT /orgs/{id}/tier') && button('Assign', () => assign(row, draw), { kind: 'small' }),
              may('PUT /tiers/{id}') && button('Change', () => change(row, draw), { kind: 'small' }),
              may('DELETE /tiers/{id}') && button('Remove', () => removeTier(row, draw), { kind: 'small' }),
            ),
        },
      ],
      rows,
    ),
  );
}

const ruleFields = (of = {}) => ({
  models: field('Models', {
    value: of.models?.join(', ') ?? '',
    placeholder: 'every model',
    hint: 'Separate names with commas.',
  }),
  max_context_tokens: field('Context', {
    kind: 'number',
    value: of.max_context_tokens ?? '',
    placeholder: 'no bound',
    hint: 'Tokens of a prompt and its answer together.',
  }),
  max_output_tokens: field('Output', {
    kind: 'number',
    value: of.max_output_tokens ?? '',
    placeholder: 'no bound',
    hint: 'Tokens of an answer, reasoning included.',
  }),
  reasoning: field('Reasoning', {
    kind: 'select',
    value: of.reasoning === false ? 'no' : 'yes',
    options: [
      ['yes', 'Calls may ask for it'],
      ['no', 'Calls may not ask for it'],
    ],
  }),
  requests_per_minute: field('Requests a minute', {
    kind: 'number',
    value: of.limits?.requests_per_minute ?? '',
    placeholder: 'no limit',
  }),
  tokens_per_minute: field('Tokens a minute', {
    kind: 'number',
    value: of.limits?.tokens_per_minute ?? '',
    placeholder: 'no limit',
  }),
  concurrency: field('Concurrent requests', {
    kind: 'number',
    value: of.limits?.concurrency ?? '',
    placeholder: 'no limit',
  }),
});

const rulesOf = (values) => ({
  models: values.models ? values.models.split(/[\s,]+/).filter(Boolean) : null,
  max_context_tokens: values.max_context_tokens,
  max_output_tokens: values.max_output_tokens,
  reasoning: values.reasoning === 'yes',
  limits: {
    requests_per_minute: values.requests_per_minute,
    tokens_per_minute: values.tokens_per_minute,
    concurrency: values.concurrency,
  },
});

async function newTier(draw) {
  await formDialog('New tier', {
    submit: 'Create tier',
    fields: { name: field('Name', { required: true, placeholder: 'basic' }), ...ruleFields() },
    act: async (values) => {
      await post('tiers', { name: values.name, rules: rulesOf(values) });
      toast('The tier was created.');
    },
  });
  draw();
}

function change(row, draw) {
  return formDialog(`Rules of ${row.name}`, {
    submit: 'Set rules',
    intro: 'The rules apply from the next request, for all that have the tier.',
    fields: ruleFields(row),
    act: async (values) => {
      await replace(`tiers/${segment(row.name)}`, rulesOf(values));
      toast('The rules are set.');
      draw();
    },
  });
}

async function assign(row, draw) {
  const [orgs, projects] = await Promise.all([
    fetchAll('orgs').catch(() => []),
    fetchAll('projects').catch(() => []),
  ]);
  return formDialog(`Assign ${row.name}`, {
    submit: 'Assign',
    fields: {
      to: field('To', {
        kind: 'select',
        options: [
          ...orgs.map((org) => [`orgs/${segment(org.id)}`, `organisation ${org.id}`]),
          ...projects.map((project) => [`projects/${segment(project.id)}`, `project ${project.id}`]),
        ],
      }),
    },
    act: async ({ to }) => {
      await replace(`${to}/tier`, { tier: row.name });
      toast('Assigned, in place of the tier before.');
      draw();
    },
  });
}

async function removeTier(row, draw) {
  if (!(await confirm(`Remove ${row.name}?`, 'A tier that is assigned cannot be removed.', 'Remove'))) return;
  try {
    await remove(`tiers/${segment(row.name)}`);
    toast('Removed.');
  } catch (error) {
    toast(`${error.message} ${error.remedy ?? ''}`, 'bad');
  }
  draw();
}
