// Draws the Markdown that models write: headings, lists, quotes, tables, code, emphasis and links. HTML in an
// answer stays text, because `dom.js` creates all elements. Pictures become links, since an answer must not
// fetch anything. Knows nothing of the playground.

import { h } from '../dom.js';
import { copyButton } from '../ui/parts.js';

/** Longer texts are shown without formatting. */
const MOST_CHARS = 200_000;
/** The deepest nesting of quotes and lists, and of emphasis. */
const MOST_DEPTH = 6;
/** The longest line below the head of a table, and the longest text of a link. */
const MOST_LINE_CHARS = 1000;
const FENCE = /^ {0,3}(`{3,}|~{3,}) *([\w+#.-]*)/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +(?=\S)/;
const DELIMITERS = /^ *\|? *:?-+:? *(\| *:?-+:? *)*\|? *$/;

/** Converts a text to elements. */
export function markdown(text) {
  if (text.length > MOST_CHARS) return h('div', { class: 'answer-text' }, text);
  return h('div', { class: 'answer-text md' }, blocks(text.split('\n'), 0));
}

function blocks(lines, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (line.trim() === '') at++;
    else if (fence) at = code(lines, at, fence, nodes);
    else if (headingOf(line)) {
      const [level, words] = headingOf(line);
      // Headings of an answer rank below the headings that name the turns.
      nodes.push(h(`h${Math.min(6, level + 2)}`, {}, inline(words, 0)));
      at++;
    } else if (isRule(line)) {
      nodes.push(h('hr'));
      at++;
    } else if (/^ {0,3}>/.test(line) && depth < MOST_DEPTH) {
      const inner = [];
      while (at < lines.length && /^ {0,3}>/.test(lines[at]))
        inner.push(lines[at++].replace(/^ {0,3}> ?/, ''));
      nodes.push(h('blockquote', {}, blocks(inner, depth + 1)));
    } else if (ITEM.test(line) && depth < MOST_DEPTH) at = list(lines, at, nodes, depth);
    else if (isTable(lines, at)) at = table(lines, at, nodes);
    else {
      const from = at++;
      while (at < lines.length && lines[at].trim() !== '' && !begins(lines, at)) at++;
      nodes.push(h('p', {}, inline(lines.slice(from, at).join('\n').trim(), 0)));
    }
  }
  return nodes;
}

/** Whether a line begins a block that ends a paragraph. */
const begins = (lines, at) =>
  FENCE.test(lines[at]) ||
  headingOf(lines[at]) ||
  isRule(lines[at]) ||
  /^ {0,3}>/.test(lines[at]) ||
  ITEM.test(lines[at]) ||
  isTable(lines, at);

const isTable = (lines, at) =>
  lines[at].includes('|') &&
  lines[at + 1]?.includes('-') &&
  lines[at + 1].includes('|') &&
  lines[at + 1].length < MOST_LINE_CHARS &&
  DELIMITERS.test(lines[at + 1].trim());

function isRule(line) {
  const bare = line.replaceAll(' ', '');
  return bare.length >= 3 && '-*_'.includes(bare[0]) && [...bare].every((mark) => mark === bare[0]);
}

function headingOf(line) {
  const marks = /^ {0,3}(#{1,6}) /.exec(line);
  return marks && [marks[1].length, line.slice(marks[0].length).trim()];
}

function code(lines, at, [, fence, language], nodes) {
  const inner = [];
  const closes = (line) => {
    const bare = line.trim();
    return bare.length >= fence.length && [...bare].every((mark) => mark === fence[0]);
  };
  at++;
  while (at < lines.length && !closes(lines[at])) inner.push(lines[at++]);
  const text = inner.join('\n');
  nodes.push(
    h(
      'div',
      { class: 'with-copy' },
      h(
        'pre',
        {
          class: 'code',
          tabindex: 0,
          role: 'group',
          'aria-label': language ? `Code, ${language}` : 'Code',
          data: { language },
        },
        h('code', {}, text),
      ),
      copyButton(text, ''),
    ),
  );
  return at + 1;
}

function list(lines, at, nodes, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const numbered = /\d/.test(mark);
  const items = [];
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length !== indent.length || /\d/.test(found[2]) !== numbered) break;
    const inner = [lines[at].slice(found[0].length)];
    at++;
    while (at < lines.length) {
      const next = lines[at];
      const deeper = next.length - next.trimStart().length > indent.length;
      if (
        next.trim() === ''
          ? !(lines[at + 1] ?? '').startsWith(' '.repeat(indent.length + 2))
          : !deeper && (ITEM.test(next) || begins(lines, at) || lines[at - 1].trim() === '')
      )
        break;
      inner.push(next.replace(new RegExp(`^ {0,${found[0].length}}`), ''));
      at++;
    }
    items.push(inner);
    // A blank line between two items of one list.
    if (lines[at]?.trim() === '' && ITEM.exec(lines[at + 1] ?? '')?.[1].length === indent.length) at++;
  }
  const drawn = items.map((inner) => {
    const made = blocks(inner, depth + 1);
    // An item of one paragraph needs no space around the paragraph.
    return h('li', {}, made[0]?.tagName === 'P' ? [[...made[0].childNodes], made.slice(1)] : made);
  });
  nodes.push(numbered ? h('ol', { start: Number.parseInt(mark, 10) }, drawn) : h('ul', {}, drawn));
  return at;
}

function table(lines, at, nodes) {
  const cells = (line) =>
    line
      .trim()
      .replace(/^\|/, '')
      .replace(/\|$/, '')
      .split('|')
      .map((cell) => cell.trim());
  const heads = cells(lines[at]);
  at += 2;
  const rows = [];
  while (at < lines.length && lines[at].includes('|') && lines[at].trim() !== '')
    rows.push(cells(lines[at++]));
  nodes.push(
    h(
      'div',
      { class: 'table-wrap', tabindex: 0, role: 'group', 'aria-label': 'Table' },
      h(
        'table',
        { class: 'table' },
        h(
          'thead',
          {},
          h(
            'tr',
            {},
            heads.map((cell) => h(cell ? 'th' : 'td', cell ? { scope: 'col' } : {}, inline(cell, 0))),
          ),
        ),
        h(
          'tbody',
          {},
          rows.map((row) =>
            h(
              'tr',
              {},
              heads.map((_, index) => h('td', {}, inline(row[index] ?? '', 0))),
            ),
          ),
        ),
      ),
    ),
  );
  return at;
}

const isWord = (mark) => mark !== undefined && /[\p{L}\p{N}_]/u.test(mark);
// `__` is omitted: it is part of a name more often than it is emphasis.
const PAIRS = [
  ['**', 'strong'],
  ['~~', 'del'],
  ['*', 'em'],
  ['_', 'em'],
];

/**
 * Converts inline Markdown to texts and elements. Remembers marks that are never closed, so that the time
 * stays linear.
 */
function inline(text, depth) {
  const nodes = [];
  const missing = new Set();
  const next = new Map();
  let plain = '';
  const push = (node) => {
    if (plain) nodes.push(plain);
    plain = '';
    nodes.push(node);
  };
  const seek = (mark, from) => {
    if (missing.has(mark)) return -1;
    if ((next.get(mark) ?? -1) >= from) return next.get(mark);
    const found = text.indexOf(mark, from);
    if (found < 0) missing.add(mark);
    else next.set(mark, found);
    return found;
  };
  let at = 0;
  outer: while (at < text.length) {
    const mark = text[at];
    if (mark === '\\' && at + 1 < text.length && /[!-/:-@[-`{-~]/.test(text[at + 1])) {
      plain += text[at + 1];
      at += 2;
      continue;
    }
    if (mark === '`') {
      const run = /^`+/.exec(text.slice(at, at + 16))[0];
      const end = seek(run, at + run.length);
      if (end > 0) {
        push(h('code', {}, text.slice(at + run.length, end).trim()));
        at = end + run.length;
      } else {
        plain += run;
        at += run.length;
      }
      continue;
    }
    if (depth < MOST_DEPTH && '*_~'.includes(mark)) {
      for (const [pair, tag] of PAIRS)
        if (text.startsWith(pair, at)) {
          const from = at + pair.length;
          const opens =
            text[from] !== undefined &&
            !/\s/.test(text[from]) &&
            text[from] !== pair[0] &&
            !(mark === '_' && isWord(text[at - 1]));
          let end = opens ? seek(pair, from + 1) : -1;
          // A double mark does not close a single one, and `_` within a word closes nothing.
          while (
            end > 0 &&
            (/\s/.test(text[end - 1]) ||
              (pair.length === 1 && text[end + 1] === pair) ||
              (mark === '_' && isWord(text[end + pair.length])))
          ) {
            end = text.indexOf(pair, end + (pair.length === 1 && text[end + 1] === pair ? 2 : 1));
            if (end < 0) missing.add(pair);
          }
          if (end > 0) {
            push(h(tag, {}, inline(text.slice(from, end), depth + 1)));
            at = end + pair.length;
          } else {
            plain += pair;
            at += pair.length;
          }
          continue outer;
        }
    }
    if (depth < MOST_DEPTH && (mark === '[' || (mark === '!' && text[at + 1] === '['))) {
      const from = at + (mark === '!' ? 2 : 1);
      const middle = seek('](', from);
      const end = middle > 0 ? seek(')', middle + 2) : -1;
      const address =
        end > 0 && end - middle < MOST_LINE_CHARS * 2
          ? text
              .slice(middle + 2, end)
              .trim()
              .split(/\s/)[0]
          : '';
      if (/^https?:\/\//i.test(address) && middle - from < MOST_LINE_CHARS) {
        push(
          link(
            address,
            mark === '!'
              ? [text.slice(from, middle) || address]
              : inline(text.slice(from, middle), MOST_DEPTH),
          ),
        );
        at = end + 1;
        continue;
      }
    }
    if (mark === 'h' && !isWord(text[at - 1]) && /^https?:\/\//.test(text.slice(at, at + 8))) {
      const address = /^[^\s<>"'`]*/.exec(text.slice(at, at + 2000))[0].replace(/[.,;:!?)\]*_~]+$/, '');
      if (address.length > 10) {
        push(link(address, [address]));
        at += address.length;
        continue;
      }
    }
    plain += mark;
    at++;
  }
  if (plain) nodes.push(plain);
  return nodes;
}

const link = (address, children) =>
  h('a', { href: address, target: '_blank', rel: 'noopener noreferrer nofollow' }, children);
