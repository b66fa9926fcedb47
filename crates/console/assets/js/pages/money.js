// Shows balances, spend, holds, prices, margin and statements, and verifies the ledger.

import { fetchAll, get, post, replace, rowsOf, segment } from '../api.js';
import { h, put } from '../dom.js';
import { count, dollars, money, plural, short } from '../format.js';
import { initialChoice } from '../last-used.js';
import { rewrite } from '../router.js';
import { may } from '../session.js';
import { button, card, empty, facts, head, jsonBlock, load, meter, segmented, tabs, toast, when } from '../ui/parts.js';
import { dialog, field, formDialog } from '../ui/dialog.js';
import { table } from '../ui/table.js';
import { DAY_S, HOUR_S, charge, nameBy, spendChart } from '../ui/spend.js';

const TABS = [['balances', 'Balances', 'GET /credit'], ['spend', 'Spend', 'GET /usage'], ['holds', 'Holds', 'GET /holds'], ['prices', 'Prices', 'GET /prices'], ['margin', 'Margin', 'GET /margin'], ['statement', 'Statement', 'GET /statement'], ['ledger', 'Ledger', 'GET /ledger/totals']];
const DAYS = [['1', 'Last day'], ['7', 'Last 7 days'], ['30', 'Last 30 days'], ['90', 'Last 90 days']];

/** Shows the page. */
export async function show(root, { query, signal }) {
  const allowed = TABS.filter(([,, route]) => may(route));
  const body = h('div');
  put(root, head('Money', 'Balances, spend, holds of calls in flight, prices and statements.'), body);
  const draw = (tab) => put(body, tabs(allowed.map(([id, name]) => ({ id, name, show: (panel) => SHOW[id](panel, signal, () => draw(id)) })), { chosen: tab, label: 'What is shown', changed: (id) => rewrite(`money?tab=${id}`) }));
  draw(query.get('tab') ?? allowed[0]?.[0]);
  if (query.get('new') === 'credit') {
    rewrite('money?tab=balances');
    grant(null, () => draw('balances'));
  }
}

const SHOW = { balances, spend, holds, prices, margin, statement, ledger };

function balances(panel, signal, draw) {
  return load(panel, async () => {
    const rows = await fetchAll('credit', { signal });
    if (rows.length === 0) return empty('There is no account yet.', 'Each project has one. Create a project, then grant its organisation credit.');
    return card(null, { class: 'flush' }, table('Balances', [
      { name: 'Organisation', wide: true, sort: (row) => row.org, cell: (row) => h('b', {}, row.org) }, { name: 'Project', sort: (row) => row.project, cell: (row) => row.project },
      { name: 'Available', num: true, sort: (row) => dollars(row.available), cell: (row) => h('b', {}, money(row.available)) }, { name: 'Held', num: true, sort: (row) => dollars(row.held), cell: (row) => money(row.held) },
      { name: 'Balance', num: true, sort: (row) => dollars(row.balance), cell: (row) => money(row.balance) },
      { name: 'Budget', cell: (row) => budgetCell(row.budget) },
      { name: '', num: true, cell: (row) => h('div', { class: 'acts end' },
        may('POST /projects/{id}/credit') && button('Grant', () => grant(row, draw), { kind: 'small' }), may('PUT /projects/{id}/budget') && button('Budget', () => setBudget(row, draw), { kind: 'small' }),
        may('GET /projects/{id}/grants') && button('Grants', () => grants(row, signal), { kind: 'small quiet' })) },
    ], rows));
  }, { signal, lines: 6 });
}

function budgetCell(budget) {
  if (!budget) return h('span', { class: 'muted' }, 'none');
  const share = dollars(budget.spent) / (dollars(budget.limit) || 1);
  return [meter(share, `${money(budget.spent)} of ${money(budget.limit)}`, share > 0.9 ? 'bad' : share > 0.7 ? 'warn' : ''), h('div', { class: 'small muted' }, budget.period === 'month' ? ['per month', budget.resets && [', resets ', when(budget.resets, { seconds: false })]] : 'in total')];
}

async function grant(row, draw) {
  const projects = row ? [row.project] : (await fetchAll('projects').catch(() => [])).map((project) => project.id);
  const done = await formDialog('Grant credit', { submit: 'Grant', intro: row ? `To the balance of ${row.org}, which all of its projects spend.` : 'To the balance of the project’s organisation.', fields: {
    project: field('Project', { kind: 'select', value: initialChoice('project', projects), options: projects.map((id) => [id, id]) }), amount: field('Dollars', { required: true, placeholder: '25.00' }),
    kind: field('Source', { kind: 'select', options: [['paid', 'Paid in by the customer'], ['promotional', 'Promotional']] }),
    reference: field('Reference', { placeholder: 'invoice 17', hint: 'A second grant with the same reference has no effect.' }),
    correct: field('Correction', { kind: 'check', hint: 'Takes the amount back. Give the reason as reference.' }) },
  act: ({ project, ...values }) => post(`projects/${segment(project)}/credit`, { amount: values.amount.replace('$', ''), kind: values.kind, ...(values.reference && { reference: values.reference }), ...(values.correct && { correct: true }) }) });
  if (done) {
    toast(done.before ? 'A grant with this reference exists already. Nothing was added.' : `The balance is ${money(done.balance)} now.`);
    draw();
  }
}

async function setBudget(row, draw) {
  const done = await formDialog(`Budget of ${row.project}`, { submit: 'Set budget', fields: { limit: field('At most', { value: row.budget ? money(row.budget.limit).replace(/[$,]/g, '') : '', placeholder: 'no budget', hint: 'Dollars. Empty removes the budget, and 0 stops the project.' }),
    period: field('Over', { kind: 'select', value: row.budget?.period ?? 'month', options: [['month', 'a calendar month (UTC)'], ['total', 'all time']] }) },
  act: ({ limit, period }) => replace(`projects/${segment(row.project)}/budget`, { limit: limit ? limit.replace('$', '') : null, period }) });
  if (done) { toast('The budget is set.'); draw(); }
}

async function grants(row, signal) {
  return dialog(`Grants to ${row.org}`, () => {
    const place = h('div', { class: 'dialog-body' });
    load(place, async () => {
      const rows = await fetchAll(`projects/${segment(row.project)}/grants`, { signal });
      return rows.length ? table('Grants', [{ name: 'When', cell: (granted) => when(granted.at) }, { name: 'Amount', num: true, cell: (granted) => money(granted.amount) }, { name: 'Kind', cell: (granted) => granted.kind }, { name: 'Reference', wide: true, cell: (granted) => granted.reference }, { name: 'By', cell: (granted) => granted.actor }], rows) : empty('Nothing was granted yet.');
    }, { signal });
    return place;
  }, { wide: true });
}

function spend(panel, signal) {
  let by = 'model';
  let days = '30';
  const body = h('div', { class: 'page-body' });
  const draw = () => load(body, async () => {
    const interval = days === '1' ? 'hour' : 'day';
    const from = new Date(Date.now() - Number(days) * 864e5).toISOString();
    const [parts, time] = await Promise.all([get('usage', { query: { by, from }, signal }), get('usage', { query: { by, interval, from }, signal })]);
    const rows = rowsOf(parts.rows ? { data: parts.rows } : parts);
    if (rows.length === 0) return empty('Nothing was spent in this time.', 'Charges appear here when calls are settled.');
    return [spendChart(rowsOf(time.rows ? { data: time.rows } : time), by, { from, stepS: interval === 'hour' ? HOUR_S : DAY_S, signal }), card(null, { class: 'flush' }, usageTable(rows, by))];
  }, { signal, lines: 8 });
  put(panel, h('div', { class: 'acts bar' }, segmented('By', [['model', 'Model'], ['org', 'Organisation'], ['project', 'Project'], ['key', 'Key'], ['upstream', 'Upstream'], ['user', 'User']], by, (value) => { by = value; draw(); }),
    field('Over', { kind: 'select', value: days, options: DAYS, changed: (value) => { days = value; draw(); } }).node), body);
  draw();
}

function usageTable(rows, by) {
  const most = Math.max(...rows.map((row) => dollars(charge(row))), 1e-12);
  return table(`Spend by ${by}`, [
    { name: by[0].toUpperCase() + by.slice(1), wide: true, sort: (row) => row[by], cell: (row) => [h('b', {}, nameBy(row, by)), by === 'key' && row.key_name && h('div', { class: 'small muted mono' }, row.key)] },
    { name: 'Charged', sort: (row) => dollars(charge(row)), cell: (row) => meter(dollars(charge(row)) / most, money(charge(row))) },
    { name: 'Calls', num: true, sort: (row) => row.calls, cell: (row) => count(row.calls) },
    { name: 'Refused', num: true, sort: (row) => row.refused, cell: (row) => count(row.refused) },
    { name: 'Failed', num: true, sort: (row) => row.failed, cell: (row) => count(row.failed) },
    { name: 'Tokens in', num: true, cell: (row) => short(row.prompt_tokens ?? tokens(row, ['input', 'cached_input', 'cache_write', 'cache_write_1h'])) },
    { name: 'Tokens out', num: true, cell: (row) => short(row.completion_tokens ?? tokens(row, ['output', 'reasoning'])) },
  ], [...rows].sort((a, b) => dollars(charge(b)) - dollars(charge(a))));
}

const tokens = (row, classes) => classes.reduce((sum, name) => sum + Number(row[`${name}_tokens`] ?? row.tokens?.[name] ?? row.usage?.[`${name}_tokens`] ?? 0), 0);

function holds(panel, signal) {
  return load(panel, async () => {
    const rows = await fetchAll('holds', { signal });
    return rows.length ? card(null, { class: 'flush' }, table('Holds', [
      { name: 'Request', cell: (row) => h('a', { class: 'mono small', href: `#/requests/${encodeURIComponent(row.id)}` }, row.id) }, { name: 'Organisation', cell: (row) => row.org }, { name: 'Project', cell: (row) => row.project },
      { name: 'Held', num: true, sort: (row) => dollars(row.amount), cell: (row) => money(row.amount) }, { name: 'Since', cell: (row) => when(row.since) }, { name: 'Expires', cell: (row) => when(row.expires) }], rows))
      : empty('Nothing is held.', 'A running call holds the most that it can cost. The rest is released when it ends.');
  }, { signal });
}

function prices(panel, signal) {
  return load(panel, async () => {
    const rows = await fetchAll('prices', { signal });
    const classes = [['input', 'Input'], ['cached_input', 'Cached input'], ['cache_write', 'Cache write'], ['cache_write_1h', 'Cache write, 1 h'], ['output', 'Output'], ['reasoning', 'Reasoning']].filter(([name]) => rows.some((row) => row[name]));
    return rows.length ? card('Dollars per million tokens', { class: 'flush' }, table('Prices', [{ name: 'Model', wide: true, sort: (row) => row.model, cell: (row) => h('b', {}, row.model) }, { name: 'From', sort: (row) => row.from, cell: (row) => row.from ? when(row.from, { date: 'always' }) : 'the beginning' },
      ...classes.map(([name, label]) => ({ name: label, num: true, sort: (row) => dollars(row[name]), cell: (row) => money(row[name]) }))], rows)) : empty('No model has a price.', 'Prices are set in the configuration, with the day from which they apply.');
  }, { signal });
}

function margin(panel, signal) {
  return load(panel, async () => {
    const margin = await get('margin', { signal });
    const rows = rowsOf(margin.rows ? { data: margin.rows } : margin);
    if (rows.length === 0) return empty('There is no margin yet.', 'The margin is what callers are charged, minus what upstreams charge for the same calls.');
    const by = (margin.by ?? ['org', 'model']).filter((name) => rows[0][name] !== undefined);
    const sum = (sums, name) => sums?.[name] ?? sums?.[`${name}_nano_dollars`];
    return [card(null, { class: 'flush' }, table('Margin', [
      ...by.map((name) => ({ name: name[0].toUpperCase() + name.slice(1), wide: true, sort: (row) => row[name], cell: (row) => h('b', {}, row[name] ?? '–') })),
      { name: 'Calls', num: true, sort: (row) => row.calls, cell: (row) => count(row.calls) },
      ...[['charged', 'Charged'], ['paid', 'Paid upstream'], ['margin', 'Margin']].map(([name, label]) => ({ name: label, num: true, sort: (row) => dollars(sum(row, name)), cell: (row) => money(sum(row, name)) })),
      { name: 'Cost unknown', num: true, cell: (row) => row.cost_unknown?.calls ? [plural(row.cost_unknown.calls, 'call'), h('div', { class: 'small muted' }, `${money(sum(row.cost_unknown, 'charged'))} charged`)] : '–' },
    ], rows)), h('p', { class: 'muted small' }, 'The cost of calls to local engines is unknown. They count under “cost unknown”.')];
  }, { signal });
}

/** The names of token classes in a statement. */
const CLASSES = { input: 'Input', cached_input: 'Input from the cache', cache_write: 'Written to the cache', cache_write_1h: 'Written to the cache, 1 h', output: 'Output', reasoning: 'Reasoning', web_search: 'Web searches' };

/** Formats a month: `2026-11` is November 2026. */
function monthName(month) {
  const at = new Date(`${month}-01T00:00:00Z`);
  return Number.isNaN(at.getTime()) ? month : at.toLocaleDateString('en', { month: 'long', year: 'numeric', timeZone: 'UTC' });
}

function statement(panel, signal) {
  const month = new Date().toISOString().slice(0, 7);
  const place = h('div', { class: 'page-body' });
  const query = { project: '', month };
  const draw = () => query.project && load(place, async () => {
    const statement = await get('statement', { query, signal });
    const lines = statement.lines ?? rowsOf(statement);
    const calls = statement.calls ?? {};
    return [
      h('p', { class: 'sentence' }, `${monthName(statement.month ?? query.month)}: `, h('b', {}, money(statement.total)), ` charged to project ${statement.project ?? query.project}`, statement.org && ` of organisation ${statement.org}`, '. ',
        statement.closed ? 'The month is over: these figures are final.' : 'The month is not over yet: later calls will be added.'),
      facts(['Calls', calls.settled !== undefined && plural(calls.settled, 'call')], ['Completed', calls.settled !== undefined && count(calls.completed)], ['Cancelled by callers', calls.settled !== undefined && count(calls.cancelled)],
        ['Failed', calls.settled !== undefined && count(calls.failed)], ['Not charged, at list price', statement.not_charged && money(statement.not_charged)]),
      lines.length > 0 ? card('Charges by model', { class: 'flush' }, table('Statement', [
        { name: 'Model', wide: true, sort: (line) => line.model, cell: (line) => h('b', {}, line.model ?? '–') }, { name: 'For', sort: (line) => line.class, cell: (line) => CLASSES[line.class] ?? String(line.class ?? '–').replaceAll('_', ' ') },
        { name: 'Tokens', num: true, sort: (line) => line.tokens, cell: (line) => count(line.tokens) }, { name: 'Per million', num: true, cell: (line) => money(line.price_per_million ?? line.price) },
        { name: 'Amount', num: true, sort: (line) => dollars(line.amount), cell: (line) => h('b', {}, money(line.amount)) }], lines))
        : empty('Nothing was charged in this month.', 'Each model and token class has a line here after a call is settled.'),
      statement.days?.length > 0 && card('Day by day (UTC)', { class: 'flush' }, table('Days', [{ name: 'Day', sort: (row) => row.day, cell: (row) => row.day }, { name: 'Charged', num: true, sort: (row) => dollars(row.charged), cell: (row) => money(row.charged) }], statement.days)),
      h('details', { class: 'more' }, h('summary', {}, 'As JSON'), jsonBlock(statement))];
  }, { signal, lines: 6 });
  const bar = h('div', { class: 'acts bar' });
  put(panel, bar, place);
  load(bar, async () => {
    const projects = await fetchAll('projects', { signal });
    query.project = initialChoice('project', projects.map((project) => project.id));
    draw();
    return [field('Project', { kind: 'select', value: query.project, options: projects.map((project) => [project.id, project.id]), changed: (value) => { query.project = value; draw(); } }).node, field('Month (UTC)', { value: month, placeholder: '2026-11', changed: (value) => { if (/^\d{4}-\d\d$/.test(value)) { query.month = value; draw(); } } }).node];
  }, { signal, lines: 1 });
}

function ledger(panel, signal) {
  const verdictBox = h('div');
  const verify = async () => {
    put(verdictBox, h('p', { class: 'muted', role: 'status' }, 'The journal is being replayed…'));
    try {
      const verdict = await post('ledger/verify');
      put(verdictBox, h('div', { class: verdict.ok ? 'notice' : 'notice warn' }, h('b', {}, verdict.ok ? 'Every invariant holds. ' : `${plural(verdict.finding_count, 'finding')}. `), `${plural(verdict.rows, 'row')} replayed, ${plural(verdict.transactions ?? 0, 'transaction')}.`,
        (verdict.findings ?? []).map((finding) => h('p', { class: 'small' }, `Row ${finding.row}: ${finding.what}`))));
    } catch (error) { put(verdictBox, h('p', { class: 'fault' }, error.message)); }
  };
  return load(panel, async () => {
    const totals = await get('ledger/totals', { signal });
    return [h('div', { class: 'tiles' }, [['Available', totals.available], ['Held', totals.held], ['Charged in total', totals.revenue], ['Written off', totals.loss]].map(([name, value]) => h('div', { class: 'tile' }, h('span', { class: 'tile-name' }, name), h('span', { class: 'tile-value' }, money(value)))),
      h('div', { class: 'tile' }, h('span', { class: 'tile-name' }, 'Holds'), h('span', { class: 'tile-value' }, count(totals.open_holds)), h('span', { class: 'tile-note muted small' }, `${count(totals.settled)} settled`))),
    may('POST /ledger/verify') && h('div', { class: 'acts bar' }, button('Verify the ledger', verify, { sign: 'check' }), h('span', { class: 'muted small' }, 'Replays the journal and checks every invariant.')), verdictBox];
  }, { signal });
}
