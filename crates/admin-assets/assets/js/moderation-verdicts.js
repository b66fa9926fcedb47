// What content rules decided about a call: badges for lists, and the view of one request.

import { h } from './dom.js';
import { duration, money } from './format.js';
import { badge, empty } from './ui/parts.js';
import { table } from './ui/table.js';

/** The outcomes of a verdict, as the admin API names them: its name and the kind of its badge. */
export const OUTCOMES = {
  blocked: ['Stopped', 'bad'],
  redacted: ['Redacted', 'warn'],
  flagged: ['Flagged', 'info'],
  dry_run: ['Dry run', ''],
  no_verdict: ['No verdict', 'warn'],
  passed: ['Passed', 'good'],
};
/** The choices of a filter for verdicts. A judge that found nothing made no verdict. */
export const DECIDED = [
  ['any', 'Any'],
  ...Object.entries(OUTCOMES)
    .filter(([outcome]) => outcome !== 'passed')
    .map(([outcome, [name]]) => [outcome, name]),
];
const PLACES = {
  input: 'request',
  answer: 'text of the answer',
  reasoning: 'reasoning',
  tool_calls: 'tool calls',
};
const ACTIONS = { block: 'blocked', redact: 'redacted', no_verdict: 'no_verdict' };

/** The outcome of a verdict in a row or a trace, which have its action. */
export const outcomeOf = (verdict) => ACTIONS[verdict.action] ?? (verdict.dry_run ? 'dry_run' : 'flagged');

/** The badge of an outcome. An unknown outcome is shown as the server writes it. */
export const outcomeBadge = (outcome) => badge(...(OUTCOMES[outcome] ?? [outcome, '']));

/** The name of a part of a call. */
export const placeOf = (place) => PLACES[place] ?? place ?? '–';

/** The verdicts of a row: a badge and the rule for each. */
export const verdictList = (verdicts) =>
  (verdicts ?? []).map((verdict) =>
    h(
      'p',
      { class: 'small' },
      outcomeBadge(outcomeOf(verdict)),
      ' ',
      h('b', {}, verdict.rule),
      h('span', { class: 'muted' }, verdict.place ? ` in the ${placeOf(verdict.place)}` : ''),
    ),
  );

/** Whether a trace has verdicts or questions to judges. */
export const isModerated = (trace) =>
  Boolean(trace.moderation) ||
  [trace.input_moderation, trace.output_moderation, trace.judges].some((list) => list?.length > 0);

/** The verdicts of an explained request: those on the request first. */
export function verdictView(verdicts) {
  if (!verdicts?.length) return empty('No content rule matched.', 'No judge was asked, either.');
  const parts = [
    ['Request', verdicts.filter((verdict) => verdict.place === 'input')],
    ['Answer', verdicts.filter((verdict) => verdict.place !== 'input')],
  ];
  return parts
    .filter(([, list]) => list.length > 0)
    .map(([name, list]) => h('div', { class: 'block' }, h('h3', {}, name), verdictTable(name, list)));
}

function verdictTable(name, verdicts) {
  return table(
    `Verdicts on the ${name.toLowerCase()}`,
    [
      {
        name: 'Rule',
        cell: (verdict) => [
          h('b', {}, verdict.rule),
          h(
            'p',
            { class: 'small muted' },
            [verdict.kind, verdict.judge && `judge ${verdict.judge}`, placeOf(verdict.place)]
              .filter(Boolean)
              .join(' · '),
          ),
        ],
      },
      { name: 'Decided', cell: (verdict) => outcomeBadge(verdict.outcome) },
      { name: 'Took', num: true, cell: (verdict) => duration(verdict.took_us) },
      { name: 'Cost', num: true, cell: (verdict) => money(verdict.cost_dollars) },
      {
        name: 'What happened',
        wide: true,
        cell: (verdict) => [
          h('p', {}, verdict.text),
          h('p', { class: 'small' }, h('b', {}, 'The client saw: '), verdict.client_saw),
          verdict.way_out && h('p', { class: 'small muted' }, verdict.way_out),
        ],
      },
    ],
    verdicts,
  );
}
