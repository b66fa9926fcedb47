//! Makes the weights of the classifier from generated texts, and measures it on texts that it did not see.
//! `HEADRACE_BLESS=1 cargo test -p headrace-moderation` writes weights and figures anew.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::features::{FEATURES, text_features};
use super::generator::{SeededRandom, TextLabel, TextSplit, text};
use super::{ContentLabel, LabelScores, PassageClassifier, WEIGHTS, norm, probability};

const LABELS: usize = ContentLabel::ALL.len();
/// Half of the texts are harmless.
const MIX: [TextLabel; 6] = [
    TextLabel::Insult,
    TextLabel::Threat,
    TextLabel::Injection,
    TextLabel::Harmless,
    TextLabel::Harmless,
    TextLabel::Harmless,
];
const TEXTS: usize = 24_000;
const STEPS: usize = 3 * TEXTS;
const RATE: f32 = 0.3;
const BIAS_RATE: f32 = 0.01;
const DECAY: f32 = 1e-5;
/// A text that is this well known is not learned again.
const KNOWN: f32 = 0.01;
/// Of ten features of a text, those that a step sees. The model then relies on no single one.
const SEEN_OF_TEN: usize = 6;
/// The default threshold of rules.
const THRESHOLD: f32 = 0.8;

/// The label of a generated text, by the order of [`ContentLabel::ALL`]. `None` for a harmless one.
const fn index(label: TextLabel) -> Option<usize> {
    match label {
        TextLabel::Insult => Some(0),
        TextLabel::Threat => Some(1),
        TextLabel::Injection => Some(2),
        TextLabel::Harmless => None,
    }
}

/// Logistic regression by stochastic gradient descent with a rate for each weight (AdaGrad). The result has the same bits on
/// every machine.
fn train() -> Vec<u8> {
    let mut random = SeededRandom::new(7);
    let texts: Vec<(Vec<usize>, Option<usize>)> = (0..TEXTS)
        .map(|at| {
            let label = MIX[at % MIX.len()];
            (text_features(&text(label, TextSplit::Training, &mut random)), index(label))
        })
        .collect();
    let mut weights = vec![[0.0_f32; LABELS]; FEATURES];
    let mut squares = vec![[1e-3_f32; LABELS]; FEATURES];
    let mut bias: LabelScores = [-2.0; LABELS];
    for _ in 0..STEPS {
        let (features, label) = &texts[random.below(texts.len())];
        let seen: Vec<usize> = features.iter().copied().filter(|_| random.below(10) < SEEN_OF_TEN).collect();
        let norm = norm(seen.len());
        let mut sums = [0.0_f32; LABELS];
        for feature in &seen {
            for (sum, weight) in sums.iter_mut().zip(&weights[*feature]) {
                *sum += weight;
            }
        }
        for at in 0..LABELS {
            let expected = if *label == Some(at) { 1.0 } else { 0.0 };
            let error = probability(sums[at] * norm + bias[at]) - expected;
            if error.abs() < KNOWN {
                continue;
            }
            bias[at] -= BIAS_RATE * error;
            for feature in &seen {
                let (weight, square) = (&mut weights[*feature][at], &mut squares[*feature][at]);
                let gradient = error * norm + DECAY * *weight;
                *square += gradient * gradient;
                *weight -= RATE * gradient / square.sqrt();
            }
        }
    }
    let mut bytes = Vec::new();
    let mut units = [0.0_f32; LABELS];
    for at in 0..LABELS {
        let largest = weights.iter().fold(0.0_f32, |largest, weight| largest.max(weight[at].abs()));
        units[at] = largest / 127.0;
        bytes.extend(bias[at].to_le_bytes());
        bytes.extend(units[at].to_le_bytes());
    }
    for weight in &weights {
        bytes.extend((0..LABELS).flat_map(|at| ((weight[at] / units[at]).round() as i8).to_le_bytes()));
    }
    bytes
}

/// How often the classifier was right about a label.
#[derive(Debug, Clone, Copy, Default)]
struct LabelFigures {
    right: u32,
    wrong: u32,
    missed: u32,
}

impl LabelFigures {
    fn precision(self) -> f64 {
        f64::from(self.right) / f64::from((self.right + self.wrong).max(1))
    }

    fn recall(self) -> f64 {
        f64::from(self.right) / f64::from((self.right + self.missed).max(1))
    }
}

fn measure(
    model: PassageClassifier<'_>,
    texts: &[(Option<usize>, String)],
    threshold: f32,
) -> [LabelFigures; LABELS] {
    let mut figures = [LabelFigures::default(); LABELS];
    for (label, text) in texts {
        let scores = model.scores(text);
        for (at, figures) in figures.iter_mut().enumerate() {
            match (scores[at] >= threshold, *label == Some(at)) {
                (true, true) => figures.right += 1,
                (true, false) => figures.wrong += 1,
                (false, true) => figures.missed += 1,
                (false, false) => {}
            }
        }
    }
    figures
}

fn held_out() -> Vec<(Option<usize>, String)> {
    let mut random = SeededRandom::new(99);
    let one = |at: usize| {
        let label = MIX[at % MIX.len()];
        (index(label), text(label, TextSplit::HeldOut, &mut random))
    };
    (0..6_000).map(one).collect()
}

/// Texts that people wrote, which neither the generator nor the training knows.
fn written() -> Vec<(Option<usize>, String)> {
    let lines = include_str!("written_texts.txt").lines().filter(|line| !line.starts_with('#'));
    let label = |name: &str| ContentLabel::ALL.iter().position(|label| label.name() == name);
    let text = |line: &str| {
        let (name, text) = line.split_once('\t').unwrap();
        assert!(name == "harmless" || label(name).is_some(), "{name}");
        (label(name), text.to_owned())
    };
    lines.map(text).collect()
}

/// The tables of the card.
fn figures(model: PassageClassifier<'_>) -> String {
    let mut out = String::new();
    for (title, texts) in [("written by hand", written()), ("held out by the generator", held_out())] {
        let harmless = texts.iter().filter(|(label, _)| label.is_none()).count();
        writeln!(out, "{} texts {title}, {harmless} of them harmless:\n", texts.len()).unwrap();
        out.push_str(
            "| label | precision at 0.5 | recall | precision at 0.8 | recall | precision at 0.9 | recall |\n",
        );
        out.push_str("|---|---|---|---|---|---|---|\n");
        let at = [0.5, THRESHOLD, 0.9].map(|threshold| measure(model, &texts, threshold));
        for (label, name) in ContentLabel::ALL.iter().enumerate() {
            let cells = at
                .map(|figures| format!("{:.2} | {:.2}", figures[label].precision(), figures[label].recall()));
            writeln!(out, "| `{}` | {} |", name.name(), cells.join(" | ")).unwrap();
        }
        out.push('\n');
    }
    out
}

fn blesses() -> bool {
    std::env::var_os("HEADRACE_BLESS").is_some()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

#[test]
fn the_weights_are_those_that_training_makes() {
    let trained = train();
    if blesses() {
        std::fs::write(root().join("src/classifier/weights.bin"), &trained).unwrap();
        return;
    }
    assert!(trained == WEIGHTS, "run `HEADRACE_BLESS=1 cargo test -p headrace-moderation`");
}

#[test]
fn the_card_has_the_measured_figures() {
    const BEGIN: &str = "<!-- figures: made by a test of crate moderation -->\n";
    const END: &str = "<!-- end of figures -->";
    let path = root().join("../../docs/classifier.md");
    let card = std::fs::read_to_string(&path).unwrap();
    let start = card.find(BEGIN).unwrap() + BEGIN.len();
    let end = card.find(END).unwrap();
    let trained = blesses().then(train);
    let model = match &trained {
        Some(trained) => PassageClassifier::parse(trained),
        None => PassageClassifier::embedded(),
    };
    let measured = format!("\n{}", figures(model));
    if blesses() {
        let card = format!("{}{measured}{}", &card[..start], &card[end..]);
        std::fs::write(&path, card).unwrap();
        return;
    }
    assert_eq!(card[start..end], measured, "run `HEADRACE_BLESS=1 cargo test -p headrace-moderation`");
}

#[test]
fn written_texts_are_found() {
    let figures = measure(PassageClassifier::embedded(), &written(), THRESHOLD);
    for (label, figures) in ContentLabel::ALL.iter().zip(figures) {
        assert!(figures.recall() >= 0.6 && figures.precision() >= 0.75, "{label:?}: {figures:?}");
    }
}
