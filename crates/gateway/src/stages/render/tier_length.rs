//! The lengths that a caller's tiers allow: prompt and answer together, and the answer. Must not know who assigned them.

use headrace_call_state::Rejection;
use headrace_domain::Code;
use headrace_identity::{TierBound, TierEntitlements};

/// Returns the longest answer in tokens that tiers allow after a prompt of `prompt_tokens`, or [`u32::MAX`] without tiers.
/// `asked` is the length that the caller asks for. A caller that asks for no answer needs no room for one.
///
/// # Errors
/// The prompt, or the answer that is asked for, is longer than a tier allows.
pub(super) fn answer_tokens(
    tiers: Option<&TierEntitlements>,
    prompt_tokens: u64,
    asked: Option<u32>,
) -> Result<u32, Rejection> {
    let Some(TierEntitlements { context, output, .. }) = tiers else { return Ok(u32::MAX) };
    let mut most = u32::MAX;
    if let Some(TierBound { tokens, tier }) = output {
        if let Some(asked) = asked.filter(|asked| asked > tokens) {
            let message = format!(
                "Tier `{tier}` of this key allows an answer of {tokens} tokens, and the call asks for {asked}. Ask for at \
                 most {tokens}, or ask the operator for another tier."
            );
            return Err(Rejection::new(Code::TierLengthExceeded, message).with_param("max_tokens"));
        }
        most = *tokens;
    }
    if let Some(TierBound { tokens, tier }) = context {
        let room = u64::from(*tokens).checked_sub(prompt_tokens).and_then(|room| u32::try_from(room).ok());
        let room = room.filter(|room| *room > 0 || asked == Some(0)).ok_or_else(|| {
            let message = format!(
                "Tier `{tier}` of this key allows {tokens} tokens of prompt and answer together, and the prompt has \
                 {prompt_tokens} tokens. Shorten the prompt, or ask the operator for another tier."
            );
            Rejection::new(Code::TierLengthExceeded, message)
        })?;
        if let Some(asked) = asked.filter(|asked| *asked > room) {
            let message = format!(
                "Tier `{tier}` of this key allows {tokens} tokens of prompt and answer together. The prompt has \
                 {prompt_tokens}, and the call asks for {asked} more. Ask for at most {room}, shorten the prompt, or ask \
                 the operator for another tier."
            );
            return Err(Rejection::new(Code::TierLengthExceeded, message).with_param("max_tokens"));
        }
        most = most.min(room);
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use headrace_domain::TierName;

    use super::*;

    #[test]
    fn an_answer_stays_within_what_tiers_allow() {
        let bound = |tokens: u32| TierBound { tokens, tier: TierName::new("basic").unwrap() };
        let rows = [
            (None, None, 5_000, Some(90_000), Ok(u32::MAX)),
            (None, Some(10), 5_000, None, Ok(10)),
            (None, Some(10), 5_000, Some(10), Ok(10)),
            (None, Some(10), 5_000, Some(11), Err("asks for 11")),
            (Some(100), None, 40, None, Ok(60)),
            (Some(100), Some(10), 40, None, Ok(10)),
            (Some(100), Some(80), 40, None, Ok(60)),
            (Some(100), None, 40, Some(60), Ok(60)),
            (Some(100), None, 40, Some(61), Err("at most 60")),
            (Some(100), None, 99, None, Ok(1)),
            (Some(100), None, 100, None, Err("the prompt has 100 tokens")),
            (Some(100), None, 100, Some(0), Ok(0)),
            (Some(100), None, 101, Some(0), Err("the prompt has 101 tokens")),
            (Some(u32::MAX), None, u64::MAX, None, Err("Shorten the prompt")),
        ];
        for (context, output, prompt, asked, expected) in rows {
            let tiers = TierEntitlements {
                context: context.map(bound),
                output: output.map(bound),
                ..TierEntitlements::default()
            };
            let found = answer_tokens(Some(&tiers), prompt, asked);
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{tiers:?} {prompt} {asked:?}"),
                (Err(rejection), Err(part)) => {
                    let text = &rejection.message;
                    assert!(text.contains(part) && text.contains("Tier `basic`"), "{text}");
                    assert_eq!(rejection.code, Code::TierLengthExceeded);
                }
                (found, expected) => panic!("{found:?} and not {expected:?}: {tiers:?} {prompt} {asked:?}"),
            }
        }
        assert_eq!(answer_tokens(None, u64::MAX, Some(u32::MAX)).unwrap(), u32::MAX);
    }
}
