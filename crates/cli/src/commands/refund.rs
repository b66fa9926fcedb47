//! `headrace refund`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, RefundView};

use crate::arguments::refund::RefundArgs;
use crate::commands::{execute, unexpected};

/// Gives back a part of a call's charge, or all of it.
pub(crate) fn run(args: RefundArgs) -> ExitCode {
    let RefundArgs { at, hold, amount, reference } = args;
    execute(&at, AdminCommand::Refund { hold, amount, reference }, describe)
}

fn describe(reply: AdminReply) -> String {
    let AdminReply::Refunded(refund) = reply else { return unexpected(&reply) };
    let RefundView { org, charged, amount, left, balance, before, .. } = refund;
    let done = if before {
        format!("{amount} were refunded to organisation {org} before, under this reference; nothing is added")
    } else {
        format!("{amount} refunded to organisation {org}")
    };
    format!("{done}; {left} of the charge of {charged} are left; its balance is {balance}\n")
}
