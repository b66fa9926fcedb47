// The beginning: signs in if it can, then shows the page that the address names. Knows of pages only where they are.

import { onSignedOut } from './api.js';
import { put } from './dom.js';
import { start } from './router.js';
import { current, restore, signIn } from './session.js';
import { apply } from './settings.js';
import { shell } from './shell.js';
import { signInPage } from './pages/sign-in.js';

const LINK = /^#sign-in=(.+)$/;

async function begin() {
  apply();
  onSignedOut(() => current() && askToSignIn('You were signed out: the session ended.'));
  window.addEventListener('hashchange', () => LINK.test(location.hash) && useLink());
  if (LINK.test(location.hash)) return useLink();
  try {
    if (await restore()) enter();
    else askToSignIn();
  } catch (error) {
    askToSignIn(null, error);
  }
}

/** A one-time link: its secret leaves the address before anything else happens. */
async function useLink() {
  const link = decodeURIComponent(LINK.exec(location.hash)[1]);
  history.replaceState(null, '', location.pathname);
  try {
    await signIn({ link });
    enter();
  } catch (error) {
    // Whoever follows a used link, signed in already, wants the page.
    if (await restore().catch(() => null)) enter();
    else askToSignIn(null, error);
  }
}

function enter() {
  const { node, main, mark } = shell({ leave: () => askToSignIn('You are signed out.') });
  put(document.body, node);
  start(main, mark);
}

function askToSignIn(message, error) {
  start(null);
  put(document.body, signInPage({ message, error, entered: enter }));
}

begin();
