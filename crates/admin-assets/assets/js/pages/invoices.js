// Shows final invoices with their texts, and the draft of an organisation's month. Makes invoices final.

import { fetchAll, get, post, segment } from '../api.js';
import { h, put } from '../dom.js';
import { count, money } from '../format.js';
import { listen } from '../live.js';
import { may } from '../session.js';
import { badge, button, card, empty, facts, head, load, toast, when } from '../ui/parts.js';
import { confirm, field, formDialog } from '../ui/dialog.js';
import { table } from '../ui/table.js';

/** Shows the page. */
export async function show(root, { signal }) {
  const draft = h('div');
  const list = h('div');
  const choose =
    may('GET /invoice-draft') &&
    button('Draft of a month', () => chooseMonth(draft, draw, signal), { kind: 'primary' });
  put(
    root,
    head(
      'Invoices',
      'What organisations were charged in a month. A final invoice has a number and never changes.',
      h('div', { class: 'acts' }, choose),
    ),
    draft,
    list,
  );
  function draw() {
    return load(list, () => showList(signal), { signal, lines: 4 });
  }
  await draw();
  listen(
    'changed',
    ({ what }) => what === 'invoices' && !document.querySelector('dialog[open]') && draw(),
    signal,
  );
}

async function showList(signal) {
  const rows = await get('invoices', { signal });
  if (rows.length === 0)
    return empty('There is no final invoice yet.', 'The draft of a month that is over can become final.');
  return card(
    null,
    { class: 'flush' },
    table(
      'Final invoices',
      [
        { name: 'Number', sort: (row) => row.number, cell: (row) => h('b', {}, row.number) },
        { name: 'Organisation', wide: true, sort: (row) => row.org, cell: (row) => row.org },
        { name: 'Month', sort: (row) => row.month, cell: (row) => row.month },
        { name: 'Charged', num: true, cell: (row) => money(row.charged) },
        { name: 'Due', num: true, cell: (row) => money(row.due) },
        { name: 'Final since', sort: (row) => row.created, cell: (row) => when(row.created) },
        {
          name: 'Texts',
          cell: (row) => [text(row, 'html', 'Page'), ' ', text(row, 'csv', 'CSV')],
        },
      ],
      rows,
    ),
  );
}

/** A link to a text of an invoice, which the browser saves. */
const text = (row, format, name) =>
  h(
    'a',
    { href: `/admin/v1/invoices/${segment(row.number)}/${format}`, download: `${row.number}.${format}` },
    name,
  );

async function chooseMonth(draft, draw, signal) {
  const orgs = await fetchAll('orgs', { signal });
  const fields = {
    org: field('Organisation', { kind: 'select', options: orgs.map(({ id }) => [id, id]) }),
    month: field('Month', { required: true, placeholder: '2026-11' }),
  };
  return formDialog('Draft of a month', {
    submit: 'Show',
    fields,
    act: async ({ org, month }) => {
      const invoice = await get('invoice-draft', { query: { org, month }, signal });
      put(draft, showDraft(invoice, draft, draw));
    },
  });
}

function showDraft(invoice, draft, draw) {
  const { totals } = invoice;
  const finish =
    may('POST /invoices') &&
    button('Make it final', () => makeFinal(invoice, draft, draw), { kind: 'primary' });
  return card(
    `${invoice.org}, ${invoice.month}`,
    {},
    badge('draft', 'warn'),
    facts(
      ['Period', `${invoice.from} to ${invoice.to} (${invoice.zone})`],
      ['Calls', count(invoice.ledger.calls)],
      ['Charged', money(totals.charged)],
      ['Rounding to cents', money(totals.rounding_to_cents)],
      ['Net', money(totals.net)],
      ...invoice.taxes.map((tax) => [`Tax ${tax.category} ${tax.percent} %`, money(tax.amount)]),
      ['Free tiers and promotional credit', money(totals.allowance)],
      ['Paid from balance and lots', money(totals.paid)],
      ['Due', money(totals.due)],
    ),
    invoice.lines.length > 0 &&
      table(
        'Lines',
        [
          { name: 'Project', cell: (line) => line.project },
          { name: 'Model', wide: true, cell: (line) => line.model ?? '–' },
          { name: 'Class', cell: (line) => line.class.replaceAll('_', ' ') },
          { name: 'Tokens', num: true, cell: (line) => (line.model ? count(line.quantity) : '–') },
          { name: 'Per million', num: true, cell: (line) => (line.model ? money(line.unit_price) : '–') },
          { name: 'Amount', num: true, cell: (line) => money(line.amount) },
        ],
        invoice.lines,
      ),
    h('div', { class: 'acts' }, finish),
  );
}

async function makeFinal({ org, month }, draft, draw) {
  const sentence = 'It gets the next number, and never changes afterwards.';
  if (!(await confirm(`Make the invoice of ${org} for ${month} final?`, sentence, 'Make it final'))) return;
  try {
    const { number } = await post('invoices', { org, month });
    toast(`${number} is final.`);
    put(draft);
  } catch (error) {
    toast(`${error.message} ${error.remedy ?? ''}`, 'bad');
  }
  draw();
}
