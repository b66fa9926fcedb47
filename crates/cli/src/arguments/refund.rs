//! Arguments of `headrace refund`. Must not know what the command does.

use clap::Args;
use headrace_domain::{HoldId, NanoDollars, RequestId};

use super::shared::ServerArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace refund req_0192... --amount 0.000001 --reference ticket-17   a part\n  headrace refund req_0192... --reference ticket-18                     the rest"
)]
pub(crate) struct RefundArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Request id of the call, as in `x-request-id`
    #[arg(value_name = "REQUEST", value_parser = hold)]
    pub(crate) hold: HoldId,
    /// Dollars, such as 0.50 [default: all that was not refunded before]
    #[arg(long, value_parser = NanoDollars::from_dollars)]
    pub(crate) amount: Option<NanoDollars>,
    /// Reference, such as a ticket. The same refund with the same reference is made only once
    #[arg(long)]
    pub(crate) reference: String,
}

/// Reads the id of a request, or that of its hold.
fn hold(text: &str) -> Result<HoldId, String> {
    let of_request = text.parse::<RequestId>().map(RequestId::hold);
    of_request.or_else(|error| text.parse().map_err(|_| error.to_string()))
}
