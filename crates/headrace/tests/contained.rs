//! Attacks on the whole program, one per row. Its memory stays within a bound, and other callers and operators are
//! served meanwhile. Attacks are bounded in count. No row asserts how fast anything is.
#![cfg(target_os = "linux")]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test"
)]

#[path = "contained/answers.rs"]
mod answers;
#[path = "common/server.rs"]
mod common;
#[path = "contained/forms.rs"]
mod forms;
#[path = "contained/places.rs"]
mod places;
#[path = "contained/raw.rs"]
mod raw;
#[path = "contained/sockets.rs"]
mod sockets;
#[path = "contained/stored.rs"]
mod stored;
#[path = "contained/texts.rs"]
mod texts;
#[path = "contained/upstream.rs"]
mod upstream;
#[path = "contained/world.rs"]
mod world;

use world::{ADMIN, PLAIN, Setup, UPSTREAM, encoder, play};

/// Defines a test per row: its name, how the program starts, and the attack.
macro_rules! rows {
    ($($name:ident: $setup:expr, $attack:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            play($setup, $attack).await;
        }
    )*};
}

const BERT: Setup = encoder("bert-embed");
const RANKER: Setup = encoder("bert-rank");
const FEW_DESCRIPTORS: Setup = Setup { descriptors: Some(512), ..PLAIN };
const SMALL_PROJECTS: Setup =
    Setup { settings: "[objects]\nmax_file_bytes_per_project = \"16MiB\"\n", ..PLAIN };
/// Calls of one key may hold 64 MiB, so that uncounted memory becomes visible.
const SMALL_KEYS: Setup = Setup { settings: "[gateway]\nmax_key_memory = \"64MiB\"\n", ..UPSTREAM };

rows! {
    web_socket_whose_client_pings_and_does_not_read: PLAIN, sockets::unread_pings;
    web_sockets_of_one_key_in_all_places: PLAIN, sockets::all_places;
    web_sockets_with_half_messages: PLAIN, sockets::half_messages;

    embeddings_of_words: BERT, |world| texts::embed(world, "word ");
    embeddings_of_letters_and_blanks: BERT, |world| texts::embed(world, "a ");
    embeddings_of_full_stops: BERT, |world| texts::embed(world, ".");
    embeddings_of_one_word: BERT, |world| texts::embed(world, "a");
    embeddings_of_many_texts_of_full_stops: BERT, |world| texts::embed_list(world, ".");
    embeddings_that_are_to_be_cut: BERT, texts::embed_cut;
    embeddings_by_sentence_pieces: encoder("xlmr-embed"), |world| texts::embed(world, ".a ");
    ranks_of_a_document_of_full_stops: RANKER, |world| texts::rank(world, "/v1/rerank");
    scores_of_a_text_of_full_stops: RANKER, |world| texts::rank(world, "/v1/score");
    completions_of_a_million_prompts: PLAIN, texts::million_prompts;
    tokens_of_a_long_text: PLAIN, texts::tokenize;
    counts_of_a_long_text: PLAIN, texts::count;

    responses_that_continue_a_long_conversation: PLAIN, stored::long_conversation;
    responses_that_continue_a_long_chain: UPSTREAM, stored::long_chain;
    responses_in_the_background_with_long_inputs: SMALL_KEYS, stored::background;
    compactions_of_a_long_conversation: PLAIN, stored::compact_conversation;
    counts_of_a_long_conversation: PLAIN, stored::count_conversation;
    items_of_a_conversation_that_are_not_read: PLAIN, stored::unread_items;
    inputs_of_a_response_that_are_not_read: UPSTREAM, stored::unread_input;
    contents_of_a_file_that_are_not_read: PLAIN, stored::unread_file;

    upstream_whose_events_grow: SMALL_KEYS, answers::growing_events;
    upstream_whose_whole_answers_grow: SMALL_KEYS, answers::growing_answers;
    upstream_whose_stream_does_not_end: UPSTREAM, answers::endless_stream;
    upstream_whose_list_of_models_is_long: UPSTREAM, answers::large_list;

    answer_by_an_ambiguous_grammar: PLAIN, |world| forms::ambiguous(world, forms::GBNF, 1);
    answers_by_an_ambiguous_grammar: PLAIN, |world| forms::ambiguous(world, forms::GBNF, 16);
    answer_by_an_ambiguous_lark_grammar: PLAIN, |world| forms::ambiguous(world, forms::LARK, 1);
    schemas_that_are_dear_to_compile: PLAIN, forms::compile;

    idle_connections_beyond_the_descriptors: FEW_DESCRIPTORS, places::idle;
    half_heads_at_the_listener_for_operators: ADMIN, places::half_heads;
    event_streams_of_a_viewer: ADMIN, places::event_streams;
    batches_of_slow_keys: PLAIN, places::slow_batches;
    batches_of_one_file: SMALL_PROJECTS, places::one_file_many_batches;
}
