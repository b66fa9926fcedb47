//! A time axis of a fixed width in terminal cells, with bars in eighths of a cell. A part of a request that is too
//! short to be visible beside another gets its own scale. A `┊` marks the change of scale.

use crate::units::{cells, humane_duration};

/// Marks a change of scale.
pub(crate) const BREAK: char = '┊';
/// Marks the time in which a stage ran beside another stage.
pub(crate) const BESIDE: char = '┈';
/// Cells filled from the left. The index is the number of eighths.
const FROM_LEFT: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// A part of the request that must stay visible.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AxisPart {
    /// End of the part in nanoseconds. The part starts where the previous part ends.
    pub(crate) end_ns: u64,
    /// Minimum share of the width, from 0 to 1.
    pub(crate) least: f64,
}

#[derive(Debug)]
pub(crate) struct TimeAxis {
    segments: Vec<AxisSegment>,
}

/// A section of the axis with one scale.
#[derive(Debug, Clone, Copy)]
struct AxisSegment {
    from_ns: u64,
    to_ns: u64,
    /// Index of the first cell.
    at: usize,
    cells: usize,
}

impl TimeAxis {
    /// Lays out the parts over `width` cells. Skips parts of zero length.
    pub(crate) fn new(parts: &[AxisPart], width: usize) -> Self {
        let mut from_ns = 0;
        let mut spans = Vec::new();
        for part in parts {
            if part.end_ns > from_ns {
                spans.push(AxisSpan { from_ns, to_ns: part.end_ns, least: part.least, lifted: false });
                from_ns = part.end_ns;
            }
        }
        if spans.is_empty() {
            spans.push(AxisSpan { from_ns: 0, to_ns: 1, least: 0.0, lifted: false });
        }
        lift(&mut spans);
        Self { segments: lay_out(&merged(&spans), width) }
    }

    /// Total number of cells, including the breaks.
    fn width(&self) -> usize {
        self.segments.last().map_or(0, |segment| segment.at + segment.cells)
    }

    /// A line with the breaks but without a bar.
    pub(crate) fn blank(&self) -> Vec<char> {
        let mut line = vec![' '; self.width()];
        for segment in self.segments.iter().skip(1) {
            put(&mut line, segment.at.saturating_sub(1), BREAK);
        }
        line
    }

    /// The line that shows how much time each section covers: `╶── 193 µs ──╴`.
    pub(crate) fn ruler(&self) -> Vec<char> {
        let mut line = self.blank();
        for segment in &self.segments {
            let label = humane_duration(segment.to_ns - segment.from_ns);
            let Some(room) = segment.cells.checked_sub(cells(&label)) else { continue };
            let dashes = room.saturating_sub(4);
            let (left, right) = ("─".repeat(dashes / 2), "─".repeat(dashes.div_ceil(2)));
            let text = if room < 4 { label } else { format!("╶{left} {label} {right}╴") };
            write(&mut line, segment.at + if room < 4 { room / 2 } else { 0 }, &text);
        }
        line
    }

    /// A bar over `[start_ns, end_ns)`. Even the shortest span shows a tick.
    pub(crate) fn bar(&self, start_ns: u64, end_ns: u64) -> Vec<char> {
        let mut line = self.blank();
        let mut drawn = false;
        for segment in &self.segments {
            let (from, to) = (start_ns.max(segment.from_ns), end_ns.min(segment.to_ns));
            if from < to {
                segment.fill(&mut line, segment.position(from), segment.position(to));
                drawn = true;
            }
        }
        if !drawn && let Some(segment) = self.segment_at(start_ns) {
            let at = segment.position(start_ns);
            segment.fill(&mut line, at, at);
        }
        line
    }

    /// Marks the empty cells of a line from `start_ns` to `until_ns` as running beside other stages.
    pub(crate) fn run_beside(&self, line: &mut [char], start_ns: u64, until_ns: u64) {
        for segment in &self.segments {
            let (from, to) = (start_ns.max(segment.from_ns), until_ns.min(segment.to_ns));
            if from >= to {
                continue;
            }
            let (first, last) = (segment.position(from) / 8, segment.position(to).div_ceil(8));
            for cell in line.iter_mut().take(segment.at + last).skip(segment.at + first) {
                if *cell == ' ' {
                    *cell = BESIDE;
                }
            }
        }
    }

    fn segment_at(&self, time_ns: u64) -> Option<&AxisSegment> {
        self.segments.iter().rev().find(|segment| segment.from_ns <= time_ns)
    }
}

impl AxisSegment {
    /// Offset from the segment's first cell, in eighths of a cell.
    fn position(&self, time_ns: u64) -> usize {
        let into = time_ns.saturating_sub(self.from_ns).min(self.to_ns - self.from_ns);
        let share = into as f64 / (self.to_ns - self.from_ns) as f64;
        // The value is within [0, 8 · cells], so the conversion is exact.
        (share * (self.cells * 8) as f64).round() as usize
    }

    /// Fills the eighths `[start, end)`, but at least one eighth.
    fn fill(&self, line: &mut [char], start: usize, end: usize) {
        let start = start.min((self.cells * 8).saturating_sub(1));
        let end = end.max(start + 1);
        for cell in start / 8..end.div_ceil(8) {
            let (left, right) = (start.max(cell * 8) - cell * 8, end.min(cell * 8 + 8) - cell * 8);
            put(line, self.at + cell, block(left, right));
        }
    }
}

/// The character closest to a cell filled from `left` to `right` eighths. Terminals have all eighths from the left
/// edge, but only one eighth and one half from the right edge.
fn block(left: usize, right: usize) -> char {
    let filled = right.saturating_sub(left);
    match left {
        0 => FROM_LEFT.get(filled).copied().unwrap_or('█'),
        _ if right < 8 && left < 4 => FROM_LEFT.get(filled).copied().unwrap_or('█'),
        _ if filled <= 2 => '▕',
        _ if filled <= 5 => '▐',
        _ => '█',
    }
}

struct AxisSpan {
    from_ns: u64,
    to_ns: u64,
    least: f64,
    /// Set if the span needs its own scale.
    lifted: bool,
}

impl AxisSpan {
    fn length(&self) -> f64 {
        (self.to_ns - self.from_ns) as f64
    }
}

/// Lifts each span that would get less than its minimum share of what the lifted spans leave, until there is none.
fn lift(spans: &mut [AxisSpan]) {
    loop {
        let share_left = 1.0 - spans.iter().filter(|s| s.lifted).map(|s| s.least).sum::<f64>();
        let time_left: f64 = spans.iter().filter(|s| !s.lifted).map(AxisSpan::length).sum();
        let short =
            |span: &&mut AxisSpan| !span.lifted && share_left * span.length() < span.least * time_left;
        match spans.iter_mut().find(short) {
            Some(span) => span.lifted = true,
            None => return,
        }
    }
}

/// Merges neighbours that share one scale. The `least` of each result is its share of the width.
fn merged(spans: &[AxisSpan]) -> Vec<AxisSpan> {
    let share_left = 1.0 - spans.iter().filter(|s| s.lifted).map(|s| s.least).sum::<f64>();
    let time_left: f64 = spans.iter().filter(|s| !s.lifted).map(AxisSpan::length).sum();
    let mut out: Vec<AxisSpan> = Vec::new();
    for span in spans {
        let share = if span.lifted { span.least } else { share_left * span.length() / time_left };
        match out.last_mut() {
            Some(last) if !last.lifted && !span.lifted => {
                last.to_ns = span.to_ns;
                last.least += share;
            }
            _ => out.push(AxisSpan { least: share, ..*span }),
        }
    }
    out
}

fn lay_out(spans: &[AxisSpan], width: usize) -> Vec<AxisSegment> {
    let cells_left = width.saturating_sub(spans.len().saturating_sub(1)).max(spans.len());
    let mut segments: Vec<AxisSegment> = Vec::new();
    let mut share = 0.0;
    let mut used = 0;
    for span in spans {
        share += span.least;
        // Round the ends, not the lengths, so that the lengths sum to the width.
        let end = ((share * cells_left as f64).round() as usize).clamp(used + 1, cells_left.max(used + 1));
        let at = segments.last().map_or(0, |last| last.at + last.cells + 1);
        segments.push(AxisSegment { from_ns: span.from_ns, to_ns: span.to_ns, at, cells: end - used });
        used = end;
    }
    segments
}

fn put(line: &mut [char], at: usize, c: char) {
    if let Some(cell) = line.get_mut(at) {
        *cell = c;
    }
}

fn write(line: &mut [char], at: usize, text: &str) {
    for (offset, c) in text.chars().enumerate() {
        put(line, at + offset, c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(line: &[char]) -> String {
        line.iter().collect()
    }

    #[test]
    fn one_scale_where_every_part_can_be_seen() {
        let axis =
            TimeAxis::new(&[AxisPart { end_ns: 500, least: 0.2 }, AxisPart { end_ns: 1_000, least: 0.2 }], 8);
        assert_eq!(text(&axis.bar(0, 1_000)), "████████");
        assert_eq!(text(&axis.bar(250, 500)), "  ██    ");
        assert_eq!(text(&axis.bar(0, 94)), "▊       ", "three quarters of a cell");
        assert_eq!(text(&axis.bar(500, 500)), "    ▏   ", "a tick");
        assert_eq!(text(&axis.bar(1_000, 1_000)), "       ▕", "a tick at the end");
        assert_eq!(text(&axis.bar(5_000, 9_000)), "       ▕", "beyond the end");
    }

    #[test]
    fn a_short_part_gets_a_scale_of_its_own() {
        let parts =
            [AxisPart { end_ns: 200_000, least: 0.4 }, AxisPart { end_ns: 2_000_000_000, least: 0.4 }];
        let axis = TimeAxis::new(&parts, 21);
        assert_eq!(text(&axis.ruler()), " 200 µs ┊╶─ 2.00 s ─╴");
        assert_eq!(text(&axis.bar(0, 100_000)), "████    ┊            ");
        assert_eq!(text(&axis.bar(100_000, 2_000_000_000)), "    ████┊████████████");
        let mut line = axis.bar(0, 50_000);
        axis.run_beside(&mut line, 0, 1_000_000_000);
        assert_eq!(text(&line), "██┈┈┈┈┈┈┊┈┈┈┈┈┈      ");
    }

    proptest! {
        #[test]
        fn a_line_is_as_wide_as_asked_and_never_without_a_mark(
            ends in proptest::collection::vec(0_u64..4_000_000_000, 1..5), width in 8_usize..200,
            start in 0_u64..4_000_000_000, length in 0_u64..4_000_000_000,
        ) {
            let mut ends = ends;
            ends.sort_unstable();
            let parts: Vec<_> = ends.iter().map(|end_ns| AxisPart { end_ns: *end_ns, least: 0.2 }).collect();
            let axis = TimeAxis::new(&parts, width);
            let line = axis.bar(start, start + length);
            prop_assert_eq!(line.len(), width);
            prop_assert!(line.iter().any(|c| *c != ' ' && *c != BREAK));
            prop_assert_eq!(axis.ruler().len(), width);
        }
    }
}
