// The start of the console: restores the session or asks the operator to sign in, then starts the router.

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
  onSignedOut(() => current() && askToSignIn('Your session has ended. Sign in again.'));
  window.addEventListener('hashchange', () => LINK.test(location.hash) && useLink());
  if (LINK.test(location.hash)) return useLink();
  try {
    if (await restore()) enter();
    else askToSignIn();
  } catch (error) {
    askToSignIn(null, error);
  }
}

/** Signs in with the one-time link in the address. First removes its secret from the address. */
async function useLink() {
  const link = decodeURIComponent(LINK.exec(location.hash)[1]);
  history.replaceState(null, '', location.pathname);
  try {
    await signIn({ link });
    enter();
  } catch (error) {
    // An operator who has a session and follows a used link gets the page.
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
