//! Models with several cache groups through the step loop: windows whose blocks are freed, and states that are copied at
//! some boundaries. Answers do not depend on them, and a second turn computes little more than its new tokens.

use std::sync::Arc;

use headrace_domain::{CacheLife, CachePin, MissReason, Sampling};
use headrace_engine_api::{Job, Tenant};
use headrace_kv_layout::{KvGroup, KvGroupKind, KvLayout};
use headrace_scheduler::SchedulerConfig;
use headrace_sim::{Computed, ScriptedForward, ToyVocabulary};

use crate::support::{Bench, greedy, job, roomy, salt};

const CONTEXT: usize = 4096;
const WINDOW: usize = 70;

fn full(blocks: usize) -> KvGroup {
    KvGroup::full(blocks, 4096)
}

fn window(blocks: usize) -> KvGroup {
    KvGroup::new(KvGroupKind::Window(WINDOW), blocks, 4096)
}

fn state(slots: usize) -> KvGroup {
    KvGroup::new(KvGroupKind::State, slots, 1 << 20)
}

/// Every combination of groups, with plenty of room.
fn layouts() -> [(&'static str, KvLayout); 6] {
    [
        ("full", KvLayout::single(full(1024))),
        ("window", KvLayout::single(window(512))),
        ("state", KvLayout::single(state(64))),
        ("full and window", KvLayout::new(&[full(1024), window(512)])),
        ("full and state", KvLayout::new(&[full(1024), state(64)])),
        ("full, window and state", KvLayout::new(&[full(1024), window(512), state(64)])),
    ]
}

fn world(layout: KvLayout, scheduler: SchedulerConfig) -> (Bench, Computed) {
    let forward = ScriptedForward::with_layout(64, CONTEXT, layout);
    let computed = forward.computed();
    (Bench::new(Box::new(forward), Arc::new(ToyVocabulary), &[], scheduler), computed)
}

fn limits() -> SchedulerConfig {
    SchedulerConfig { context_window: CONTEXT, step_tokens: 128, max_chunk: 96, ..roomy() }
}

fn sampling(max_tokens: u32) -> Sampling {
    Sampling { ignore_eos: true, ..greedy(max_tokens) }
}

fn text(kind: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (kind * 29 + i * 7 + i / 5) % 64).collect()
}

#[test]
fn answers_do_not_depend_on_chunks_company_cache_or_room() {
    for (name, layout) in layouts() {
        let prompts: Vec<Vec<u32>> =
            (0..12).map(|at| [text(1, 150), text(at, 20 + at * 23)].concat()).collect();
        let alone = SchedulerConfig { prefix_cache: false, max_chunk: 128, ..limits() };
        let expected: Vec<_> = prompts
            .iter()
            .map(|prompt| world(layout, alone.clone()).0.ask(job(prompt, sampling(40))).0)
            .collect();
        let groups =
            layout.groups().map(|group| KvGroup { block_count: group.block_count.min(40), ..*group });
        let scarce = KvLayout::new(&[
            *groups.full(),
            *groups.window(),
            KvGroup { block_count: groups.state().block_count.min(3), ..*groups.state() },
        ]);
        for (layout, chunk) in [(layout, 1), (layout, 16), (layout, 17), (layout, 64), (scarce, 33)] {
            let (mut bench, _) = world(layout, SchedulerConfig { max_chunk: chunk, ..limits() });
            for pass in ["cold", "warm"] {
                let mut readers: Vec<_> =
                    prompts.iter().map(|prompt| bench.submit(job(prompt, sampling(40)))).collect();
                bench.run_unread(&mut readers);
                for (reader, expected) in readers.iter().zip(&expected) {
                    assert_eq!(reader.answer, *expected, "{name}, chunks of {chunk}, {pass}");
                }
            }
        }
    }
}

#[test]
fn a_second_turn_computes_little_more_than_its_new_tokens() {
    for (name, layout) in layouts() {
        for (prompt, answer) in [(100, 30), (33, 15), (700, 64), (16, 16), (1500, 200)] {
            let (mut bench, computed) = world(layout, limits());
            let first = text(1, prompt);
            let (reply, _) = bench.ask(job(&first, sampling(answer)));
            let new = text(2, 25);
            let second = [&first[..], &reply.choices[&0].ids, &new].concat();
            let before = computed.tokens();
            let (_, report) = bench.ask(job(&second, sampling(1)));
            let took = computed.tokens() - before;
            // The last token of an answer is never computed, so it is new too.
            let most = new.len() as u64 + 1 + 16;
            assert!(took <= most, "{name}: {took} tokens of {} after {prompt} + {answer}", second.len());
            assert!(report.usage.cached_input > 0, "{name}");
        }
    }
}

/// Templates that leave out earlier reasoning render the end of the last prompt otherwise.
#[test]
fn a_turn_that_changes_the_end_of_the_prompt_continues_before_it() {
    for (name, layout) in layouts() {
        for prompt in [100, 101, 105, 111, 112] {
            let (mut bench, computed) = world(layout, limits());
            let mut first = text(1, prompt);
            bench.ask(job(&first, sampling(30)));
            first.truncate(prompt as usize - 3);
            let second = [&first[..], &text(3, 40)].concat();
            let before = computed.tokens();
            bench.ask(job(&second, sampling(1)));
            let took = computed.tokens() - before;
            assert!(took <= 40 + 8 + 16, "{name}: {took} tokens after a prompt of {prompt}");
        }
    }
}

/// Different questions after one long text: the second finds only what was kept, and the third all of it.
#[test]
fn the_text_that_several_prompts_share_is_kept_from_the_second_on() {
    // Without other layers, a state does not show how far earlier prompts were the same.
    for (name, layout) in layouts().into_iter().filter(|(name, _)| *name != "state") {
        let (mut bench, computed) = world(layout, limits());
        let mut took = Vec::new();
        for question in 0..4 {
            let prompt = [text(1, 640), text(10 + question, 300)].concat();
            let before = computed.tokens();
            bench.ask(job(&prompt, sampling(1)));
            took.push(computed.tokens() - before);
        }
        assert_eq!((took[2], took[3]), (300, 300), "{name}: {took:?}");
        let first = if name == "full" { 300 } else { 940 };
        assert!(took[1] <= first, "{name}: {took:?}");
    }
}

#[test]
fn a_miss_names_the_group_that_could_not_continue() {
    let rows = [
        ("window", KvLayout::new(&[full(1024), window(512)]), MissReason::WindowFreed),
        ("state", KvLayout::new(&[full(1024), state(64)]), MissReason::StateNotKept),
    ];
    for (name, layout, reason) in rows {
        let (mut bench, _) = world(layout, limits());
        bench.ask(job(&text(1, 640), sampling(2)));
        let other = [&text(1, 400)[..], &text(5, 100)].concat();
        let (_, report) = bench.ask(job(&other, sampling(2)));
        let miss = report.engine.miss.unwrap();
        assert_eq!((miss.reason, miss.token, report.usage.cached_input), (reason, 0, 0), "{name}");
        let (_, report) = bench.ask(job(&other, sampling(2)));
        assert_eq!(report.engine.miss, None, "{name}: kept since");
        let elsewhere = Job { salt: salt(7), tenant: Tenant(7), ..job(&other, sampling(2)) };
        let reason = bench.ask(elsewhere).1.engine.miss.map(|miss| miss.reason);
        assert_eq!(reason, Some(MissReason::NeverSeen), "{name}");
    }
}

#[test]
fn a_pinned_prefix_outlives_the_pressure_of_others() {
    for (name, layout) in [
        ("window", KvLayout::new(&[full(400), window(60)])),
        ("state", KvLayout::new(&[full(400), state(5)])),
    ] {
        let (mut bench, _) = world(layout, limits());
        let system = text(1, 640);
        let pins: Arc<[CachePin]> = [CachePin { tokens: 640, life: CacheLife::Hour }].into();
        let prompt = |at: u32| [&system[..], &text(at, 40)].concat();
        bench.ask(Job { pins, ..job(&prompt(2), sampling(2)) });
        for other in 0..12 {
            bench.ask(job(&text(20 + other, 900), sampling(2)));
        }
        let (_, report) = bench.ask(job(&prompt(3), sampling(2)));
        assert_eq!(report.usage.cached_input, 640, "{name}: {:?}", report.engine.miss);
    }
}

/// A long sequence holds no more of a window than the window, a chunk and two blocks.
#[test]
fn a_window_is_held_only_as_far_as_it_is_seen() {
    let layout = KvLayout::new(&[full(256), window(16)]);
    assert_eq!(layout.positions(96), 4096);
    let (mut bench, _) = world(layout, limits());
    // 16 blocks of a window of 70 tokens and chunks of 96 tokens: one sequence at a time, of any length.
    let (long, _) = bench.ask(job(&text(4, 3900), sampling(100)));
    let roomy = KvLayout::new(&[full(512), window(512)]);
    assert_eq!(world(roomy, limits()).0.ask(job(&text(4, 3900), sampling(100))).0, long);
}
