// The recorded request and answer of a call, and its scores. Shown beside the other views of the request.

import { get, post, segment } from './api.js';
import { h, put } from './dom.js';
import { may } from './session.js';
import { badge, button, empty, facts, jsonBlock, toast, when } from './ui/parts.js';
import { field, formDialog } from './ui/dialog.js';
import { table } from './ui/table.js';

const KINDS = { text: 'Text', reasoning: 'Reasoning', tool_call: 'Tool call' };

/** Shows the recorded request and answer. `id` is a segment of an address. */
export async function contentView(id, signal) {
  const [content, scores] = await Promise.all([recorded(id, signal), scoreList(id, signal)]);
  return [content, scores];
}

async function recorded(id, signal) {
  let content;
  try {
    content = await get(`requests/${id}/content`, { signal });
  } catch (error) {
    if (error.status !== 404) throw error;
    return empty(
      'Nothing is recorded.',
      'The project records no requests and answers, or the time for which they are kept is over.',
    );
  }
  return [
    facts(['Recorded', badge(content.level, 'info')], ['Removed', when(content.expires, { date: 'always' })]),
    h('h3', {}, 'Request'),
    content.request_cut && cut('request'),
    typeof content.request === 'string'
      ? h('pre', { class: 'code', tabindex: 0 }, content.request)
      : jsonBlock(content.request),
    h('h3', {}, 'Answer'),
    content.answer_cut && cut('answer'),
    content.answer.length === 0 && h('p', { class: 'muted' }, 'There is no answer.'),
    content.answer.map((part) =>
      h(
        'div',
        { class: 'block' },
        h(
          'p',
          { class: 'small muted' },
          [KINDS[part.kind] ?? part.kind, part.name, part.choice > 0 && `choice ${part.choice + 1}`]
            .filter(Boolean)
            .join(' · '),
        ),
        h('pre', { class: 'code', tabindex: 0 }, part.text),
      ),
    ),
  ];
}

const cut = (what) =>
  h('p', { class: 'muted small' }, `The end of the ${what} is missing: it was longer than the bound.`);

/** The scores of the call, and a button that adds one. */
async function scoreList(id, signal) {
  const place = h('div', { class: 'block' });
  const draw = async () => {
    const scores = (await get(`requests/${id}/scores`, { signal })).data;
    put(
      place,
      h('h3', {}, 'Scores'),
      scores.length === 0
        ? h('p', { class: 'muted' }, 'There is no score.')
        : table(
            'Scores',
            [
              { name: 'Name', cell: (score) => h('b', {}, score.name) },
              { name: 'Value', num: true, cell: (score) => String(score.value) },
              { name: 'Remark', wide: true, cell: (score) => score.comment },
              { name: 'By', cell: (score) => score.actor },
              { name: 'At', cell: (score) => when(score.at) },
            ],
            scores,
          ),
      may('POST /requests/{id}/scores') && button('Score', () => addScore(id, draw), { kind: 'small' }),
    );
  };
  await draw();
  return place;
}

function addScore(id, draw) {
  return formDialog('Score the request', {
    submit: 'Score',
    intro: 'Replaces the score of the same name.',
    fields: {
      name: field('Name', { required: true, placeholder: 'quality' }),
      value: field('Value', { kind: 'number', required: true, placeholder: '0.8' }),
      comment: field('Remark', {}),
    },
    act: async (values) => {
      await post(`requests/${id}/scores`, values);
      toast('The score is stored.');
      await draw();
    },
  });
}
