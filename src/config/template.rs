//! Texts made from the table: the commented `tarn.conf`, the tables of docs/configuration.md and of accepted directives in COMPAT.md,
//! the list in `tarn --help`.

use super::table::{self, Change, Directive, Effect, Section};

/// Comments are wrapped at this column.
const WIDTH: usize = 100;

/// A `tarn.conf` in which every directive that has an effect is explained and stands, commented out, at its default.
pub fn tarn_conf() -> String {
    let mut out = String::from(
        "# Configuration of Tarn, in the form of redis.conf.\n\
         #\n\
         # A line is a directive and its arguments; words with blanks stand in \"quotes\". Sizes take k, kb, m,\n\
         # mb, g, gb (1k is 1000, 1kb is 1024 bytes). Every directive can be given on the command line instead:\n\
         #\n\
         #     tarn tarn.conf --port 7000 --appendfsync always\n\
         #\n\
         # Directives of Redis that are not listed here are accepted and read back but do nothing; see COMPAT.md.\n\
         # Other files can be read in with\n\
         #\n\
         #     include /path/to/*.conf\n",
    );
    for section in sections(Effect::Live) {
        out.push_str(&format!("\n# ---- {} ----\n", section.title));
        for row in section.rows {
            out.push('\n');
            for line in wrap(&format!("{}{}", row.doc, change_note(row)), WIDTH - 2) {
                out.push_str(&format!("# {line}\n"));
            }
            out.push_str(&format!("# {} {}\n", row.name, default_of(row)));
        }
    }
    out
}

/// Markdown tables of the directives that have an effect.
pub fn live_table() -> String {
    let mut out = String::new();
    for section in sections(Effect::Live) {
        out.push_str(&format!("### {}\n\n| directive | default | live | |\n|---|---|---|---|\n", section.title));
        for row in section.rows {
            let alias = row.alias.map(|alias| format!(", `{alias}`")).unwrap_or_default();
            let live = if row.change == Change::Any { "yes" } else { "no" };
            let default = default_of(row);
            out.push_str(&format!("| `{}`{alias} | `{default}` | {live} | {} |\n", row.name, row.doc));
        }
        out.push('\n');
    }
    out
}

/// A Markdown table of the directives that are accepted without effect.
pub fn accepted_table() -> String {
    let mut out = String::new();
    for section in sections(Effect::Accepted) {
        out.push_str(&format!("### {}\n\n| directive | default | in Tarn |\n|---|---|---|\n", section.title));
        for row in section.rows {
            let alias = row.alias.map(|alias| format!(", `{alias}`")).unwrap_or_default();
            out.push_str(&format!("| `{}`{alias} | `{}` | {} |\n", row.name, default_of(row), row.doc));
        }
        out.push('\n');
    }
    out
}

/// The directives that have an effect, for the help of the command line.
pub fn help_list() -> String {
    let mut out = String::new();
    for section in sections(Effect::Live) {
        out.push_str(&format!("{}:\n", section.title));
        for row in section.rows {
            out.push_str(&format!("  --{} [default: {}]\n", row.name, default_of(row)));
            for line in wrap(row.doc, WIDTH - 10) {
                out.push_str(&format!("          {line}\n"));
            }
        }
        out.push('\n');
    }
    out
}

fn sections(effect: Effect) -> impl Iterator<Item = &'static Section> {
    let sections = table::SECTIONS.iter().copied().flatten();
    sections.filter(move |section| section.rows.iter().any(|row| row.effect == effect))
}

/// A row's default as a file would hold it. `dir` is shown as it is given: made absolute it would name a place on the
/// machine that made the text.
fn default_of(row: &Directive) -> String {
    if row.name == "dir" {
        return row.default.to_owned();
    }
    String::from_utf8_lossy(&row.kind.write(&row.default_value())).into_owned()
}

fn change_note(row: &Directive) -> &'static str {
    match row.change {
        Change::Any => "",
        Change::Start | Change::Protected => " Fixed while the server runs.",
    }
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::{Config, Source};
    use super::*;

    #[test]
    fn the_template_reads_as_the_defaults() {
        let text = tarn_conf();
        assert!(text.lines().all(|line| line.len() <= 120));
        let directives = text.lines().filter_map(|line| line.strip_prefix("# ")).filter(|line| {
            let name = line.split(' ').next().unwrap();
            // Prose begins with a capital letter, the example in the head with blanks.
            line.contains(' ') && name.starts_with(|c: char| c.is_ascii_lowercase()) && table::find(name).is_some()
        });
        let given: Vec<&str> = directives.collect();
        assert_eq!(given.len(), sections(Effect::Live).map(|section| section.rows.len()).sum::<usize>());
        let config = Config::load(Source::Stdin(given.join("\n").into()), &[]).unwrap();
        assert_eq!(config.get(&["*"]), Config::default().get(&["*"]));
    }

    /// That a file of the repository holds `made`, between two lines that mark it or else as a whole.
    /// `TARN_COMPAT_UPDATE=1` writes it there.
    fn holds(name: &str, marks: Option<[&str; 2]>, made: &str) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let (head, held, tail) = match marks {
            None => ("", &text[..], ""),
            Some([begin, end]) => {
                let from = text.find(begin).unwrap() + begin.len();
                let to = from + text[from..].find(end).unwrap();
                (&text[..from], &text[from..to], &text[to..])
            }
        };
        if std::env::var_os("TARN_COMPAT_UPDATE").is_some_and(|v| v == "1") {
            std::fs::write(path, [head, made, tail].concat()).unwrap();
        } else {
            assert!(held == made, "TARN_COMPAT_UPDATE=1 cargo test --lib config::template brings {name} up to date");
        }
    }

    #[test]
    fn the_documents_have_the_tables() {
        let accepted = ["<!-- accepted directives: begin -->\n", "<!-- accepted directives: end -->"];
        holds("COMPAT.md", Some(accepted), &accepted_table());
        let live = ["<!-- directives: begin -->\n", "<!-- directives: end -->"];
        holds("docs/configuration.md", Some(live), &live_table());
        holds("tarn.conf", None, &tarn_conf());
    }

    #[test]
    fn every_directive_is_in_one_text() {
        let (accepted, help, live) = (accepted_table(), help_list(), live_table());
        for row in table::all() {
            match row.effect {
                Effect::Accepted => assert_eq!(accepted.matches(&format!("| `{}`", row.name)).count(), 1),
                Effect::Live => {
                    assert_eq!(help.matches(&format!("  --{} [", row.name)).count(), 1);
                    assert_eq!(live.matches(&format!("| `{}`", row.name)).count(), 1);
                }
            }
        }
    }
}
