//! What the engine did for a request, as lines of a drawing: its batches, pinned blocks and the time of its steps. Does
//! not know where the lines are drawn.

use headrace_domain::EngineTrace;

use crate::json::mean_batch;
use crate::units::{counted, grouped, humane_duration, percent, three_digits};

/// Describes the batches that the request's steps ran in.
pub(crate) fn batch_text(engine: &EngineTrace) -> String {
    let mut text = match mean_batch(engine) {
        Some(mean) => {
            let (min, max) = (engine.batch_min, engine.batch_max);
            format!(
                "{min} min · {} mean · {max} max in {} steps ({} prefill)",
                three_digits(mean),
                engine.steps,
                engine.prefill_chunks
            )
        }
        None => "in no step".to_owned(),
    };
    if engine.preemptions > 0 {
        text.push_str(&format!(" · preempted {}×", engine.preemptions));
    }
    if engine.thoughts_cut > 0 {
        text.push_str(&format!(" · {} at its budget", thoughts_ended(engine.thoughts_cut)));
    }
    if engine.paused_ns > 0 {
        let paused = humane_duration(engine.paused_ns);
        text.push_str(&format!(" · paused for {paused}: its reader was behind"));
    }
    text
}

/// Describes how many blocks of the prompt are pinned in the cache at the caller's request.
pub(crate) fn kept_text(engine: &EngineTrace) -> Option<String> {
    let (kept, beyond) = (engine.pinned_blocks, engine.unpinned_blocks);
    if kept == 0 && beyond == 0 {
        return None;
    }
    let mut text = format!("{} used up last, as the call wishes", counted(kept.into(), "block"));
    if beyond > 0 {
        let beyond = grouped(beyond.into());
        text.push_str(&format!(" · {beyond} more are not: the share of the organisation is full"));
    }
    Some(text)
}

fn thoughts_ended(count: u32) -> String {
    if count == 1 { "a thought ended".to_owned() } else { format!("{count} thoughts ended, each") }
}

/// Describes where the time of the engine's steps went while the request ran.
pub(crate) fn steps_text(engine: &EngineTrace) -> Option<String> {
    let rest = engine.step_ns.saturating_sub(engine.forward_ns).saturating_sub(engine.sample_ns);
    (engine.step_ns > 0).then(|| {
        format!(
            "{} computing · {} choosing tokens · {} scheduling and delivering",
            percent(engine.forward_ns, engine.step_ns),
            percent(engine.sample_ns, engine.step_ns),
            percent(rest, engine.step_ns)
        )
    })
}
