//! Arguments of `headrace lots` and `headrace free-tiers`. Must not know what the commands do.

use clap::{Args, Subcommand};
use headrace_domain::{BudgetName, ModelName, NanoDollars, OrgId, UnixNanos};
use headrace_ledger::LotId;
use headrace_trace::fixed_moment;

use super::budgets::CountedFlags;
use super::shared::ServerArgs;

#[derive(Debug, Args)]
pub(crate) struct LotsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: LotsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LotsCommand {
    /// List lots and contracts that have not ended
    List {
        /// Only this organisation
        #[arg(long)]
        org: Option<OrgId>,
    },
    /// Add money that ends, is for some models only, or is paid later
    #[command(
        after_help = "Examples:\n  headrace lots add 50 --org default --promotional --ends 2027-01-01\n  headrace lots add 1000 --org default --contract --reference contract-7"
    )]
    Add {
        /// Dollars, such as 25 or 0.50. Of a contract: the most that may be owed
        #[arg(value_parser = NanoDollars::from_dollars)]
        amount: NanoDollars,
        /// Organisation that receives the money
        #[arg(long, default_value = "default")]
        org: OrgId,
        /// The money is a gift, not a payment
        #[arg(long, conflicts_with = "contract")]
        promotional: bool,
        /// Calls are paid later: they add to what the organisation owes
        #[arg(long)]
        contract: bool,
        /// First day or moment, such as 2026-12-01 (UTC) [default: now]
        #[arg(long, value_name = "TIME", value_parser = moment)]
        begins: Option<UnixNanos>,
        /// First day or moment on which it no longer counts [default: never]
        #[arg(long, value_name = "TIME", value_parser = moment)]
        ends: Option<UnixNanos>,
        /// Only for calls of this model; may be given several times
        #[arg(long = "model", value_name = "MODEL")]
        models: Vec<ModelName>,
        /// Reference, such as an invoice. The same lot with the same reference is made only once
        #[arg(long, default_value = "")]
        reference: String,
    },
    /// End a lot; what is left of it is lost
    End {
        /// Lot id, such as lot_17
        lot: LotId,
    },
    /// Record a payment of what an organisation owes under its contracts
    Pay {
        /// Dollars, such as 25 or 0.50
        #[arg(value_parser = NanoDollars::from_dollars)]
        amount: NanoDollars,
        /// Organisation that paid
        #[arg(long, default_value = "default")]
        org: OrgId,
        /// Reference, such as an invoice. The same payment with the same reference is recorded only once
        #[arg(long, default_value = "")]
        reference: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct FreeTiersArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: FreeTiersCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FreeTiersCommand {
    /// List free tiers with their use and what is left
    List,
    /// Set a free tier, or change the one of this name
    #[command(
        after_help = "Examples:\n  headrace free-tiers set daily 20 --measure requests --each key\n  headrace free-tiers set trial 0.50 --each org --model demo-1"
    )]
    Set {
        /// Name
        name: BudgetName,
        /// Dollars such as 0.50, or a whole number of tokens or requests
        amount: String,
        #[command(flatten)]
        rule: FreeTierFlags,
    },
    /// Remove a free tier
    Remove {
        /// Name
        name: BudgetName,
    },
}

/// What a free tier gives, and to whom.
#[derive(Debug, Args)]
pub(crate) struct FreeTierFlags {
    #[command(flatten)]
    pub(crate) counted: CountedFlags,
    /// Window, by the calendar; a week begins on Monday
    #[arg(long, default_value = "day", value_parser = ["hour", "day", "week", "month", "total"])]
    pub(crate) per: String,
    /// Who has a free amount of its own
    #[arg(long, default_value = "org", value_parser = ["key", "user", "project", "org"])]
    pub(crate) each: String,
    /// Only for calls of this model; may be given several times
    #[arg(long = "model", value_name = "MODEL")]
    pub(crate) models: Vec<ModelName>,
}

/// Reads a day or a moment. A time ago, as searches take it, is refused: `7d` would be a time in the past.
fn moment(text: &str) -> Result<UnixNanos, String> {
    fixed_moment(text).ok_or_else(|| {
        "it must be a day such as 2026-12-01, or a moment such as 2026-12-01T12:00:00Z".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lot_begins_and_ends_on_a_day_or_at_a_moment_and_not_some_time_ago() {
        for (text, seconds) in [
            ("2026-12-01", Some(1_796_083_200)),
            ("2026-12-01T12:00:00Z", Some(1_796_126_400)),
            ("2026-12-01T13:00:00+01:00", Some(1_796_126_400)),
            ("7d", None),
            ("12h", None),
            ("2026-13-01", None),
            ("tomorrow", None),
            ("", None),
        ] {
            assert_eq!(moment(text).ok().map(UnixNanos::seconds), seconds, "{text}");
        }
    }
}
