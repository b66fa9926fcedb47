// Prompt tools: the rendered prompt of a call, the tokens of a text, and the check of a model's files.

import { fetchAll, get, post, segment } from '../api.js';
import { add, h, put } from '../dom.js';
import { count } from '../format.js';
import { initialChoice } from '../last-used.js';
import { rewrite } from '../router.js';
import { badge, button, card, empty, facts, failure, head, load, tabs } from '../ui/parts.js';
import { field } from '../ui/dialog.js';
import { renderPrompt, tokenViewOptions } from '../playground/rendered-prompt.js';
import { tokenView } from '../playground/tokens.js';

const EXAMPLE = JSON.stringify(
  {
    messages: [
      { role: 'system', content: 'Answer in one sentence.' },
      { role: 'user', content: 'What is a KV cache?' },
    ],
  },
  null,
  2,
);
const DIALECTS = [
  ['chat', 'OpenAI chat completions'],
  ['messages', 'Anthropic messages'],
  ['responses', 'OpenAI responses'],
];
const LISTS = { chat: 'messages', messages: 'messages', responses: 'input' };

/** Shows the page. */
export async function show(root, { query, signal }) {
  const body = h('div');
  put(
    root,
    head(
      'Prompt tools',
      'What a model sees, what that costs, and faults in its files. No model runs, and nothing is charged.',
    ),
    body,
  );
  const models = await fetchAll('models', { signal });
  if (signal.aborted) return;
  if (models.length === 0)
    return put(body, empty('No model is served.', 'Start the server with one: headrace up --model PATH.'));
  let model =
    models.find((candidate) => candidate.name === query.get('model'))?.name ??
    initialChoice(
      'model',
      models.map((candidate) => candidate.name),
    );
  let chosen = query.get('tab') ?? 'render';
  const address = () => rewrite(`prompt?${new URLSearchParams({ tab: chosen, model })}`);
  const choose = field('Model', {
    kind: 'select',
    value: model,
    options: models.map((candidate) => [candidate.name, candidate.name]),
    changed: (name) => {
      model = name;
      address();
      draw();
    },
  });
  const panels = h('div');
  const list = [
    ['render', 'What it sees', render],
    ['tokenize', 'Tokens of a text', tokenize],
    ['doctor', 'Doctor', doctor],
  ];
  function draw() {
    put(
      panels,
      tabs(
        list.map(([id, name, make]) => ({ id, name, show: (place) => add(place, make(model, signal)) })),
        {
          chosen,
          label: 'Tools',
          changed: (id) => {
            chosen = id;
            address();
          },
        },
      ),
    );
  }
  put(body, h('div', { class: 'prompt-model' }, choose.node), panels);
  draw();
}

/** The body of a call: JSON, a JSON list of messages, or the text of a user message. */
function bodyOf(text, dialect, label) {
  if (!/^\s*[[{]/.test(text)) return { [LISTS[dialect]]: [{ role: 'user', content: text }] };
  try {
    const parsed = JSON.parse(text);
    return Array.isArray(parsed) ? { [LISTS[dialect]]: parsed } : parsed;
  } catch (error) {
    throw Object.assign(new Error(`${label} is not JSON: ${error.message}`), {
      remedy: 'Give the body of a call, its list of messages, or a plain text.',
    });
  }
}

/** A form that shows its result below. */
function tool(fields, submit, ask, ...before) {
  const answer = h('div', { 'aria-live': 'polite' });
  const form = h(
    'form',
    {
      class: 'prompt-form',
      novalidate: true,
      on: {
        submit: async (event) => {
          event.preventDefault();
          put(answer);
          try {
            const result = ask(
              Object.fromEntries(Object.entries(fields).map(([name, input]) => [name, input.value()])),
            );
            await load(answer, () => result, { lines: 6 });
          } catch (error) {
            put(answer, failure(error));
          }
        },
        keydown: (event) => {
          if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) form.requestSubmit();
        },
      },
    },
    before,
    Object.values(fields).map((input) => input.node),
    h('div', { class: 'acts' }, button(submit, null, { type: 'submit', kind: 'primary' })),
  );
  return h('div', { class: 'page-body' }, card(null, null, form), answer);
}

function render(model, signal) {
  const fields = {
    dialect: field('Dialect', { kind: 'select', options: DIALECTS }),
    body: field('The call', {
      kind: 'area',
      rows: 9,
      value: EXAMPLE,
      hint: 'The body of a call, its list of messages, or the text of a user message',
    }),
    after: field('A cached prompt', {
      kind: 'area',
      rows: 2,
      hint: 'Optional. Shows how much of the call comes from the cache',
    }),
  };
  return tool(fields, 'Show', ({ dialect, body, after }) => {
    const call = bodyOf(body, dialect, 'The call');
    const before = after.trim() ? bodyOf(after, dialect, 'The cached prompt') : null;
    return renderPrompt(model, call, { dialect, after: before, signal }).then((report) =>
      card(null, null, tokenView(tokenViewOptions(report))),
    );
  });
}

function tokenize(model, signal) {
  const fields = {
    text: field('Text, or ids separated by commas', { kind: 'area', rows: 5, value: 'naïve café 🙂' }),
    parse: field('Parse control tokens in the text', { kind: 'check' }),
    around: field('Add the tokens that the tokenizer puts around a text', { kind: 'check' }),
  };
  return tool(fields, 'Count', ({ text, parse, around }) => {
    const ids =
      /^[\s[\]\d,]*\d[\s[\]\d,]*$/.test(text) && text.includes(',') ? text.match(/\d+/g).map(Number) : null;
    return post(
      `models/${segment(model)}/tokenize`,
      ids ? { ids } : { text, parse_special: parse, add_special: around },
      { signal },
    ).then((tokenized) =>
      card(
        null,
        null,
        ids && h('pre', { class: 'code wrap', tabindex: 0 }, tokenized.text),
        tokenView(tokenViewOptions(tokenized)),
        h('p', { class: 'muted small' }, `${count(tokenized.bytes)} bytes`),
        tokenized.decoded &&
          h(
            'p',
            { class: 'notice warn' },
            'The tokenizer changes this text. Its tokens decode to: ',
            h('code', {}, tokenized.decoded),
          ),
      ),
    );
  });
}

const SEVERITY = { fault: 'bad', warning: 'warn', note: 'info' };

function doctor(model, signal) {
  const place = h('div', { class: 'page-body' });
  load(
    place,
    async () => {
      const { facts: known, findings } = await get(`models/${segment(model)}/doctor`, { signal });
      const yes = (is) => (is ? 'yes' : 'no');
      return [
        card(
          findings.length ? `${count(findings.length)} findings` : 'Nothing is wrong with it',
          null,
          facts(
            ['Vocabulary', `${count(known.vocabulary)} rows, ${count(known.tokenizer_ids)} ids`],
            ['Context', known.context ? `${count(known.context)} positions` : 'unknown'],
            ['Begins with', known.before.join(' ')],
            ['Opens with', known.opens && h('code', {}, known.opens)],
            ['Ends with', known.ends.join(' ')],
            ['Shows tools', yes(known.shows_tools)],
            ['Tool-call format', known.family],
            ['Reasons', yes(known.thinks)],
          ),
        ),
        findings.map((found) =>
          card(
            null,
            { class: 'finding' },
            h('p', {}, badge(found.severity, SEVERITY[found.severity]), ' ', h('code', {}, found.code)),
            h('p', {}, h('b', {}, found.what)),
            facts(['Evidence', found.evidence], ['Remedy', found.way_out]),
          ),
        ),
      ];
    },
    { signal, lines: 6 },
  );
  return place;
}
