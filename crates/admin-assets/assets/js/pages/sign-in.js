// Asks for an operator's key, leads to the identity providers, and explains the sign-in link.

import { h, put } from '../dom.js';
import { providers, signIn } from '../session.js';
import { button, failure } from '../ui/parts.js';
import { field } from '../ui/dialog.js';

/** @param {{message?: string, error?: Error, entered: () => void}} options */
export function signInPage({ message, error, entered }) {
  document.title = 'Sign in · Headrace';
  const key = field('Operator key', {
    kind: 'password',
    name: 'key',
    required: true,
    placeholder: 'hrop-…',
    hint: 'Sent to this server once, and not stored in the browser.',
  });
  const notice = h('div', {}, error && failure(error));
  const send = button('Sign in', null, { kind: 'primary', type: 'submit' });
  const form = h(
    'form',
    {
      class: 'card',
      novalidate: true,
      on: {
        submit: async (event) => {
          event.preventDefault();
          if (send.disabled || !key.value()) return key.input.focus();
          send.disabled = true;
          put(notice);
          try {
            await signIn({ key: key.value() });
            key.set('');
            entered();
          } catch (problem) {
            put(notice, failure(problem));
            key.input.focus();
          } finally {
            send.disabled = false;
          }
        },
      },
    },
    key.node,
    notice,
    send,
  );
  setTimeout(() => key.input.focus());
  const ways = h('div', { class: 'sign-in-providers' });
  providers().then((list) => put(ways, ...list.map(providerLink)));
  return h(
    'main',
    { class: 'sign-in' },
    h(
      'div',
      { class: 'sign-in-brand' },
      h('img', { src: '/icon.svg', alt: '', width: 44, height: 44 }),
      h('h1', {}, 'Headrace'),
      h('p', { class: 'muted' }, message ?? 'Sign in to see what your server does, and why.'),
    ),
    ways,
    form,
    h(
      'div',
      { class: 'sign-in-help muted' },
      h(
        'p',
        {},
        'Just started the server? ',
        h('code', {}, 'headrace up'),
        ' printed a link that signs you in. It works once, for ten minutes.',
      ),
      h(
        'p',
        {},
        'For a new link, run ',
        h('code', {}, 'headrace operators link'),
        ' on the server’s machine.',
      ),
    ),
  );
}

/** The link to the sign-in at an identity provider. The server leads the browser on to the provider. */
const providerLink = ({ name, label }) =>
  h('a', { class: 'button', href: `/admin/v1/sign-in/${encodeURIComponent(name)}` }, `Sign in with ${label}`);
