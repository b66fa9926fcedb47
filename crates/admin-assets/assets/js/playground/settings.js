// The settings of a playground call: account, system prompt, parameters, tools with mocked results, response
// format.

import { h, put } from '../dom.js';
import { field } from '../ui/dialog.js';
import { jsonFault, toolsOf } from './draft.js';

/** Parameters with their own field: name, label, kind, hint. The JSON field takes all others. */
const PARAMETERS = [
  ['temperature', 'Temperature', 'number', '0 to 2. 0 chooses the most likely token'],
  ['top_p', 'Top-p', 'number', 'above 0 to 1'],
  ['max_completion_tokens', 'Max tokens', 'number', 'of the answer'],
  ['seed', 'Seed', 'number', 'same seed, same answer'],
  ['top_k', 'Top-k', 'number', '0: off'],
  ['min_p', 'Min-p', 'number', '0 to 1'],
  ['top_logprobs', 'Alternatives', 'number', 'shown under the pointer, 0 to 20'],
  ['frequency_penalty', 'Frequency penalty', 'number', '−2 to 2'],
  ['presence_penalty', 'Presence penalty', 'number', '−2 to 2'],
  ['repetition_penalty', 'Repetition penalty', 'number', 'above 0 to 2'],
  ['min_tokens', 'Min tokens', 'number', 'of the answer'],
  ['timeout', 'Timeout', 'number', 'seconds to the first token'],
  ['thinking_token_budget', 'Reasoning budget', 'number', 'tokens'],
];
const COUNT_SHOWN_FIRST = 4;
const EXAMPLE_TOOL = [
  {
    type: 'function',
    function: {
      name: 'get_weather',
      description: 'The weather in a city',
      parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    },
  },
];
const EXAMPLE_SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' } },
  required: ['name', 'age'],
  additionalProperties: false,
};

/**
 * The panel of settings. Calls `changed()` after a change of the draft, and `redraw()` if answers must be
 * drawn again.
 * @param {{draft: object, projects: object[], changed: () => void, redraw: () => void}} options
 */
export function settingsPanel({ draft, projects, changed, redraw }) {
  const keepParam = (name) => (value) => {
    draft.params[name] = Number.isNaN(value) ? null : value;
    changed();
  };
  const numbers = PARAMETERS.map(
    ([name, label, kind, hint]) =>
      field(label, {
        kind,
        value: draft.params[name] ?? '',
        placeholder: 'default',
        hint,
        changed: keepParam(name),
      }).node,
  );
  const set = (name) => (value) => {
    draft[name] = value;
    changed();
  };
  return h(
    'div',
    { class: 'pg-settings' },
    projects.length > 0 &&
      field('Charge to project', {
        kind: 'select',
        value: draft.project,
        options: projects.map((project) => [project.id, `${project.id} (${project.org})`]),
        changed: set('project'),
        hint: 'Playground calls are charged like all others.',
      }).node,
    field('System prompt', {
      kind: 'area',
      rows: 3,
      value: draft.system,
      placeholder: 'How the model should answer',
      changed: set('system'),
    }).node,
    h('div', { class: 'fields' }, numbers.slice(0, COUNT_SHOWN_FIRST)),
    field('Stream', { kind: 'check', value: draft.stream, changed: set('stream') }).node,
    field('Show answers as plain text', {
      kind: 'check',
      value: draft.plain,
      hint: 'Otherwise Markdown is formatted.',
      changed: (value) => {
        set('plain')(value);
        redraw();
      },
    }).node,
    section(
      'More parameters',
      Object.entries(draft.params).some(
        ([name, value]) => value && PARAMETERS.findIndex(([id]) => id === name) >= COUNT_SHOWN_FIRST,
      ) || draft.more,
      h(
        'div',
        { class: 'fields' },
        numbers.slice(COUNT_SHOWN_FIRST),
        field('Reasoning effort', {
          kind: 'select',
          value: draft.params.reasoning_effort ?? '',
          options: [
            ['', 'default'],
            ...['none', 'minimal', 'low', 'medium', 'high'].map((effort) => [effort, effort]),
          ],
          changed: keepText(draft, 'reasoning_effort', changed),
        }).node,
        field('Service tier', {
          kind: 'select',
          value: draft.params.service_tier ?? '',
          options: [
            ['', 'default'],
            ['flex', 'flex: runs when nothing waits'],
          ],
          changed: keepText(draft, 'service_tier', changed),
        }).node,
      ),
      field('Stop strings', {
        kind: 'area',
        rows: 2,
        value: draft.params.stop ?? '',
        hint: 'One per line, at most four.',
        changed: keepText(draft, 'stop', changed),
      }).node,
      jsonField(draft, 'more', 'Other parameters', 'A JSON object that is merged into the body.', changed, {
        logit_bias: { 42: -100 },
      }),
    ),
    section('Tools', draft.tools, toolsEditor(draft, changed)),
    section('Response format', draft.format !== 'text', formatFields(draft, changed)),
  );
}

const keepText = (draft, name, changed) => (value) => {
  draft.params[name] = value;
  changed();
};

function section(name, open, ...children) {
  return h(
    'details',
    { class: 'pg-section', open: Boolean(open) },
    h('summary', {}, name),
    h('div', {}, children),
  );
}

/** A field for JSON, which shows syntax errors during typing. */
function jsonField(draft, name, label, hint, changed, example) {
  const faultNode = h('p', { class: 'fault small', role: 'status' });
  const check = () => {
    const fault = jsonFault(draft[name], label);
    faultNode.textContent = fault ?? '';
    area.input.setAttribute('aria-invalid', String(Boolean(fault)));
  };
  const area = field(label, {
    kind: 'area',
    rows: 5,
    value: draft[name],
    hint,
    changed: (value) => {
      draft[name] = value;
      check();
      changed();
    },
  });
  area.input.classList.add('mono');
  const fill = h(
    'button',
    {
      type: 'button',
      class: 'button small quiet',
      on: {
        click: () => {
          draft[name] = JSON.stringify(example, null, 2);
          area.set(draft[name]);
          check();
          changed();
        },
      },
    },
    'Insert an example',
  );
  check();
  return h('div', { class: 'stack' }, area.node, faultNode, !draft[name].trim() && fill);
}

function toolsEditor(draft, changed) {
  const mocks = h('div', { class: 'stack' });
  const choose = field('Tool choice', {
    kind: 'select',
    value: draft.tool_choice,
    options: [
      ['', 'default'],
      ['none', 'none'],
      ['required', 'required: any tool'],
      ...toolsOf(draft).map((tool) => [tool.function?.name, `${tool.function?.name}`]),
    ],
    changed: (value) => {
      draft.tool_choice = value;
      changed();
    },
  });
  const drawMocks = () =>
    put(
      mocks,
      toolsOf(draft).map(
        ({ function: tool }) =>
          tool?.name &&
          field(`${tool.name} answers`, {
            kind: 'area',
            rows: 2,
            value: draft.mocks[tool.name] ?? '',
            placeholder: '{"temp_c": 21}',
            changed: (value) => {
              draft.mocks[tool.name] = value;
              changed();
            },
          }).node,
      ),
    );
  drawMocks();
  return [
    jsonField(
      draft,
      'tools',
      'Functions',
      'A JSON list, as in the API. Tools are not run: you enter their results.',
      () => {
        drawMocks();
        changed();
      },
      EXAMPLE_TOOL,
    ),
    choose.node,
    mocks,
    field('Send results automatically', {
      kind: 'check',
      value: draft.proceed,
      hint: 'Otherwise you see each call first and can change its result.',
      changed: (value) => {
        draft.proceed = value;
        changed();
      },
    }).node,
  ];
}

function formatFields(draft, changed) {
  const schema = jsonField(
    draft,
    'schema',
    'JSON schema',
    'Every token of the answer must match it.',
    changed,
    EXAMPLE_SCHEMA,
  );
  schema.hidden = draft.format !== 'json_schema';
  return [
    field('Format', {
      kind: 'select',
      value: draft.format,
      options: [
        ['text', 'text'],
        ['json_object', 'any JSON object'],
        ['json_schema', 'JSON that matches a schema'],
      ],
      changed: (value) => {
        draft.format = value;
        schema.hidden = value !== 'json_schema';
        changed();
      },
    }).node,
    schema,
  ];
}
