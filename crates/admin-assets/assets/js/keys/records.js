// What projects record of their calls, and the dialog that sets it.

import { patch, segment } from '../api.js';
import { h } from '../dom.js';
import { toast } from '../ui/parts.js';
import { field, formDialog } from '../ui/dialog.js';

const DAY_S = 86_400;
const LEVELS = [
  ['nothing', 'Nothing', 'times, counts and charges only'],
  ['metadata', 'Metadata', 'labels such as the user'],
  ['redacted', 'Redacted', 'requests and answers without personal data'],
  ['full', 'Full', 'requests and answers as they were sent'],
];

/** Describes in words what a project records. */
export function recordsOf(records) {
  const level = LEVELS.find(([name]) => name === records?.level);
  const parts = [
    level && level[1],
    records?.keep_seconds &&
      `kept ${Number((records.keep_seconds / DAY_S).toFixed(3))} ${records.keep_seconds === DAY_S ? 'day' : 'days'}`,
  ].filter(Boolean);
  return parts.length ? parts.join(' · ') : h('span', { class: 'muted' }, 'as the server');
}

/** Sets what a project records. Calls `draw` after the change. */
export function editRecords(project, draw) {
  const { level, keep_seconds: keep } = project.records ?? {};
  return formDialog(`Records of ${project.id}`, {
    submit: 'Set records',
    intro: 'Applies from the next request. What is already recorded is kept until its time is over.',
    fields: {
      level: field('What is recorded', {
        kind: 'select',
        value: level ?? '',
        options: [
          ['', 'What the server records'],
          ...LEVELS.map(([name, label, sentence]) => [name, `${label}: ${sentence}`]),
        ],
      }),
      days: field('Days', {
        kind: 'number',
        value: keep ? keep / DAY_S : '',
        placeholder: 'the server’s time',
        hint: 'For how long requests and answers are kept.',
      }),
    },
    act: async (values) => {
      const keep_seconds = values.days === null ? null : Math.round(values.days * DAY_S);
      await patch(`projects/${segment(project.id)}`, {
        records: { level: values.level || null, keep_seconds },
      });
      toast('Records are set.');
      draw();
    },
  });
}
