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
        "The request has no valid session or key."
        "Open the link that `headrace operators link ID` prints, or send `Authorization: Bearer` with an operator's key.";
    BadCredential "bad_credential" [401]
        "The key or link is not valid: it was never made, was used before, was revoked, or has expired."
        "`headrace operators link ID` makes a new link. A link works once.";
    TooManyAttempts "too_many_attempts" [429]
        "Too many wrong keys or links came from this address."
        "Wait for `Retry-After`. Valid keys and sessions still work.";
    SignInRefused "sign_in_refused" [403]
        "The identity provider has signed the user in, and no rule gives the user a role here."
        "The message names the claims of the user. Add a rule for one of them to `[[admin.sign_in]]`, or ask the provider \
         to write a claim that a rule names.";
    SignInFailed "sign_in_failed" [400]
        "The sign-in at an identity provider was not completed here: it was begun in another browser, took too long, was \
         refused by the provider, or the provider's answer did not hold."
        "Begin again on the sign-in page. If the error repeats, the message names what was wrong.";
    ProviderUnavailable "provider_unavailable" [503]
        "The identity provider cannot be reached, or does not answer as it should."
        "The message names the address and the cause. Keys and links of operators still work.";
    UnknownProvider "unknown_provider" [404]
        "There is no identity provider of this name for operators."
        "`GET /admin/v1/sign-in` lists the providers. `[[admin.sign_in]]` configures them.";
    Role "role" [403]
        "The operator's role does not include this route."
        "The message names the roles that include it. `GET /admin/v1/session` lists the routes of your own role.";
    Csrf "csrf" [403]
        "A change by a session came without the CSRF token of the session, so another page may have sent the change."
        "Send the header `x-headrace-csrf` with the `csrf` of `GET /admin/v1/session`, or use an operator's key instead of the cookie.";
    Origin "origin" [403]
        "The browser reports that a page of another site or origin sent the request."
        "Use the console itself. A program that is not a browser sends neither `Origin` nor `Sec-Fetch-Site`, and uses a key.";
    Host "host" [421]
        "The listener does not accept requests for this host name."
        "Use the listener's address or `localhost`. If the listener has a host name, set `admin.url`.";
    NotFound "not_found" [404]
        "The route, page or named item does not exist."
        "`GET /admin/v1/openapi.json` lists the routes. The lists have the ids and names.";
    Method "method" [405]
        "The route exists, but not with this method."
        "`GET /admin/v1/openapi.json` lists the methods.";
    Invalid "invalid" [400, 422]
        "The format of the request is wrong (400), or a value in it is not valid (422); `field` names the field, if there is one."
        "The message names what was expected. Unknown fields are also refused.";
    TooLarge "too_large" [413]
        "The body has more bytes than this route accepts."
        "The message names the bound.";
    TooSlow "too_slow" [408]
        "The body did not arrive in time."
        "Send the body at once. The message names the time limit.";
    TooManySubscribers "too_many_subscribers" [429]
        "The maximum number of streams of `GET /admin/v1/events` is open."
        "Close a page of the console, or try again after `Retry-After`.";
    UnknownOrg "unknown_org" [404]
        "The organisation does not exist, or has no account in the ledger."
        "`headrace orgs list` lists organisations. An organisation gets an account with its first project: `headrace \
         projects create ID --org ORG`.";
    UnknownProject "unknown_project" [404]
        "The project does not exist."
        "`headrace projects list` lists projects, and `headrace projects create ID --org ORG` creates one.";
    UnknownKey "unknown_key" [404]
        "The key does not exist."
        "`headrace keys list` lists keys. An id begins with `key_`; it is not the secret.";
    UnknownTier "unknown_tier" [404]
        "The tier does not exist."
        "`headrace tiers list` lists tiers, and `headrace tiers create NAME` creates one.";
    TierInUse "tier_in_use" [409]
        "The tier is assigned, and cannot be removed."
        "The message names what has the tier. `headrace tiers unassign` takes it away, or `headrace tiers assign` gives \
         another one.";
    UnknownInvoice "unknown_invoice" [404]
        "There is no invoice with this number."
        "`headrace invoices list` lists the final ones. A draft has no number.";
    InvoiceExists "invoice_exists" [409]
        "The month has its invoice, which never changes."
        "`headrace invoices show NUMBER` shows it. Later refunds of the month become credit notes.";
    MonthOpen "month_open" [409]
        "The month is not over, so that its invoice cannot become final."
        "`headrace invoices draft` shows it as it is now. A month ends in the time zone of `invoices.zone`, by the ledger's time.";
    UnknownWebhook "unknown_webhook" [404]
        "The webhook does not exist."
        "`[[webhooks]]` of the settings names the endpoints, and `headrace webhooks list` shows them.";
    UnknownBudget "unknown_budget" [404]
        "The ledger has no budget of this name."
        "`headrace budgets list` lists budgets, and `headrace budgets set NAME` makes one.";
    OlderGateway "older_gateway" [409]
        "A live gateway reads older journal formats only, and could not read this change of the ledger."
        "Update all gateways, then try again. `headrace status` lists them with their versions.";
    UnknownAccount "unknown_account" [404]
        "The user, service account, group or SCIM credential does not exist, or was removed."
        "`headrace users list`, `headrace service-accounts list`, `headrace groups list` and `headrace scim list` show the ids.";
    UnknownOperator "unknown_operator" [404]
        "The operator does not exist or was revoked."
        "`headrace operators list` lists operators.";
    UnknownModel "unknown_model" [404]
        "The server serves no model of this name."
        "`GET /admin/v1/models` lists the models.";
    UnknownCheckpoint "unknown_checkpoint" [404]
        "The server's machine has no checkpoint of this name, or has several."
        "`GET /admin/v1/checkpoints` lists the checkpoints that other programs stored. The message lists the searched \
         places, and explains how to get a checkpoint.";
    UnknownRoute "unknown_route" [404]
        "There is no route of this name with several models."
        "`headrace routes` lists the routes.";
    UnknownUpstream "unknown_upstream" [404]
        "The upstream does not exist."
        "`headrace upstreams` lists the upstreams.";
    Exists "exists" [409]
        "The name is already in use."
        "Choose another name, or use what has this name.";
    LastOwner "last_owner" [409]
        "This operator is the only owner, and only an owner can create operators."
        "Create another owner first: `headrace operators create --name NAME --role owner`.";
    ProjectOfAnotherOrg "project_of_another_org" [422]
        "The project belongs to another organisation."
        "`headrace projects list` shows the organisation of each project.";
    ProjectTaken "project_taken" [422]
        "The ledger has a project of this name in another organisation."
        "Choose another name: project names are unique across organisations.";
    ProjectNotNamed "project_not_named" []
        "There are several projects and none is called `default`, so the project that pays is unknown."
        "Create a key for the project: `headrace keys create --project PROJECT --name NAME`.";
    Widens "widens" [422]
        "The key would allow regions that its organisation does not allow."
        "`headrace orgs list` shows the regions of each organisation. A key can only narrow them.";
    ReferenceUsed "reference_used" [409]
        "Another grant or refund has this reference."
        "`headrace credit list` shows grants. The same grant or refund with the same reference is made only once. For a new \
         one, choose another reference.";
    UnknownLot "unknown_lot" [404]
        "The ledger has no lot with this id, or it has ended."
        "`headrace lots list` lists the lots that have not ended. An id begins with `lot_`.";
    UnknownFreeTier "unknown_free_tier" [404]
        "The ledger has no free tier of this name."
        "`headrace free-tiers list` lists free tiers, and `headrace free-tiers set NAME AMOUNT` makes one.";
    UnknownCharge "unknown_charge" [404]
        "The ledger has no charge of this call: no such call has ended, or nothing was charged for it."
        "`headrace requests` lists calls with their charges. A refund takes the id of a call, which begins with `req_`.";
    RefundExceedsCharge "refund_exceeds_charge" [409]
        "The refund is more than what is left of the charge."
        "The message names the charge and what was refunded before. Refund at most the difference.";
    Overflow "overflow" [422]
        "A sum would exceed ± 9.2 billion dollars."
        "Nothing was changed. Use a smaller amount.";
    LedgerBusy "ledger_busy" [503]
        "The queue of changes that wait for the ledger's disk is full."
        "Nothing was changed. Try again in a moment. If the error repeats, the disk is too slow.";
    LedgerUnavailable "ledger_unavailable" [503]
        "The ledger cannot be written or read."
        "Check that the disk has space and that the data directory belongs to the server's user. Then try again.";
    LedgerUndecided "ledger_undecided" [503]
        "The change is in the audit log, and the ledger has not confirmed it yet."
        "Check that the disk has space. Do not repeat the change: the change is finished as soon as the ledger can be written.";
    LedgerEmptied "ledger_emptied" [500]
        "The ledger is empty, but there are keys of projects that must have had accounts. The ledger's file was removed or replaced."
        "Stop the server and restore `ledger.sqlite`. To continue with balances of zero instead, run `headrace ledger open-accounts`.";
    LedgerInconsistent "ledger_inconsistent" [500]
        "The ledger refused a change that would break one of its rules. Nothing was changed."
        "Run `headrace ledger verify`, which checks all rules, and report the error.";
    NotRunning "not_running" [503]
        "No server runs on this data directory, and this command needs a running server."
        "Start a server with `headrace up` or `headrace serve`.";
    NotListening "not_listening" [503]
        "No server on this data directory has an admin listener, so a link would lead nowhere."
        "Start a server with `headrace up`, or `headrace serve --admin-listen 127.0.0.1:8081`.";
    Busy "busy" [503]
        "The server is already reloading its configuration, which takes as long as its models take to load."
        "Try again after the reload.";
    ConfigRefused "config_refused" [422]
        "The new configuration has faults. The server keeps the former configuration, and applies no part of the new one."
        "Correct the faults that the message names. `headrace config check` shows every value and its origin.";
    NoWords "no_words" [422]
        "The model is served by another server, and its tokenizer is not on this machine."
        "Set `path` beside `targets` in the configuration: a directory with the model's tokenizer and template.";
    NoFiles "no_files" [422]
        "The model is served by another server, and none of its files are on this machine."
        "Ask that server which files it loads.";
    Refused "refused" [422]
        "The prompt, text or model cannot be shown, for the same reason for which a call with it would be refused."
        "The message names the reason and the remedy.";
    IdempotencyKeyReused "idempotency_key_reused" [422]
        "A call with another body used this `Idempotency-Key`."
        "Send a new `Idempotency-Key` with each new call, or repeat the first body.";
    TooManyCalls "too_many_calls" [429]
        "The playground has the maximum number of calls in flight."
        "Stop a call, or wait until one has ended.";
    BegunBefore "begun_before" [410]
        "An earlier call used this `Idempotency-Key`, and its answer is no longer stored. The call is not made twice."
        "`GET /admin/v1/requests` shows the outcome of that call. For a new call, send a new `Idempotency-Key`.";
    Stopped "stopped" [409]
        "A call of the playground ended before its answer was whole: an operator stopped it, no page read it, its answer was too long to keep, or its answer broke off."
        "The message names the cause. The tokens until then are charged, and `GET /admin/v1/requests` shows the call. For a \
         new call, send a new `Idempotency-Key`.";
    StoreFailed "store_failed" [503]
        "Identities, the audit log or traces could not be read or written. Nothing was changed."
        "Check that the disk has space and that the data directory belongs to the server's user. Then try again.";
    WrongSecret "wrong_secret" [500]
        "The secret in the data directory did not hash the keys in this directory."
        "Restore the file `secrets/key-hash` that belongs to this data directory. Without this file, no key can be checked.";
    Randomness "randomness" [500]
        "The operating system returned no random numbers, so no key can be created."
        "Try again. If the error repeats, the machine has no source of random numbers.";
    Internal "internal" [500]
        "A fault in the server."
        "Try again, and report the error if it repeats. The message has the known details.";
    TooLong "too_long" []
        "A command on the control socket is longer than one line of 256 KiB."
        "Send a shorter command.";
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
