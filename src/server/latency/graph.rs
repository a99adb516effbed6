//! LATENCY GRAPH: samples as columns of text, as Redis draws them, each with its age below.

use std::fmt::Write as _;

use crate::latency::Series;

/// Columns of a line of the graph, and rows.
const COLUMNS: usize = 80;
const ROWS: usize = 4;
/// The top of a column, by thirds of a row; what is below it.
const TOPS: [char; 3] = ['_', 'o', '#'];
const BODY: char = '|';

/// An age as Redis tells it.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// What stands in a row, counted from the bottom, of a column of this height.
fn cell(height: usize, row: usize) -> char {
    match height.checked_sub(row * TOPS.len()) {
        None => ' ',
        Some(above) => TOPS.get(above).copied().unwrap_or(BODY),
    }
}

/// Draws the samples of an event.
pub(super) fn draw(name: &str, series: &Series, now_s: u64) -> String {
    let samples: Vec<(u64, u64)> = series.samples.iter().copied().collect();
    let high = samples.iter().map(|(_, ms)| *ms).max().unwrap_or(0);
    let low = samples.iter().map(|(_, ms)| *ms).min().unwrap_or(0);
    let mut text = format!("{name} - high {high} ms, low {low} ms (all time high {} ms)\n", series.most_ms);
    let _ = writeln!(text, "{}", "-".repeat(COLUMNS));
    let steps = ROWS * TOPS.len();
    let height = |ms: u64| ((ms - low) as usize * steps / (high - low).max(1) as usize).min(steps - 1);
    for (at, line) in samples.chunks(COLUMNS).enumerate() {
        if at > 0 {
            text.push('\n');
        }
        for row in (0..ROWS).rev() {
            text.extend(line.iter().map(|(_, ms)| cell(height(*ms), row)).chain(['\n']));
        }
        text.extend(line.iter().map(|_| ' ').chain(['\n']));
        let ages: Vec<Vec<char>> =
            line.iter().map(|(at_s, _)| age(now_s.saturating_sub(*at_s)).chars().collect()).collect();
        for row in 0..ages.iter().map(Vec::len).max().unwrap_or(0) {
            text.extend(ages.iter().map(|age| age.get(row).copied().unwrap_or(' ')).chain(['\n']));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Redis 8.2 draws the same.
    #[test]
    fn one_sample() {
        let series = Series { samples: [(100, 68)].into(), most_ms: 68 };
        let line = "-".repeat(80);
        let expected = format!("command - high 68 ms, low 68 ms (all time high 68 ms)\n{line}\n \n \n \n_\n \n0\ns\n");
        assert_eq!(draw("command", &series, 100), expected);
    }

    #[test]
    fn a_column_for_each_sample_with_its_age() {
        let series = Series { samples: [(1, 10), (940, 30), (990, 20), (1000, 50)].into(), most_ms: 90 };
        let drawn = draw("x", &series, 1000);
        let lines: Vec<&str> = drawn.lines().skip(2).collect();
        assert_eq!(lines, ["   #", " _ |", " |_|", "_|||", "    ", "1110", "6m0s", "m s "]);
    }
}
