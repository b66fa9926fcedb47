// Formats numbers, money and times. `settings.js` knows whether times are local or UTC.

import { choice } from './settings.js';

const NONE = '–';
const THIN = '\u202f';

/** Formats a whole number with thin spaces between thousands. */
export function count(n) {
  if (n === null || n === undefined || Number.isNaN(Number(n))) return NONE;
  return String(Math.round(Number(n))).replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
}

/** Formats a number with at most `digits` significant digits. From 10,000 on it has a unit: k, M or G. */
export function short(n, digits = 3) {
  if (n === null || n === undefined || Number.isNaN(Number(n))) return NONE;
  const value = Number(n);
  const magnitude = Math.abs(value);
  for (const [size, unit] of [
    [1e9, 'G'],
    [1e6, 'M'],
    [1e4, 'k'],
  ]) {
    if (magnitude >= size) return trimmed(value / (unit === 'k' ? 1e3 : size), digits) + unit;
  }
  return magnitude >= 1000 ? count(value) : trimmed(value, digits);
}

function trimmed(value, digits) {
  if (value === 0) return '0';
  const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
  return value
    .toFixed(Math.max(0, Math.min(6, digits - whole)))
    .replace(/(\.\d*?)0+$/, '$1')
    .replace(/\.$/, '');
}

/** Formats a duration in microseconds, in a unit of its size. */
export function duration(us) {
  if (us === null || us === undefined) return NONE;
  const value = Number(us);
  if (value === 0) return '0 µs';
  if (Math.abs(value) < 1e3) return `${trimmed(value, 3)} µs`;
  if (Math.abs(value) < 1e6) return `${trimmed(value / 1e3, 3)} ms`;
  if (Math.abs(value) < 6e7) return `${trimmed(value / 1e6, 3)} s`;
  if (Math.abs(value) < 3.6e9) return `${Math.floor(value / 6e7)} min ${Math.round((value % 6e7) / 1e6)} s`;
  if (Math.abs(value) < 8.64e10)
    return `${Math.floor(value / 3.6e9)} h ${Math.round((value % 3.6e9) / 6e7)} min`;
  return `${Math.floor(value / 8.64e10)} d ${Math.round((value % 8.64e10) / 3.6e9)} h`;
}

/** Formats a share between 0 and 1 as a percentage. */
export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return NONE;
  const value = share * 100;
  if (value > 0 && value < 0.1) return '<0.1' + THIN + '%';
  return trimmed(value, value < 10 ? 2 : 3) + THIN + '%';
}

/**
 * Formats money without rounding. Takes a string of dollars, an object with `dollars` or `nano_dollars`, or a
 * number of nano-dollars. Does not use floating point.
 */
export function money(value) {
  const text = dollarText(value);
  if (text === null) return NONE;
  const sign = text.startsWith('-') ? '−' : '';
  const [whole, rest = ''] = text.replace('-', '').split('.');
  const cents = rest.replace(/0+$/, '').padEnd(2, '0');
  return `${sign}$${whole.replace(/\B(?=(\d{3})+(?!\d))/g, ',')}.${cents}`;
}

/** The dollars of a value as a floating-point number. Only for drawing and sorting. */
export function dollars(value) {
  const text = dollarText(value);
  return text === null ? 0 : Number(text);
}

function dollarText(value) {
  if (value === null || value === undefined || value === '') return null;
  if (typeof value === 'object')
    return value.dollars !== undefined ? dollarText(String(value.dollars)) : ofNano(value.nano_dollars);
  if (typeof value === 'number') return ofNano(value);
  const text = String(value).replace('$', '').trim();
  return /^-?\d+(\.\d+)?$/.test(text) ? text : null;
}

function ofNano(nano) {
  if (nano === null || nano === undefined) return null;
  let whole;
  try {
    whole = BigInt(nano);
  } catch {
    return null;
  }
  const negative = whole < 0n;
  const digits = String(negative ? -whole : whole).padStart(10, '0');
  return `${negative ? '-' : ''}${digits.slice(0, -9)}.${digits.slice(-9)}`;
}

/** Formats bytes, in units of 1024. */
export function bytes(n) {
  if (n === null || n === undefined) return NONE;
  let value = Number(n);
  for (const unit of ['B', 'KiB', 'MiB', 'GiB', 'TiB']) {
    if (value < 1024 || unit === 'TiB') return `${trimmed(value, 3)} ${unit}`;
    value /= 1024;
  }
  return NONE;
}

/** Formats a time as `HH:MM:SS`, with the date if it is not today. Local or UTC, as the reader chose. */
export function time(at, { seconds = true, date = 'auto' } = {}) {
  const when = moment(at);
  if (!when) return NONE;
  const utc = choice('clock') === 'utc';
  const part = (local, world) => (utc ? world : local).call(when);
  const two = (n) => String(n).padStart(2, '0');
  const day = `${part(when.getFullYear, when.getUTCFullYear)}-${two(part(when.getMonth, when.getUTCMonth) + 1)}-${two(part(when.getDate, when.getUTCDate))}`;
  const clock =
    `${two(part(when.getHours, when.getUTCHours))}:${two(part(when.getMinutes, when.getUTCMinutes))}` +
    (seconds ? `:${two(part(when.getSeconds, when.getUTCSeconds))}` : '');
  const today = time.today(utc);
  return date === 'never' || (date === 'auto' && day === today) ? clock : `${day} ${clock}`;
}

time.today = (utc) => {
  const now = new Date();
  const two = (n) => String(n).padStart(2, '0');
  return utc
    ? now.toISOString().slice(0, 10)
    : `${now.getFullYear()}-${two(now.getMonth() + 1)}-${two(now.getDate())}`;
};

/** A time in local form with its offset, and in UTC, for a title. */
export function bothTimes(at) {
  const when = moment(at);
  if (!when) return '';
  return `${when.toString().replace(/ \(.*/, '')}\n${when.toISOString()} (UTC)`;
}

/** Formats the distance of a time from now, such as `5 min ago` or `in 2 h`. */
export function ago(at, now = Date.now()) {
  const when = moment(at);
  if (!when) return NONE;
  const s = Math.round((now - when.getTime()) / 1000);
  const span = Math.abs(s);
  const text =
    span < 60
      ? `${span} s`
      : span < 3600
        ? `${Math.round(span / 60)} min`
        : span < 86400
          ? `${Math.round(span / 3600)} h`
          : `${Math.round(span / 86400)} d`;
  return s >= 0 ? `${text} ago` : `in ${text}`;
}

function moment(at) {
  if (at === null || at === undefined || at === '') return null;
  const when = new Date(at);
  return Number.isNaN(when.getTime()) ? null : when;
}

/** A count with its noun: `1 call`, `2 calls`. */
export function plural(n, singular, many = `${singular}s`) {
  return `${count(n)} ${Number(n) === 1 ? singular : many}`;
}
