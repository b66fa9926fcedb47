//! Renders explanations as text for a terminal, with a limited line width and no colours. Adds nothing to their
//! content.

use headrace_trace::{cells, humane_duration, wrapped};

use crate::cost::CostExplanation;
use crate::diff::Difference;
use crate::explanation::{Explanation, Term};
use crate::levers::Lever;
use crate::reference::ReferenceRow;

/// The narrowest and the widest supported text, in columns.
const COLUMNS: (usize, usize) = (60, 160);
/// The reason of a term is printed if the term has at least this share of the call.
const WORTH_A_LINE: f64 = 0.01;

impl Explanation {
    /// Renders it as text of at most `columns` columns, with lines that end in `\n`.
    pub fn text(&self, columns: usize) -> String {
        let mut page = Page::new(columns);
        page.line(&self.id);
        page.paragraph("", &self.sentence);
        page.paragraph("", &self.money_sentence);
        for sentence in &self.unusual {
            page.paragraph("out of the usual: ", sentence);
        }
        if let Some(refusal) = &self.refusal {
            page.paragraph("what it means: ", &refusal.meaning);
            if !refusal.way_out.is_empty() {
                page.paragraph("what to do: ", &refusal.way_out);
            }
            if refusal.rule != refusal.code {
                page.paragraph("the rule, for operators: ", &refusal.rule);
            }
            page.paragraph("more: ", &refusal.doc);
        }
        page.gap();
        self.verdicts_text(&mut page);
        self.attempts_text(&mut page);
        self.rounds_text(&mut page);
        self.terms_text(&mut page);
        self.reference_text(&mut page);
        self.levers_text(&mut page);
        page.list("also", &self.notes);
        page.out
    }

    /// Lists what content rules decided, if one of them decided or asked anything.
    fn verdicts_text(&self, page: &mut Page) {
        if self.verdicts.is_empty() {
            return;
        }
        page.line("content rules");
        for verdict in &self.verdicts {
            page.paragraph(&format!("  {}: ", verdict.outcome.replace('_', " ")), &verdict.text);
            page.paragraph("    the client saw: ", &verdict.client_saw);
            if !verdict.way_out.is_empty() {
                page.paragraph("    what to do: ", &verdict.way_out);
            }
        }
        page.gap();
    }

    /// Lists every attempt, if one of them failed.
    fn attempts_text(&self, page: &mut Page) {
        if self.attempts.iter().all(|attempt| attempt.outcome == "answered") {
            return;
        }
        let mut rows = vec![row(["who was asked", "after", "took", "outcome"])];
        for attempt in &self.attempts {
            rows.push(row([
                &attempt.worker,
                &duration(attempt.start_us),
                &duration(attempt.duration_us),
                &attempt.outcome.replace('_', " "),
            ]));
        }
        let mut lines = aligned(&rows).into_iter();
        page.lines(lines.next());
        for (attempt, line) in self.attempts.iter().zip(lines) {
            page.line(&format!("  {line}"));
            if !attempt.text.is_empty() {
                page.paragraph("      ", &attempt.text);
            }
        }
        page.gap();
    }

    /// Lists the rounds, if there were several.
    fn rounds_text(&self, page: &mut Page) {
        if self.rounds.is_empty() {
            return;
        }
        page.line("rounds");
        for round in &self.rounds {
            page.paragraph("  ", round);
        }
        page.gap();
    }

    fn terms_text(&self, page: &mut Page) {
        let mut rows = vec![row(["where the time went", "took", "share", "usual", "95 % below"])];
        for term in &self.terms {
            rows.push(term_row(term));
        }
        let usual = self.usual_total_us.map(duration).unwrap_or_default();
        rows.push(row(["all", &duration(self.total_us), "", &usual, ""]));
        let lines = aligned(&rows);
        let mut lines = lines.into_iter();
        page.lines(lines.next());
        for (term, line) in self.terms.iter().zip(&mut lines) {
            let mark = if Some(term.name) == self.dearest { "▸ " } else { "  " };
            page.line(&format!("{mark}{line}"));
            if term.share >= WORTH_A_LINE || term.unusual {
                page.paragraph("      ", &term.text);
            }
        }
        for line in lines {
            page.line(&format!("  {line}"));
        }
        let calls = match self.compared.calls {
            0 => self.compared.what.clone(),
            calls => format!("{calls} {}", self.compared.what),
        };
        page.paragraph("  usual: ", &calls);
        page.gap();
    }

    fn reference_text(&self, page: &mut Page) {
        let mut rows = vec![row(["beside the published table", "here", "there"])];
        rows.extend(self.reference.iter().map(reference_row));
        let mut lines = aligned(&rows).into_iter();
        page.lines(lines.next());
        lines.for_each(|line| page.line(&format!("  {line}")));
        page.gap();
    }

    fn levers_text(&self, page: &mut Page) {
        if self.levers.is_empty() {
            return;
        }
        page.line("what would have helped");
        for lever in &self.levers {
            page.paragraph(&format!("  {} ", lever.name), &lever_text(lever));
        }
        if let Some(lever) = self.levers.iter().find(|lever| lever.can_be_tried) {
            page.paragraph(
                "  ",
                &format!("try one: headrace trace --explain {} --try {}", self.id, lever.name),
            );
        }
        page.gap();
    }
}

fn term_row(term: &Term) -> Vec<String> {
    let share = headrace_trace::percent((term.share * 1e6) as u64, 1_000_000);
    let unusual = if term.unusual { " !" } else { "" };
    row([
        term.name.name(),
        &duration(term.us),
        &share,
        &term.usual_us.map(duration).unwrap_or_default(),
        &format!("{}{unusual}", term.usual_p95_us.map(duration).unwrap_or_default()),
    ])
}

fn reference_row(reference: &ReferenceRow) -> Vec<String> {
    let millis = |us: u64| us / 1000;
    let there = match reference.reference_us {
        [0, high] => format!("{} ms at most", millis(high)),
        [low, high] => format!("{} to {} ms", millis(low), millis(high)),
    };
    let above = if reference.verdict == "above" { ": more" } else { "" };
    row([reference.name, &duration(reference.us), &format!("{there}{above}")])
}

fn lever_text(lever: &Lever) -> String {
    let of = match lever.saves_of {
        "first_words" => " until the first words",
        "before" => " before the call began",
        _ => "",
    };
    let time = (lever.saves_us > 0.0).then(|| format!("{}{of}", duration(lever.saves_us)));
    let money = lever.saves_dollars.as_ref().map(|dollars| format!("${dollars}"));
    let saved: Vec<String> = time.into_iter().chain(money).collect();
    format!("saves {}. {}.", saved.join(" and "), lever.text)
}

impl CostExplanation {
    /// Renders it as text of at most `columns` columns, with lines that end in `\n`.
    pub fn text(&self, columns: usize) -> String {
        let mut page = Page::new(columns);
        page.line(&self.id);
        page.paragraph("", &self.sentence);
        page.gap();
        let mut rows = vec![row(["where the money went", "tokens", "$ a million", "comes to"])];
        for term in &self.terms {
            let lost =
                if term.lost_tokens > 0 { format!(" + {} lost", term.lost_tokens) } else { String::new() };
            let tokens = format!("{}{lost}", term.tokens);
            rows.push(row([
                term.class,
                &tokens,
                &term.price_per_million_dollars,
                &format!("${}", term.dollars),
            ]));
        }
        rows.push(row(["charged", "", "", &format!("${}", self.total_dollars)]));
        rows.push(row(["held", "", "", &format!("${}", self.held_dollars)]));
        rows.push(row(["given back", "", "", &format!("${}", self.given_back_dollars)]));
        if !self.loss_dollars.trim_matches(['0', '.']).is_empty() {
            rows.push(row(["to the loss account", "", "", &format!("${}", self.loss_dollars)]));
        }
        if let (Some(paid), Some(margin)) = (&self.paid_dollars, &self.margin_dollars) {
            rows.push(row(["others charge us", "", "", &format!("${paid}")]));
            rows.push(row(["left of it", "", "", &format!("${margin}")]));
        }
        let mut lines = aligned(&rows).into_iter();
        page.lines(lines.next());
        lines.for_each(|line| page.line(&format!("  {line}")));
        page.gap();
        page.list("also", &self.notes);
        page.out
    }
}

impl Difference {
    /// Renders it as text of at most `columns` columns, with lines that end in `\n`.
    pub fn text(&self, columns: usize) -> String {
        let mut page = Page::new(columns);
        page.line(&format!("first   {}", self.a));
        page.line(&format!("second  {}", self.b));
        page.paragraph("", &self.sentence);
        page.gap();
        let mut rows = vec![row(["term", "first", "second", "more"])];
        let whole = [("all", self.a_us, self.b_us)];
        let terms = self.terms.iter().map(|term| (term.name.name(), term.a_us, term.b_us));
        for (name, a, b) in terms.chain(whole) {
            let sign = if b >= a { "+" } else { "−" };
            rows.push(row([name, &duration(a), &duration(b), &format!("{sign}{}", duration((b - a).abs()))]));
        }
        let mut lines = aligned(&rows).into_iter();
        page.lines(lines.next());
        lines.for_each(|line| page.line(&format!("  {line}")));
        page.gap();
        if self.facts.is_empty() {
            return page.out;
        }
        let mut rows = vec![row(["they differ in", "first", "second"])];
        rows.extend(self.facts.iter().map(|fact| row([fact.name, &fact.a, &fact.b])));
        let mut lines = aligned(&rows).into_iter();
        page.lines(lines.next());
        lines.for_each(|line| page.line(&format!("  {line}")));
        page.out
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn duration(us: f64) -> String {
    humane_duration((us * 1e3).max(0.0) as u64)
}

/// Aligns the first column to the left, and the others to the right.
fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|text| cells(text)).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (text, width))| {
            let gap = " ".repeat(width.saturating_sub(cells(text)));
            if at == 0 { format!("{text}{gap}") } else { format!("{gap}{text}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Text with a limited line width.
pub(crate) struct Page {
    columns: usize,
    out: String,
}

impl Page {
    pub(crate) fn new(columns: usize) -> Self {
        Self { columns: columns.clamp(COLUMNS.0, COLUMNS.1), out: String::new() }
    }

    pub(crate) fn line(&mut self, text: &str) {
        self.out.push_str(text.trim_end());
        self.out.push('\n');
    }

    fn lines(&mut self, lines: Option<String>) {
        lines.into_iter().for_each(|line| self.line(&line));
    }

    pub(crate) fn gap(&mut self) {
        if !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
    }

    /// Writes a text after a label, wrapped. A blank label indents all lines by its width. Otherwise further lines are
    /// indented by four.
    pub(crate) fn paragraph(&mut self, label: &str, text: &str) {
        let blank = label.chars().all(|c| c == ' ');
        let margin = if blank { label.len() } else { 4 };
        let whole = if blank { text.to_owned() } else { format!("{}{text}", label.trim_start()) };
        let before = if blank { margin } else { label.len() - label.trim_start().len() };
        let width = self.columns.saturating_sub(margin.max(before));
        for (at, line) in wrapped(&whole, width).iter().enumerate() {
            let gap = " ".repeat(if at == 0 { before } else { margin });
            self.line(&format!("{gap}{line}"));
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.out
    }

    fn list(&mut self, title: &str, texts: &[String]) {
        if texts.is_empty() {
            return;
        }
        self.line(title);
        for text in texts {
            self.paragraph("  - ", text);
        }
    }
}
