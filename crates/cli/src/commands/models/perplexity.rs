//! `headrace models perplexity`: measures what compute modes and KV types cost a model in quality. Compares its
//! perplexity on a text with that of `exact` and f32 keys and values over the same weights. Must not know how anything
//! is computed.

use std::time::{Duration, Instant};

use headrace_checkpoint::Checkpoint;
use headrace_config::arithmetic::ArithmeticConfig;
use headrace_domain::BLOCK_TOKENS;
use headrace_inspect::Words;
use headrace_kernels::attention::KvType;
use headrace_kernels::forward::{Forward, Logits, LogitsWanted, SequenceChunk};
use headrace_kernels::isa::ISA_VARIABLE;
use headrace_kernels::{ComputeMode, Isa, argmax, logsumexp};
use headrace_kv_layout::BlockTables;
use headrace_model::{KvBlocks, LoadOptions, Model};
use headrace_quant::BlockType;
use headrace_server::machine;
use headrace_server::models::{open_checkpoint, words_of};
use headrace_terminal::output;
use headrace_terminal::progress::ProgressLine;
use serde_json::{Value, json};

use super::quantized::quantized;
use crate::arguments::PerplexityArgs;

/// Default number of tokens in a window.
const USUAL_WINDOW: usize = 512;
/// Number of tokens in one step. Their logits are in memory at once.
const STEP_TOKENS: usize = 128;
/// The reference of all comparisons.
const REFERENCE: Way = (ComputeMode::Exact, KvType::F32);

/// A way to compute a model.
type Way = (ComputeMode, KvType);

/// Measures and prints the table.
pub(super) fn run(args: &PerplexityArgs) -> Result<(), String> {
    let quantize = quantized(args.quantize.as_deref())?;
    let ways = ways(&args.compute, &args.kv_type)?;
    let checkpoint = open_checkpoint(args.path.as_deref()).map_err(|refusal| refusal.to_string())?;
    let most = checkpoint.config().max_positions;
    let window = args.window.unwrap_or(USUAL_WINDOW.min(most));
    if !(2..=most).contains(&window) {
        return Err(format!("`--window` is {window}; it must be 2 to {most}, the model's context"));
    }
    let text = std::fs::read_to_string(&args.text)
        .map_err(|error| format!("--text {}: {error}", args.text.display()))?;
    let words = words_of(&checkpoint, None).map_err(|refusal| refusal.to_string())?;
    let windows = TextWindows::of(&text, &words, window, args.limit)?;
    let setting = RunSetting {
        checkpoint: &checkpoint,
        isa: Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref()).map_err(|error| error.to_string())?,
        threads: args.threads.unwrap_or_else(machine::processors),
        quantize,
        window,
    };
    let reference = setting.measure(REFERENCE, &windows)?;
    let mut rows = Vec::new();
    for way in ways {
        let read = if way == REFERENCE { None } else { Some(setting.measure(way, &windows)?) };
        rows.push(PerplexityRow::of(way, read.as_ref().unwrap_or(&reference), &reference));
    }
    match args.json {
        true => {
            let rows: Vec<Value> = rows.iter().map(PerplexityRow::json).collect();
            let facts = json!({
                "tokens": windows.scored(), "window": window, "quantize": quantize.map(BlockType::name),
                "instruction_set": setting.isa.to_string(), "rows": rows,
            });
            output::say(&format!("{facts:#}\n"));
        }
        false => output::say(&table(&rows, &windows, quantize)),
    }
    Ok(())
}

/// Returns every mode with every KV type, after the reference.
fn ways(modes: &[String], kv_types: &[String]) -> Result<Vec<Way>, String> {
    let mut ways = vec![REFERENCE];
    for mode in modes {
        for kv in kv_types {
            let asked = ArithmeticConfig::parse(None, Some(mode), Some(kv), None)?;
            let (Some(mode), Some(kv)) = (asked.mode, asked.kv) else {
                return Err("`--compute` takes exact and fast: `auto` is one of them".to_owned());
            };
            if !ways.contains(&(mode, kv)) {
                ways.push((mode, kv));
            }
        }
    }
    Ok(ways)
}

/// A text, cut into independent sequences.
struct TextWindows(Vec<Vec<u32>>);

impl TextWindows {
    fn of(text: &str, words: &Words, window: usize, limit: Option<usize>) -> Result<Self, String> {
        // The tokens that the tokenizer puts before a text also begin every window.
        let begin = words.tokenizer.prefix();
        let ids = words.tokenizer.encode(text, false).map_err(|error| error.to_string())?;
        let ids = ids.get(..limit.unwrap_or(usize::MAX).min(ids.len())).unwrap_or_default();
        let piece = window - begin.len().min(window - 1);
        let pieces = ids.chunks(piece).map(|piece| [begin, piece].concat());
        let windows: Vec<Vec<u32>> = pieces.filter(|window| window.len() > 1).collect();
        match windows.is_empty() {
            true => Err("the text has no two tokens: nothing can be predicted".to_owned()),
            false => Ok(Self(windows)),
        }
    }

    /// Number of predicted tokens.
    fn scored(&self) -> usize {
        self.0.iter().map(|window| window.len() - 1).sum()
    }
}

/// The settings that all rows share.
struct RunSetting<'a> {
    checkpoint: &'a Checkpoint,
    isa: Isa,
    threads: usize,
    quantize: Option<BlockType>,
    window: usize,
}

/// A model's predictions for all predicted tokens.
struct TokenLosses {
    /// −ln p of each actual token.
    losses: Vec<f64>,
    /// The likeliest token at each position.
    likeliest: Vec<Option<usize>>,
    took: Duration,
}

impl RunSetting<'_> {
    fn measure(&self, (mode, kv): Way, windows: &TextWindows) -> Result<TokenLosses, String> {
        let options = LoadOptions {
            isa: self.isa,
            threads: self.threads,
            kv_blocks: KvBlocks::same(self.window.div_ceil(BLOCK_TOKENS)),
            chunk: self.window,
            max_positions: Some(self.window),
            mode,
            kv,
            quantize: self.quantize,
        };
        let what = format!("{mode}, {} keys and values", kv.name());
        let mut progress = ProgressLine::new(&format!("loading {what}"));
        let model = Model::load(self.checkpoint, options, &mut |done, total| progress.bytes(done, total));
        progress.end();
        let mut model = model.map_err(|error| error.to_string())?;
        self.checkpoint.release_pages();
        let mut progress = ProgressLine::new(&format!("reading {what}"));
        let read = read(&mut model, self.isa, windows, &mut |done, total| progress.tokens(done, total));
        progress.end();
        read
    }
}

/// Makes a model predict every window.
fn read(
    model: &mut dyn Forward,
    isa: Isa,
    windows: &TextWindows,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<TokenLosses, String> {
    let total = windows.scored();
    let mut reading = TokenLosses {
        losses: Vec::with_capacity(total),
        likeliest: Vec::with_capacity(total),
        took: Duration::ZERO,
    };
    let mut logits = Logits::default();
    let start = Instant::now();
    for window in &windows.0 {
        let blocks: Vec<u32> = (0..).take(window.len().div_ceil(BLOCK_TOKENS)).collect();
        for (index, tokens) in window.chunks(STEP_TOKENS).enumerate() {
            let start = index * STEP_TOKENS;
            let chunk = SequenceChunk {
                tokens,
                start,
                tables: BlockTables::same(&blocks),
                logits: LogitsWanted::All,
                long_context: model.shape().is_long(window.len()),
            };
            model.step(&[chunk], &mut logits).map_err(|error| error.to_string())?;
            for (row, &next) in window.iter().skip(start + 1).take(tokens.len()).enumerate() {
                let row = logits.row(row).unwrap_or_default();
                let logit = row.get(next as usize).copied().unwrap_or(f32::NEG_INFINITY);
                reading.losses.push(f64::from(logsumexp(isa, row)) - f64::from(logit));
                reading.likeliest.push(argmax(isa, row));
            }
            progress(reading.losses.len() as u64, total as u64);
        }
    }
    reading.took = start.elapsed();
    Ok(reading)
}

/// The figures of one way.
struct PerplexityRow {
    way: Way,
    perplexity: f64,
    /// The increase of the perplexity over the reference's, as a fraction of it.
    shift: f64,
    /// Standard error of the shift, token by token.
    error: f64,
    /// Share of positions with the same likeliest token as the reference.
    agrees: f64,
    tokens_per_second: f64,
}

impl PerplexityRow {
    fn of(way: Way, read: &TokenLosses, reference: &TokenLosses) -> Self {
        let count = read.losses.len().max(1) as f64;
        let differences = || read.losses.iter().zip(&reference.losses).map(|(own, other)| own - other);
        let mean = differences().sum::<f64>() / count;
        let spread = differences().map(|d| (d - mean) * (d - mean)).sum::<f64>() / count;
        let same = read.likeliest.iter().zip(&reference.likeliest).filter(|(own, other)| own == other);
        Self {
            way,
            perplexity: (read.losses.iter().sum::<f64>() / count).exp(),
            shift: mean.exp_m1(),
            error: (spread / count).sqrt(),
            agrees: same.count() as f64 / count,
            tokens_per_second: count / read.took.as_secs_f64().max(1e-9),
        }
    }

    fn json(&self) -> Value {
        json!({
            "compute": self.way.0.name(), "kv_type": self.way.1.name(), "perplexity": self.perplexity,
            "shift": self.shift, "shift_standard_error": self.error, "same_likeliest_token": self.agrees,
            "tokens_per_second": self.tokens_per_second,
        })
    }
}

fn table(rows: &[PerplexityRow], windows: &TextWindows, quantize: Option<BlockType>) -> String {
    let cells = rows.iter().enumerate().map(|(index, row)| {
        let shift = match index {
            0 => "—".to_owned(),
            _ => format!("{:+.3} % ± {:.3}", 100.0 * row.shift, 100.0 * row.error),
        };
        vec![
            row.way.0.to_string(),
            row.way.1.name().to_owned(),
            format!("{:.4}", row.perplexity),
            shift,
            format!("{:.2} %", 100.0 * row.agrees),
            format!("{:.0}", row.tokens_per_second),
        ]
    });
    let head = ["compute", "KV type", "perplexity", "shift", "same likeliest token", "tokens/s"];
    let weights = quantize.map_or_else(String::new, |kind| format!(", weights quantized to {}", kind.name()));
    let count = windows.scored();
    format!(
        "{}\n{count} tokens predicted in {} windows{weights}. Shifts are from the first row, with their standard error.\n",
        output::table(&head, cells.collect()),
        windows.0.len(),
    )
}

#[cfg(test)]
mod tests {
    use headrace_kernels::forward::{ForwardError, ForwardShape};
    use headrace_kv_layout::{KvGroup, KvLayout};

    use super::*;

    /// Predicts the next token of 0, 1, 2, 3, 0, … with these odds against each other token.
    struct CountingModel(ForwardShape, f32);

    impl Forward for CountingModel {
        fn shape(&self) -> &ForwardShape {
            &self.0
        }

        fn numerics(&self) -> &str {
            "a test"
        }

        fn step(&mut self, batch: &[SequenceChunk<'_>], out: &mut Logits) -> Result<(), ForwardError> {
            out.reset(batch[0].tokens.len(), 4);
            for (row, &token) in batch[0].tokens.iter().enumerate() {
                let row = out.row_mut(row).unwrap();
                row.fill(0.0);
                row[(token as usize + 1) % 4] = self.1.ln();
            }
            Ok(())
        }
    }

    fn reading(odds: f32, windows: &TextWindows) -> TokenLosses {
        let shape = ForwardShape {
            vocab: 4,
            max_positions: 1000,
            kv: KvLayout::single(KvGroup::full(100, 1)),
            weight_bytes: 1,
            short_positions: None,
        };
        read(&mut CountingModel(shape, odds), Isa::supported()[0], windows, &mut |_, _| {}).unwrap()
    }

    #[test]
    fn perplexity_is_one_over_the_geometric_mean_of_the_probabilities() {
        let counting: Vec<u32> = (0..300).map(|i| i % 4).collect();
        let windows = TextWindows(vec![counting.clone(), counting[..2].to_vec()]);
        assert_eq!(windows.scored(), 300);
        let (level, right) = (reading(1.0, &windows), reading(3.0, &windows));
        let row = PerplexityRow::of(REFERENCE, &right, &level);
        // Every token gets probability 3/6, instead of 1/4.
        assert!((row.perplexity - 2.0).abs() < 1e-6, "{}", row.perplexity);
        assert!((row.shift + 0.5).abs() < 1e-6 && row.error < 1e-6, "{} ± {}", row.shift, row.error);
        // Among equals the lowest token is the likeliest. So it is always 0, and right at every fourth position.
        let expected = counting.iter().skip(1).filter(|&&token| token == 0).count() as f64 / 300.0;
        assert!((row.agrees - expected).abs() < 1e-9, "{} for {expected}", row.agrees);
        let wrong = TextWindows(vec![vec![0, 3, 2, 1]]);
        let row = PerplexityRow::of(REFERENCE, &reading(3.0, &wrong), &reading(1.0, &wrong));
        assert!((row.perplexity - 6.0).abs() < 1e-6 && (row.shift - 0.5).abs() < 1e-6, "{}", row.perplexity);
    }

    #[test]
    fn ways_are_what_was_asked_for_behind_the_reference() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let found = ways(&names(&["fast"]), &names(&["q8", "q8", "f32"])).unwrap();
        assert_eq!(found, [REFERENCE, (ComputeMode::Fast, KvType::Q8), (ComputeMode::Fast, KvType::F32)]);
        assert!(ways(&names(&["auto"]), &names(&["q8"])).unwrap_err().contains("auto"));
        assert!(ways(&names(&["fast"]), &names(&["q4"])).unwrap_err().contains("q4"));
    }
}
