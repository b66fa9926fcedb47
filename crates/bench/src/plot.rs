//! Plots made of characters: a curve over time, and bars. Knows only numbers and a width.

/// Options of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlotStyle {
    /// Maximum number of columns.
    pub width: usize,
    /// Whether the terminal supports colours.
    pub color: bool,
}

const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LEFT_EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
const INK: &str = "\x1b[36m";
const FAINT: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";
/// Columns before the plot itself: a number and a line.
const MARGIN: usize = 10;
/// Maximum columns of the curve.
const MOST_COLUMNS: usize = 120;
/// Rows of the curve.
const ROWS: usize = 7;

/// A curve with one column per value, or several values per column, from zero to the maximum. `axis` labels the first
/// and the last index below the curve.
pub(crate) fn curve(values: &[f64], axis: impl Fn(usize) -> String, look: PlotStyle) -> String {
    let room = look.width.saturating_sub(MARGIN).clamp(10, MOST_COLUMNS);
    let each = values.len().div_ceil(room).max(1);
    let wide = (room / values.len().max(1)).clamp(1, 8);
    let means: Vec<f64> =
        values.chunks(each).map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64).collect();
    let top = means.iter().copied().fold(0.0, f64::max);
    let scale = if top > 0.0 { top } else { 1.0 };
    let mut out = String::new();
    for row in (0..ROWS).rev() {
        let label = match row {
            _ if row == ROWS - 1 => short(top),
            0 => "0".to_owned(),
            _ => String::new(),
        };
        let mut cells = String::new();
        for mean in &means {
            let height = mean / scale * ROWS as f64 * 8.0 - row as f64 * 8.0;
            // A float cast saturates.
            let eighths = (height.round().clamp(0.0, 8.0)) as usize;
            let cell = EIGHTHS.get(eighths).copied().unwrap_or('█');
            cells.extend(std::iter::repeat_n(cell, wide));
        }
        line(&mut out, &label, cells.trim_end(), look);
    }
    let drawn = means.len().saturating_mul(wide);
    let (from, to) = (axis(0), axis(values.len().saturating_sub(1)));
    let between = drawn.saturating_sub(from.chars().count()).saturating_sub(to.chars().count()).max(1);
    faint(&mut out, &format!("{:>MARGIN$}{from}{}{to}", "", " ".repeat(between)), look);
    out.push('\n');
    out
}

/// One bar per value, followed by the value. The maximum has the longest bar.
pub(crate) fn bars(rows: &[(String, u64)], look: PlotStyle) -> String {
    let top = rows.iter().map(|(_, value)| *value).max().unwrap_or(0).max(1);
    let shown: Vec<String> = rows.iter().map(|(_, value)| value.to_string()).collect();
    let longest = shown.iter().map(String::len).max().unwrap_or(0);
    let room = look.width.saturating_sub(MARGIN + 2).saturating_sub(longest).clamp(8, 60);
    let mut out = String::new();
    for ((label, value), shown) in rows.iter().zip(shown) {
        let eighths = (*value as f64 / top as f64 * room as f64 * 8.0).round() as usize;
        let mut bar = "█".repeat(eighths / 8);
        match LEFT_EIGHTHS.get(eighths % 8) {
            Some(' ') | None if *value > 0 && eighths == 0 => bar.push('▏'),
            Some(' ') | None => {}
            Some(part) => bar.push(*part),
        }
        line(&mut out, label, &bar, look);
        // The value goes after the bar, on the same line.
        out.pop();
        if *value > 0 {
            faint(&mut out, &format!(" {shown}"), look);
        }
        out.push('\n');
    }
    out
}

fn line(out: &mut String, label: &str, cells: &str, look: PlotStyle) {
    let width = MARGIN - 2;
    faint(out, &format!("{label:>width$} ┤"), look);
    if look.color && !cells.is_empty() {
        out.push_str(INK);
        out.push_str(cells);
        out.push_str(PLAIN);
    } else {
        out.push_str(cells);
    }
    out.push('\n');
}

pub(crate) fn faint(out: &mut String, text: &str, look: PlotStyle) {
    if look.color {
        out.push_str(FAINT);
        out.push_str(text);
        out.push_str(PLAIN);
    } else {
        out.push_str(text);
    }
}

/// Formats a number in few characters.
pub(crate) fn short(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{:.1}M", value / 1e6),
        _ if value >= 1e4 => format!("{:.1}k", value / 1e3),
        _ if value >= 100.0 || value == 0.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: PlotStyle = PlotStyle { width: 40, color: false };

    #[test]
    fn a_curve() {
        let drawn = curve(&[0.0, 50.0, 100.0, 25.0], |at| format!("{at}s"), LOOK);
        let expected = "
     100 ┤              ███████
         ┤              ███████
         ┤              ███████
         ┤       ▄▄▄▄▄▄▄███████
         ┤       ██████████████
         ┤       ██████████████▆▆▆▆▆▆▆
       0 ┤       █████████████████████
          0s                        3s
";
        assert_eq!(drawn, expected.trim_start_matches('\n'));
    }

    #[test]
    fn bars_end_in_eighths_and_show_their_value() {
        let rows = [("1 ms".to_owned(), 8), ("2 ms".to_owned(), 3), ("3 ms".to_owned(), 0)];
        let drawn = bars(&rows, PlotStyle { width: 21, color: false });
        let expected = "
    1 ms ┤████████ 8
    2 ms ┤███ 3
    3 ms ┤
";
        assert_eq!(drawn, expected.trim_start_matches('\n'));
        let rows = [("a".to_owned(), 10_000), ("b".to_owned(), 1)];
        assert!(bars(&rows, LOOK).lines().nth(1).unwrap().contains('▏'));
    }

    /// For any numbers, no line is wider than the terminal, and without colour no escape is written.
    #[test]
    fn plots_keep_to_their_width() {
        for count in [0, 1, 2, 29, 30, 31, 1_000] {
            let values: Vec<f64> = (0..count).map(|at| f64::from(at * 37 % 101)).collect();
            for width in [40, 80, 200] {
                let drawn = curve(&values, |at| format!("{at} s"), PlotStyle { width, color: false });
                let widest = drawn.lines().map(|line| line.chars().count()).max().unwrap();
                assert!(widest <= width && !drawn.contains('\x1b'), "{count} values on {width}: {widest}");
            }
        }
        assert!(curve(&[1.0], |_| String::new(), PlotStyle { width: 40, color: true }).contains(INK));
    }
}
