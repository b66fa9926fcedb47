// Full-text search in the book. Fetches the paragraphs of all pages once, for the first search.

import { titleOf } from './book-titles.js';

/** The length of an excerpt, in characters, and the part of it before the first word that was found. */
const SHOWN_CHARS = 140;
const BEFORE_CHARS = 40;
const MAX_RESULTS_OF_PAGE = 2;

let sections = [];
let loading = null;

/** Fetches the paragraphs. A server without the book has none. */
export function loadSections() {
  loading ??= fetch('/docs/words.json', { credentials: 'same-origin' })
    .then((answer) => (answer.ok ? answer.json() : { data: [] }))
    .then((index) => {
      sections = index.data.map(prepared);
    })
    .catch(() => {
      loading = null;
    });
  return loading;
}

/** Ignores case, hyphens and typographic marks: `fallback` finds `fall-back`. */
const folded = (text) =>
  text
    .toLowerCase()
    .replaceAll(/[-\u2010\u2011]/g, '')
    .replaceAll('’', "'");

const prepared = (section) => ({
  ...section,
  page: section.address.split('#')[0],
  fold: folded(section.heading),
  blocks: section.blocks.map((text) => ({ text, fold: folded(text) })),
});

/**
 * Finds the paragraphs and headings that contain every word of a text, the best first. Words in a heading
 * score more than words below it, and whole words more than parts.
 * @returns {{name: string, hint: string, text: string, sign: string, run: () => void}[]}
 */
export function searchSections(text) {
  const words = folded(text).split(/\s+/).filter(Boolean);
  if (words.length === 0 || words.join('').length < 2) return [];
  const found = [];
  for (const [order, section] of sections.entries()) {
    let best = null;
    for (const block of [{ text: '', fold: '' }, ...section.blocks]) {
      if (!words.every((word) => section.fold.includes(word) || block.fold.includes(word))) continue;
      if (!words.some((word) => block.fold.includes(word)) && block.text) continue;
      const score = words.reduce(
        (sum, word) =>
          sum +
          (section.fold.includes(word) ? 4 : 0) +
          (isWhole(block.fold, word) ? 2 : block.fold.includes(word) ? 1 : 0),
        0,
      );
      if (!best || score > best.score) best = { score, block };
    }
    if (best) found.push({ ...best, section, order });
  }
  found.sort((a, b) => b.score - a.score || a.order - b.order);
  const resultsOfPage = new Map();
  return found
    .filter(({ section }) => {
      resultsOfPage.set(section.page, (resultsOfPage.get(section.page) ?? 0) + 1);
      return resultsOfPage.get(section.page) <= MAX_RESULTS_OF_PAGE;
    })
    .map(({ section, block }) => ({
      name: [titleOf(section.page), section.heading].filter(Boolean).join(' › '),
      hint: '',
      text: excerpt(block, words),
      sign: 'book',
      run: () => location.assign(section.address),
    }));
}

function isWhole(fold, word) {
  for (let at = fold.indexOf(word); at >= 0; at = fold.indexOf(word, at + 1)) {
    if (!/[\p{L}\p{N}]/u.test(fold[at - 1] ?? ' ') && !/[\p{L}\p{N}]/u.test(fold[at + word.length] ?? ' '))
      return true;
  }
  return false;
}

/** The part of a paragraph around the first word that was found. */
function excerpt({ text, fold }, words) {
  if (text.length <= SHOWN_CHARS) return text;
  const first = Math.min(...words.map((word) => fold.indexOf(word)).filter((at) => at >= 0), fold.length);
  const from = Math.max(0, Math.min(first, text.length) - BEFORE_CHARS);
  const start = from === 0 ? 0 : text.indexOf(' ', from) + 1;
  return `${start > 0 ? '… ' : ''}${text.slice(start, start + SHOWN_CHARS).trim()}${start + SHOWN_CHARS < text.length ? ' …' : ''}`;
}
