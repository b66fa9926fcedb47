// Dialogs and forms in the browser's <dialog>, which keeps the focus inside, closes with Escape and restores
// the focus.

import { add, h, put } from '../dom.js';
import { button, copyButton, failure } from './parts.js';

/**
 * Opens a dialog with the content that `build(close)` returns. Resolves with the argument of `close`. If
 * `ask` is set, Escape and the close button show its sentence, with a button that closes.
 */
export function dialog(title, build, { wide, ask } = {}) {
  return new Promise((resolve) => {
    let result;
    let done = false;
    const close = (value) => {
      result = value;
      done = true;
      node.close();
    };
    const question = h('div', { class: 'dialog-asked', role: 'alert' });
    const leave = (event) => {
      if (!ask) return event?.type === 'cancel' || close();
      event?.preventDefault();
      put(
        question,
        h(
          'div',
          { class: 'notice warn' },
          h('p', {}, ask),
          button('Close anyway', () => close(), { kind: 'small' }),
        ),
      );
    };
    const node = h(
      'dialog',
      {
        class: wide ? 'dialog wide' : 'dialog',
        'aria-label': title,
        on: {
          keydown: (event) => ask && event.key === 'Escape' && leave(event),
          cancel: leave,
          // A browser may close the dialog in spite of `preventDefault`, such as after a second Escape.
          close: () => {
            if (ask && !done) {
              node.showModal();
              return leave();
            }
            node.remove();
            resolve(result);
          },
        },
      },
      h(
        'div',
        { class: 'dialog-head' },
        h('h2', {}, title),
        button('', () => leave(), { kind: 'quiet', sign: 'close', title: 'Close' }),
      ),
    );
    add(node, build(close), ask ? question : null);
    document.body.append(node);
    node.showModal();
    (
      node.querySelector('[autofocus], .dialog-body input, .dialog-body select, .dialog-body textarea') ??
      node.querySelector('button')
    )?.focus();
  });
}

/** Asks for confirmation of an act that cannot be undone. Resolves with `true` if the operator confirms. */
export function confirm(title, sentence, action, { kind = 'danger' } = {}) {
  return dialog(title, (close) => [
    h('div', { class: 'dialog-body' }, h('p', {}, sentence)),
    h(
      'div',
      { class: 'dialog-foot' },
      button('Cancel', () => close(false)),
      button(action, () => close(true), { kind, autofocus: true }),
    ),
  ]);
}

let fieldCount = 0;

/**
 * A field with its label and hint. Kinds: text, number, password, select (`options`: [value, text]), area,
 * check, time.
 * @returns {{node: HTMLElement, input: HTMLElement, value: () => any}}
 */
export function field(
  label,
  {
    kind = 'text',
    value = '',
    hint,
    options,
    name,
    placeholder,
    required,
    min,
    step,
    rows,
    list,
    changed,
  } = {},
) {
  const id = `f${++fieldCount}`;
  const common = {
    id,
    name,
    required,
    placeholder,
    autocomplete: 'off',
    spellcheck: 'false',
    'aria-describedby': hint ? `${id}h` : null,
  };
  let input;
  if (kind === 'select')
    input = h(
      'select',
      common,
      (options ?? []).map(([choice, text]) =>
        h('option', { value: choice, selected: String(choice) === String(value) }, text),
      ),
    );
  else if (kind === 'area') input = h('textarea', { ...common, rows: rows ?? 3 });
  else if (kind === 'check') input = h('input', { ...common, type: 'checkbox', checked: Boolean(value) });
  else
    input = h('input', {
      ...common,
      type: kind === 'time' ? 'datetime-local' : kind === 'number' ? 'text' : kind,
      inputmode: kind === 'number' ? 'decimal' : null,
      min,
      step,
      list,
    });
  if (!['select', 'check'].includes(kind)) input.value = value ?? '';
  if (changed)
    input.addEventListener(kind === 'select' || kind === 'check' ? 'change' : 'input', () => changed(read()));
  function read() {
    if (kind === 'check') return input.checked;
    const text = input.value.trim();
    if (kind === 'number') return text === '' ? null : Number(text.replace(/[\s_,]/g, ''));
    if (kind === 'time') return text === '' ? null : new Date(text).toISOString();
    return kind === 'area' ? input.value : text;
  }
  const texts = [h('label', { for: id }, label), hint && h('p', { class: 'hint', id: `${id}h` }, hint)];
  const node =
    kind === 'check'
      ? h('div', { class: 'field check' }, input, h('div', {}, texts))
      : h('div', { class: 'field' }, texts[0], input, texts[1]);
  return {
    node,
    input,
    value: read,
    set(next) {
      if (kind === 'check') input.checked = next;
      else input.value = next ?? '';
    },
  };
}

/**
 * A form in a dialog. If `act(values)` throws, the form shows the error and keeps the input.
 * `fields` are the fields by name, as {@link field} returns them.
 */
export function formDialog(title, { intro, fields, submit, act, kind = 'primary' }) {
  return dialog(title, (close) => {
    const errorBox = h('div');
    const send = button(submit, null, { kind, type: 'submit' });
    const form = h(
      'form',
      {
        on: {
          submit: async (event) => {
            event.preventDefault();
            if (send.disabled) return;
            send.disabled = true;
            put(errorBox);
            try {
              const values = Object.fromEntries(
                Object.entries(fields).map(([name, input]) => [name, input.value()]),
              );
              close((await act(values)) ?? true);
            } catch (error) {
              put(errorBox, failure(error));
              const wrong =
                fields[
                  String(error.field ?? '')
                    .split('.')
                    .pop()
                ];
              wrong?.input.setAttribute('aria-invalid', 'true');
              wrong?.input.focus();
            } finally {
              send.disabled = false;
            }
          },
        },
      },
      h(
        'div',
        { class: 'dialog-body' },
        intro && h('p', { class: 'muted' }, intro),
        Object.values(fields).map((input) => input.node),
        errorBox,
      ),
      h(
        'div',
        { class: 'dialog-foot' },
        button('Cancel', () => close()),
        send,
      ),
    );
    form.setAttribute('novalidate', '');
    return form;
  });
}

/** Shows a secret, which cannot be shown again. */
export function showSecret(title, secret, note) {
  return dialog(
    title,
    (close) => [
      h(
        'div',
        { class: 'dialog-body' },
        h('p', {}, 'Copy it now. It is shown only once, because the server stores only its hash.'),
        h('div', { class: 'secret' }, h('span', {}, secret), copyButton(secret)),
        note && h('p', { class: 'notice warn' }, note),
      ),
      h(
        'div',
        { class: 'dialog-foot' },
        button('I have it', () => close(), { kind: 'primary' }),
      ),
    ],
    { ask: 'The secret is shown only once. If you lose it, create another one.' },
  );
}
