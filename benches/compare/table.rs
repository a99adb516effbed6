//! Tables, in columns or as Markdown, and the numbers in them.

/// A table: its head, its rows, how many columns from the left hold words.
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) words: usize,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str], words: usize) -> Table {
        Table { head: head.iter().map(|cell| (*cell).to_owned()).collect(), words, rows: Vec::new() }
    }

    /// Adds a row, and shows it to whoever waits.
    pub(crate) fn push(&mut self, row: Vec<String>) {
        eprintln!("{}", row.join("  "));
        self.rows.push(row);
    }

    /// Without the columns that are empty in every row.
    pub(crate) fn dense(mut self) -> Table {
        for column in (0..self.head.len()).rev() {
            if self.rows.iter().all(|row| row[column].is_empty()) {
                self.head.remove(column);
                self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
                self.words -= usize::from(column < self.words);
            }
        }
        self
    }

    pub(crate) fn render(&self, markdown: bool) -> String {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut out = String::new();
        for (n, row) in all().enumerate() {
            let pad = |(c, cell): (usize, &String)| {
                let pad = " ".repeat(widths[c] - cell.chars().count());
                if c < self.words { format!("{cell}{pad}") } else { format!("{pad}{cell}") }
            };
            let cells: Vec<String> = row.iter().enumerate().map(pad).collect();
            if !markdown {
                out.push_str(&format!("{}\n", cells.join("  ")));
                continue;
            }
            out.push_str(&format!("| {} |\n", cells.join(" | ")));
            if n == 0 {
                let rule: Vec<&str> = (0..row.len()).map(|c| if c < self.words { "---" } else { "---:" }).collect();
                out.push_str(&format!("|{}|\n", rule.join("|")));
            }
        }
        out
    }
}

/// A part of the report.
pub(crate) struct Section {
    pub(crate) title: String,
    /// How it was measured, and what to know of the figures.
    pub(crate) text: String,
    pub(crate) table: Table,
    /// What the README keeps of it, if anything.
    pub(crate) short: Option<String>,
}

impl Section {
    /// Text and table below a title.
    pub(crate) fn render(&self, markdown: bool) -> String {
        let table =
            if self.table.rows.is_empty() { String::new() } else { format!("\n{}", self.table.render(markdown)) };
        format!("## {}\n\n{}\n{table}", self.title, self.text)
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// `1,234,567`.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Three digits that count: `0.034`, `1.23`, `12.3`, `123`, `1,230`.
pub(crate) fn short(number: f64) -> String {
    match number.abs() {
        n if n >= 99.95 => thousands(number),
        n if n >= 9.995 => format!("{number:.1}"),
        n if n >= 0.9995 => format!("{number:.2}"),
        n if n.is_nan() => "–".to_owned(),
        _ => format!("{number:.3}"),
    }
}

/// To three digits: `1,220,000`.
pub(crate) fn rounded(number: f64) -> String {
    let unit = 10f64.powf((number.max(1.0).log10().floor() - 2.0).max(0.0));
    thousands((number / unit).round() * unit)
}
