//! Detects whether a refusal says that the prompt is too long: it names the prompt or its tokens, and says that a bound
//! was exceeded.
//! Every server phrases this in its own way, and new phrases appear. Refusals for rates, body sizes and other
//! parameters contain such words, too, so a list of other words excludes them.

/// Words for the prompt and its size.
const PROMPT: &[&str] =
    &["prompt", "prompts", "context", "input", "inputs", "tokens", "sequence", "conversation"];
/// Words that make a preceding `token` a count of a prompt. A token by itself may be a credential.
const COUNTED: &[&str] = &["limit", "limits", "count", "length", "window", "budget"];
/// Words that, before `tokens`, mean the tokens of the answer.
const OF_ANSWER: &[&str] =
    &["completion", "output", "generated", "new", "thinking", "reasoning", "response", "image"];
/// Words that follow `input` in the general messages of validators.
const OF_VALIDATOR: &[&str] = &["should", "validation", "tag"];

/// Words that say that a bound is exceeded.
const EXCEEDS: &[&str] = &[
    "exceed",
    "exceeds",
    "exceeded",
    "exceeding",
    "overflow",
    "overflows",
    "overflowed",
    "beyond",
    "longer",
];
/// Words that say the same after `too`.
const TOO: &[&str] = &["long", "many", "large", "big", "lengthy"];
/// Words for a bound. They count only if the text contains a number.
const BOUNDS: &[&str] = &["maximum", "max", "limit", "limited", "range"];

/// Words of refusals for other reasons.
const OTHERWISE: &[&str] = &[
    // Rates, credit, credentials.
    "rate",
    "rpm",
    "tpm",
    "rpd",
    "tpd",
    "minute",
    "min",
    "hour",
    "day",
    "month",
    "quota",
    "credit",
    "credits",
    "afford",
    "balance",
    "billing",
    "wait",
    "later",
    "concurrent",
    "concurrency",
    "throttled",
    "throttling",
    "access",
    "auth",
    "bearer",
    "expired",
    // Sizes of bodies and files.
    "byte",
    "bytes",
    "kb",
    "mb",
    "gb",
    "kib",
    "mib",
    "gib",
    "megabytes",
    "kilobytes",
    "body",
    "payload",
    // Other parameters and faults.
    "vocab",
    "vocabulary",
    "array",
    "string",
    "deadline",
    "recursion",
];
/// Words that mark a refusal about files if they come before the word for the prompt.
const MEDIA: &[&str] =
    &["image", "images", "file", "files", "audio", "video", "videos", "document", "documents"];

/// Whether `words` is a refusal of a prompt that is too long.
pub(super) fn is_too_long(words: &str) -> bool {
    let lower = words.to_ascii_lowercase();
    // A name such as `max_tokens` is one word. It is a parameter, not the prompt.
    let words: Vec<&str> = lower
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .collect();
    if words.iter().any(|word| OTHERWISE.contains(word)) {
        return false;
    }
    let at = |index: usize| words.get(index).copied().unwrap_or_default();
    let before = |index: usize| index.checked_sub(1).map_or("", at);
    let named = words.iter().enumerate().position(|(index, word)| match *word {
        "token" => COUNTED.contains(&at(index + 1)),
        "tokens" => !OF_ANSWER.contains(&before(index)),
        "input" => !OF_VALIDATOR.contains(&at(index + 1)) && !MEDIA.contains(&at(index + 1)),
        word => PROMPT.contains(&word),
    });
    let Some(named) = named else { return false };
    if words.iter().take(named).any(|word| MEDIA.contains(word)) {
        return false;
    }
    let too = words.windows(2).any(|pair| matches!(pair, ["too", word] if TOO.contains(word)));
    let fit = words.windows(2).any(|pair| matches!(pair, ["not" | "t" | "cannot", "fit"]));
    let has_number = lower.bytes().any(|byte| byte.is_ascii_digit());
    let compared =
        words.windows(2).any(|pair| matches!(pair, ["at", "most"] | ["less" | "more" | "fewer", "than"]));
    let is_bound =
        words.iter().any(|word| BOUNDS.contains(word)) || lower.contains("<=") || lower.contains('≤');
    let bound = compared || is_bound;
    too || fit || words.iter().any(|word| EXCEEDS.contains(word)) || (has_number && bound)
}

#[cfg(test)]
mod tests {
    use super::is_too_long;

    #[test]
    fn servers_say_that_a_prompt_is_too_long_in_many_words() {
        for words in [
            "Your request exceeded model token limit: 262144 (requested: 291351)",
            "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
            "Prompt exceeds max length",
            "Range of input length should be [1, 129024]",
            "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 4000 `inputs` tokens and 200 `max_new_tokens`",
            "too many tokens: total number of tokens in the prompt exceeds the limit",
            "prompt token count of 150000 exceeds the limit of 128000",
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 140014 tokens. Please reduce the length of the messages.",
            "The decoder prompt (length 1800) is longer than the maximum model length of 1024.",
            "The input (2050 tokens) is longer than the model's context length (2048 tokens).",
            "the request exceeds the available context size, try increasing it",
            "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).",
            "prompt is too long: 215137 tokens > 200000 maximum",
            "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000, decrease input length or `max_tokens` and try again",
            "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 2048 tokens and your request has 100 input tokens (5000 > 2048 - 100).",
            "Input is too long for requested model.",
            "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            "The prompt does not fit into the model's window",
            "Requested tokens (5012) exceed context window of 4096",
            "Please reduce the length of the prompt: at most 8192 tokens",
            "The decoder prompt (length 3000) is longer than the maximum model length of 2048. For image inputs, the number of image tokens depends on the number of images.",
            "Prompt exceeds max length (request id: 20261125)",
            "total tokens of messages exceed the model's maximum sequence length of 4096",
        ] {
            assert!(is_too_long(words), "{words}");
        }
    }

    #[test]
    fn other_refusals_are_not_taken_for_it() {
        for words in [
            // Rates and credit.
            "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000.",
            "Too many tokens, please wait before trying again.",
            "This request would exceed your organization's rate limit of 40,000 input tokens per minute",
            "Requests have exceeded call rate limit of your current pricing tier.",
            "You exceeded your current quota of tokens, please check your plan and billing details.",
            "You requested up to 65536 tokens, but can only afford 3000. Add credits.",
            "Your daily limit of 1000000 tokens per day is exceeded",
            // Bytes and files.
            "Request body too large: the input has more than 10485760 bytes",
            "The payload of the prompt exceeds 20 MB",
            "Too many images in the prompt: at most 20",
            "Input image exceeds the limit of 8000 pixels",
            "Invalid 'input[0].content': string too long. Expected a string with maximum length 10485760.",
            // The answer's bound and other parameters.
            "max_tokens is too large: 100000. This model supports at most 4096 completion tokens, whereas you provided 100000.",
            "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for this model",
            "Range of max_tokens should be [1, 8192]",
            "`max_tokens` must be greater than `thinking.budget_tokens`",
            "min_tokens must be less than or equal to max_tokens=5",
            "Input should be less than or equal to 2",
            "Input validation error: `best_of` must be > 0 and <= 2. Given: 5",
            "token id 152000 exceeds the vocabulary",
            "Invalid 'stop': array too long. Expected an array with maximum length 4",
            "logprobs must be at most 20",
            "Unsupported value: 'temperature' does not support 0.2 with this model.",
            // Faults of the server.
            "context deadline exceeded",
            "maximum recursion depth exceeded",
            "Your access token has exceeded its lifetime",
            "The prompt is required",
            "",
        ] {
            assert!(!is_too_long(words), "{words}");
        }
    }
}
