//! Turns a call into the input of a model: token ids, the grammar of its answers, the reasoning budget, cache pins.
//! Knows no request context, memory account, money or worker.

mod answer_grammar;
mod cache_pins;
mod encode_prompt;
mod encoder_texts;
mod past_answers;
mod raw_prompt;
mod reasoning_budget;
mod tool_call_form;
mod unsupported;

pub use answer_grammar::{compile_grammar, is_constrained};
pub use cache_pins::cache_pins;
pub use encode_prompt::{
    could_fit, encode_conversation, not_encoded, out_of_vocabulary, prompt_param, rendering_failed,
    shown_conversation, text_alone, window_exceeded,
};
pub use encoder_texts::{encode_texts, encoder_rejection, generator_rejection, text_ids};
pub use past_answers::{ReusedHistory, reuse_past_answers};
pub use raw_prompt::{encode_raw_prompt, end_of_fill, may_spell};
pub use reasoning_budget::reasoning_budget;
pub use tool_call_form::constrained_tools;
pub use unsupported::check_supported;
