//! The table of operators' errors: every name that an error of the admin API or of a command can have, with its meaning
//! and the way out. The error pages are written from it. Must not know which code refuses, or the format of an answer.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A row of the table.
struct AdminCodeRow {
    name: &'static str,
    /// HTTP statuses of the error, the usual one first. Empty if it occurs only on the control socket.
    statuses: &'static [u16],
    meaning: &'static str,
    way_out: &'static str,
}

/// A row: variant, name, statuses. Then what happened, in one sentence, and the way out.
macro_rules! codes {
    ($($variant:ident $name:literal [$($status:literal),*] $meaning:literal $way_out:literal;)*) => {
        /// The name of an operator's error. See [`AdminCode::meaning`] for each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum AdminCode {
            $(
                #[doc = $meaning]
                $variant,
            )*
        }

        impl AdminCode {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            const fn row(self) -> &'static AdminCodeRow {
                match self {
                    $(Self::$variant => &AdminCodeRow {
                        name: $name,
                        statuses: &[$($status),*],
                        meaning: $meaning,
                        way_out: $way_out,
                    },)*
                }
            }
        }
    };
}

codes! {
    NotSignedIn "not_signed_in" [401]
        "The request has neither a session nor an operator's key."
        "Open the link that `headrace operators link ID` prints, or send `Authorization: Bearer` with an operator's key.";
    BadCredential "bad_credential" [401]
        "The key or link is not valid: it was never made, was used before, was revoked, or has expired."
        "`headrace operators link ID` makes a new link. A link works once.";
    TooManyAttempts "too_many_attempts" [429]
        "Too many keys or links of this address were wrong."
        "Wait for `Retry-After`. Valid keys and sessions work meanwhile.";
    Role "role" [403]
        "The operator's role does not include this route."
        "The message names the roles that include it. `GET /admin/v1/session` lists the routes of your own role.";
    Csrf "csrf" [403]
        "A session's change came without the session's CSRF token, so that another page may have sent it."
        "Send the header `x-headrace-csrf` with the `csrf` of `GET /admin/v1/session`, or use an operator's key instead of the cookie.";
    Origin "origin" [403]
        "The browser says that a page of another site or origin asked for this."
        "Ask from the console itself. A program that is no browser sends neither `Origin` nor `Sec-Fetch-Site`, and uses a key.";
    Host "host" [421]
        "This listener is not known by the name that it was asked by."
        "Ask by its address or as `localhost`; where it stands behind a name, set `admin.url`.";
    NotFound "not_found" [404]
        "There is no such route or page, or nothing of that name."
        "`GET /admin/v1/openapi.json` lists the routes; ids and names are those of the lists.";
    Method "method" [405]
        "The route is there with other methods."
        "`GET /admin/v1/openapi.json` says which.";
    Invalid "invalid" [400, 422]
        "The request's form is wrong (400), or a value in it is (422); `field` names which, where it is one."
        "Fields that are not known are refused, too. The message says what was expected.";
    TooLarge "too_large" [413]
        "The body has more bytes than this route takes."
        "The message names the bound.";
    TooSlow "too_slow" [408]
        "The body did not come in time."
        "Send it at once; the message names how long it may take.";
    TooManySubscribers "too_many_subscribers" [429]
        "`GET /admin/v1/events` has as many open streams as it allows."
        "Close a page of the console, or try again after `Retry-After`.";
    UnknownOrg "unknown_org" [404]
        "There is no such organisation, or the ledger has no account of it."
        "`headrace orgs list`. An organisation has an account once it has a project: `headrace projects create ID --org ORG`.";
    UnknownProject "unknown_project" [404]
        "There is no such project."
        "`headrace projects list`, or `headrace projects create ID --org ORG`.";
    UnknownKey "unknown_key" [404]
        "There is no key of that id."
        "`headrace keys list`. An id begins with `key_`; it is not the secret.";
    UnknownOperator "unknown_operator" [404]
        "There is no operator of that id who is not revoked."
        "`headrace operators list`.";
    UnknownModel "unknown_model" [404]
        "No model of that name is served."
        "`GET /admin/v1/models` lists those that are.";
    UnknownCheckpoint "unknown_checkpoint" [404]
        "No checkpoint of that name is stored on the server's machine, or several have that name."
        "`GET /admin/v1/checkpoints` lists those that other programs have stored. The message lists the places that were searched, and says how to get one.";
    UnknownRoute "unknown_route" [404]
        "There is no route of that name to several models."
        "`headrace routes` lists them.";
    UnknownUpstream "unknown_upstream" [404]
        "There is no upstream of that name."
        "`headrace upstreams` lists them.";
    Exists "exists" [409]
        "Something of that name exists already."
        "Choose another name, or use the one that exists.";
    LastOwner "last_owner" [409]
        "This is the only owner, and only an owner can make operators."
        "Make another first: `headrace operators create --name NAME --role owner`.";
    ProjectOfAnotherOrg "project_of_another_org" [422]
        "The project belongs to another organisation."
        "`headrace projects list` says to which.";
    ProjectTaken "project_taken" [422]
        "The ledger has a project of that name in another organisation."
        "Choose another name: they are unique across organisations.";
    ProjectNotNamed "project_not_named" []
        "There are several projects and none is called `default`, so that it is not known which one pays."
        "Name a key of your own: `headrace keys create --project PROJECT --name NAME`.";
    Widens "widens" [422]
        "The key would be allowed regions that its organisation is not."
        "`headrace orgs list` shows where an organisation's calls may be; a key can only narrow that.";
    ReferenceUsed "reference_used" [409]
        "Another grant was made under this reference."
        "`headrace credit list` shows it. The same grant under the same reference is made once; for a new one choose another reference.";
    Overflow "overflow" [422]
        "A sum would not fit (± 9.2 billion dollars)."
        "Nothing was moved. Ask for less.";
    LedgerBusy "ledger_busy" [503]
        "The queue of changes that wait for the ledger's disk is full."
        "Nothing was changed. Try again in a moment. If it happens again and again, the disk is too slow.";
    LedgerUnavailable "ledger_unavailable" [503]
        "The ledger cannot be written, or cannot be read."
        "See that the disk has space and the data directory is the server's, then try again.";
    LedgerUndecided "ledger_undecided" [503]
        "The change is in the audit log, and the ledger has not confirmed it yet."
        "See that the disk has space, and do not repeat the change: it is finished as soon as the ledger can be written.";
    LedgerEmptied "ledger_emptied" [500]
        "The ledger is empty, but there are keys of projects that must have had accounts in it: its file was removed or replaced."
        "Stop, and put `ledger.sqlite` back; or, to go on with balances of zero, `headrace ledger open-accounts`.";
    LedgerInconsistent "ledger_inconsistent" [500]
        "The ledger refused to break one of its own rules. Nothing was changed."
        "`headrace ledger verify` checks all of them. Report it.";
    NotRunning "not_running" [503]
        "No server runs on this data directory, and this is asked of a running one."
        "`headrace up`, or `headrace serve`.";
    NotListening "not_listening" [503]
        "No server listens for operators on this data directory, so that a link would lead nowhere."
        "`headrace up`, or `headrace serve --admin-listen 127.0.0.1:8081`.";
    Busy "busy" [503]
        "The server is reading its configuration again, which takes as long as its models take to load."
        "Ask again when it has finished.";
    ConfigRefused "config_refused" [422]
        "The new configuration has faults. The server keeps the former one, and takes nothing of the new one."
        "The message names every fault. `headrace config check` shows every value and where it comes from.";
    NoWords "no_words" [422]
        "The model is served by another server, and its tokenizer is not on this machine."
        "Give `path` beside `targets` in the configuration: a directory with its tokenizer and template.";
    NoFiles "no_files" [422]
        "The model is served by another server, and none of its files are on this machine."
        "Ask that server which files it loads.";
    Refused "refused" [422]
        "The prompt, text or model cannot be shown: a call with it would be refused for the same reason."
        "The message names the reason and the way out.";
    IdempotencyKeyReused "idempotency_key_reused" [422]
        "A call with another body was made with this `Idempotency-Key`."
        "Send a new `Idempotency-Key` with each new call, or repeat the first body.";
    TooManyCalls "too_many_calls" [429]
        "The playground has as many calls in flight as it allows."
        "Stop one, or wait until one has ended.";
    BegunBefore "begun_before" [410]
        "A call was made with this `Idempotency-Key` before, and its answer is no longer kept. It is not made twice."
        "`GET /admin/v1/requests` shows how it ended. To ask once more, send a new `Idempotency-Key`: that is a new call.";
    Stopped "stopped" [409]
        "A call of the playground ended before its answer was whole: an operator stopped it, no page read it, its answer was too long to keep, or its answer broke off."
        "The message names which. The tokens until then are charged, and `GET /admin/v1/requests` shows the call. To ask once more, send a new `Idempotency-Key`: that is a new call.";
    StoreFailed "store_failed" [503]
        "Identities, the audit log or traces could not be read or written. Nothing was changed."
        "See that the disk has space and the data directory is the server's, then try again.";
    WrongSecret "wrong_secret" [500]
        "The data directory's secret is not the one that its keys were made with."
        "Put the file `secrets/key-hash` back that belongs to this data directory: without it no key can be checked.";
    Randomness "randomness" [500]
        "The operating system gave no random numbers, without which no key is made."
        "Try again. If it happens again, the machine has no source of random numbers.";
    Internal "internal" [500]
        "A fault within the server."
        "The message says what is known. Try again, and report it if it happens again.";
    TooLong "too_long" []
        "A command on the control socket is longer than one line of 256 KiB."
        "Send less at once.";
    NotUnderstood "not_understood" []
        "The running server does not understand this command."
        "Use the same version of `headrace` for both.";
    Version "version" []
        "The running server speaks another version on its control socket."
        "Use the same version of `headrace` for both.";
}

impl AdminCode {
    /// Returns the name in answers, which is also the name of its documentation page.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the code with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }

    /// Returns the HTTP statuses of the error, the usual one first. Empty if it occurs only on the control socket.
    pub const fn statuses(self) -> &'static [u16] {
        self.row().statuses
    }

    /// Returns the usual HTTP status. An error that occurs only on the control socket has 500, in case it is sent over
    /// HTTP anyway.
    pub const fn status(self) -> u16 {
        match self.row().statuses {
            [status, ..] => *status,
            [] => 500,
        }
    }

    /// Returns what happened.
    pub const fn meaning(self) -> &'static str {
        self.row().meaning
    }

    /// Returns what to do about it.
    pub const fn way_out(self) -> &'static str {
        self.row().way_out
    }
}

impl fmt::Display for AdminCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for AdminCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for AdminCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| serde::de::Error::custom(format!("there is no code `{name}`")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_is_one_word_stands_there_once_and_is_read_as_it_is_written() {
        let names: BTreeSet<_> = AdminCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), AdminCode::ALL.len());
        for code in AdminCode::ALL {
            assert!(code.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{code}");
            assert!(code.meaning().ends_with('.') && code.way_out().ends_with('.'), "{code}");
            assert!(code.statuses().iter().all(|status| (400..600).contains(status)), "{code}");
            let written = serde_json::to_string(code).unwrap();
            assert_eq!(serde_json::from_str::<AdminCode>(&written).unwrap(), *code);
        }
        assert!(serde_json::from_str::<AdminCode>("\"nonsense\"").is_err());
    }
}
