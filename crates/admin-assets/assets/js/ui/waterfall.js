// Draws a call's stages as bars on a time axis. If a part is much shorter than the others, each part has its
// own scale, as in the terminal. The reader can choose one scale for all.

import { h, put } from '../dom.js';
import { duration, percent } from '../format.js';
import { describeStage } from '../stages.js';
import { segmented } from './parts.js';

const NAMES = { client: 'Client', gateway: 'Gateway', engine: 'Engine', back: 'Delivery' };
/** The least weight of a part in the widths, if parts have their own scales. */
const LEAST_SHARE = 0.5;

/** Draws a trace. */
export function waterfall(trace) {
  const stages = (trace.stages ?? []).filter((stage) => stage.duration_us > 0 || !stage.inside);
  const total =
    trace.duration_us || stages.reduce((end, stage) => Math.max(end, stage.start_us + stage.duration_us), 0);
  const node = h('div', { class: 'waterfall' });
  const parts = partsOf(stages, total);
  const uneven = parts.length > 1 && parts.some((part) => (part.end - part.start) / total < 0.1);
  let mode = uneven ? 'parts' : 'one';
  const draw = () =>
    put(
      node,
      h(
        'div',
        { class: 'wf-bar' },
        h(
          'span',
          { class: 'muted small' },
          mode === 'parts' ? 'Each part has its own scale.' : 'One scale for the whole call.',
        ),
        uneven &&
          segmented(
            'Scale',
            [
              ['parts', 'By part'],
              ['one', 'True scale'],
            ],
            mode,
            (value) => {
              mode = value;
              draw();
            },
          ),
      ),
      rows(trace, stages, parts, total, mode === 'parts' ? scaleByPart(parts, total) : (us) => us / total),
    );
  draw();
  return node;
}

/**
 * Splits the call into the parts before, in and after the engine. Ignores nested stages and adds the client's
 * to their neighbours.
 */
function partsOf(stages, total) {
  const parts = [];
  for (const stage of stages) {
    if (stage.inside) continue;
    const group = stage.group === 'client' ? (parts.at(-1)?.group ?? 'gateway') : stage.group;
    const open = parts.at(-1);
    if (open?.group === group) open.end = stage.start_us + stage.duration_us;
    else parts.push({ group, start: open ? open.end : 0, end: stage.start_us + stage.duration_us });
  }
  if (parts.length) parts.at(-1).end = Math.max(parts.at(-1).end, total);
  return parts.filter((part) => part.end > part.start);
}

function scaleByPart(parts, total) {
  const raised = parts.map((part) => Math.max((part.end - part.start) / total, LEAST_SHARE));
  const sum = raised.reduce((a, b) => a + b, 0);
  let from = 0;
  const placed = parts.map((part, at) => {
    const width = raised[at] / sum;
    from += width;
    return { ...part, from: from - width, width };
  });
  return (us) => {
    const part = placed.find((candidate) => us <= candidate.end) ?? placed.at(-1);
    return part.from + (part.width * Math.max(0, us - part.start)) / (part.end - part.start);
  };
}

function rows(trace, stages, parts, total, x) {
  const pct = (share) => `${(share * 100).toFixed(3)}%`;
  const first = trace.time_to_first_token_us;
  const whole = stages.find((stage) => stage.stage === 'receive');
  const firstAt =
    first === null || first === undefined ? null : first + (whole ? whole.start_us + whole.duration_us : 0);
  const axis = h(
    'div',
    { class: 'wf-axis', 'aria-hidden': 'true' },
    parts.map((part) =>
      h(
        'span',
        { class: part.group, style: { left: pct(x(part.start)), width: pct(x(part.end) - x(part.start)) } },
        h('b', {}, NAMES[part.group] ?? part.group),
        ` ${duration(part.end - part.start)}`,
      ),
    ),
  );
  const body = stages.map((stage) => {
    const left = x(stage.start_us);
    const width = Math.max(0, x(Math.min(total, stage.start_us + stage.duration_us)) - left);
    const title = `${stage.stage}: ${duration(stage.duration_us)} from ${duration(stage.start_us)}${stage.inside ? `, inside ${stage.inside}` : ''}\n${describeStage(stage.stage)}`;
    return h(
      'tr',
      { class: stage.inside ? 'inside' : null, title },
      h(
        'th',
        { scope: 'row' },
        stage.inside && h('span', { class: 'muted', 'aria-hidden': 'true' }, '└ '),
        stage.stage,
      ),
      h('td', { class: 'num roomy' }, stage.inside ? '' : duration(stage.start_us)),
      h('td', { class: 'num' }, duration(stage.duration_us)),
      h('td', { class: 'num muted roomy' }, percent(total ? stage.duration_us / total : 0)),
      h(
        'td',
        { class: 'wf-track' },
        h('span', {
          class: ['wf-fill', stage.group, stage.inside && 'inside'].filter(Boolean).join(' '),
          style: { left: pct(left), width: pct(width) },
        }),
        firstAt !== null && h('i', { class: 'wf-first', style: { left: pct(Math.min(1, x(firstAt))) } }),
      ),
    );
  });
  return h(
    'div',
    { class: 'table-wrap', tabindex: 0, role: 'region', 'aria-label': 'Waterfall' },
    h(
      'table',
      { class: 'wf' },
      h('caption', { class: 'off-screen' }, `Stages of the call, ${duration(total)} in total`),
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          h('th', { scope: 'col' }, 'Stage'),
          h('th', { scope: 'col', class: 'num roomy' }, 'Start'),
          h('th', { scope: 'col', class: 'num' }, 'Took'),
          h('th', { scope: 'col', class: 'num roomy' }, 'Share'),
          h('th', { scope: 'col', class: 'wf-track' }, h('span', { class: 'off-screen' }, 'Timeline'), axis),
        ),
      ),
      h('tbody', {}, body),
    ),
    firstAt !== null &&
      h(
        'p',
        { class: 'muted small wf-key' },
        h('i', { class: 'wf-first-key', 'aria-hidden': 'true' }),
        ` first token after ${duration(first)}`,
      ),
  );
}
