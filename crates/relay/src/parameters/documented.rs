//! The parameters that vendors document, from their own lists. Does not know their treatment.
//!
//! Sources: the request types of the official Python SDKs (`openai` 3.54, `anthropic` 2.12 with its beta), and vLLM's
//! `entrypoints/openai/*/protocol.py`. The Messages API still accepts `temperature`, `top_k` and `top_p`, which the SDK
//! no longer types. They are from the API's reference.

/// OpenAI's `chat.completions.create`.
pub(super) const OPENAI_CHAT: &str = "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens \
    max_tokens messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key \
    prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store \
    stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options";

/// OpenAI's `completions.create`.
pub(super) const OPENAI_COMPLETIONS: &str = "best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty \
    prompt seed stop stream stream_options suffix temperature top_p user";

/// OpenAI's `responses.create`.
pub(super) const OPENAI_RESPONSES: &str = "access_programs background background_options context_management conversation include \
    input instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls previous_response_id prompt \
    prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier store stream \
    stream_options temperature text tool_choice tools top_logprobs top_p truncation user";

/// OpenAI's `embeddings.create`, `moderations.create`, `files.create`, `files.list`, `uploads.create`, `uploads.complete`,
/// `batches.create` and `batches.list`.
pub(super) const OPENAI_EMBEDDINGS: &str = "dimensions encoding_format input model user";
pub(super) const OPENAI_MODERATIONS: &str = "input model";
pub(super) const OPENAI_FILE: &str = "expires_after file purpose";
pub(super) const OPENAI_FILES: &str = "after limit order purpose";
pub(super) const OPENAI_UPLOAD: &str = "bytes expires_after filename mime_type purpose";
pub(super) const OPENAI_UPLOADED: &str = "md5 part_ids";
pub(super) const OPENAI_BATCH: &str =
    "completion_window endpoint input_file_id metadata output_expires_after";
pub(super) const OPENAI_BATCHES: &str = "after limit";

/// Anthropic's `messages.batches.create` and `messages.batches.list`.
pub(super) const ANTHROPIC_BATCH: &str = "requests";
pub(super) const ANTHROPIC_BATCHES: &str = "after_id before_id limit";

/// Jina's and Cohere's reranking, and vLLM's scoring.
pub(super) const RERANK: &str = "documents model query return_documents top_n";
pub(super) const SCORE: &str = "model text_1 text_2";

/// Anthropic's `messages.create`, beta included.
pub(super) const ANTHROPIC_MESSAGES: &str = "betas billing_policy cache_control compaction container context_management diagnostics \
    fallback_credit_token fallbacks inference_geo max_tokens mcp_servers messages metadata model output_config output_format \
    service_tier speed stop_sequences stream system temperature thinking thread tool_choice tools top_k top_p user_profile_id \
    workspace_id";

/// The additional parameters of vLLM's chat.
pub(super) const VLLM_CHAT: &str = "add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template \
    chat_template_kwargs continue_final_message documents echo ignore_eos include_reasoning include_stop_str_in_output \
    kv_transfer_params length_penalty logits_processors max_repetition_pattern_size min_p min_repetition_pattern_size min_tokens \
    mm_processor_kwargs priority prompt_logprobs repetition_min_count repetition_penalty request_id return_token_ids \
    return_tokens_as_token_ids skip_special_tokens spaces_between_special_tokens stop_token_ids structured_outputs \
    truncate_prompt_tokens use_beam_search vllm_xargs top_k";

/// The additional parameters of vLLM's completions.
pub(super) const VLLM_COMPLETIONS: &str = "add_special_tokens allowed_token_ids cache_salt ignore_eos include_stop_str_in_output \
    kv_transfer_params length_penalty logits_processors max_repetition_pattern_size min_p min_repetition_pattern_size min_tokens \
    priority prompt_embeds prompt_logprobs repetition_min_count repetition_penalty request_id response_format return_token_ids \
    return_tokens_as_token_ids skip_special_tokens spaces_between_special_tokens stop_token_ids structured_outputs \
    truncate_prompt_tokens use_beam_search vllm_xargs top_k";
