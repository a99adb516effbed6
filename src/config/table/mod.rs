//! The table of directives: one row each, in sections. Parsing, `CONFIG GET/SET/REWRITE`, the template of
//! `tarn.conf`, the list in COMPAT.md and `tarn --help` all come from it.
//!
//! `live` has what Tarn acts upon, `accepted` what it takes from a redis.conf and reads back.
//! A directive with an effect is a row in `live` and a field in [`super::settings::Settings`].

mod accepted;
mod live;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::value::{Kind, Value};

/// A directive.
#[derive(Debug, Clone, Copy)]
pub struct Directive {
    /// Its name, in lower case.
    pub name: &'static str,
    /// An older name that means the same.
    pub alias: Option<&'static str>,
    /// What it takes.
    pub kind: Kind,
    /// Its default, as `CONFIG SET` would be given it.
    pub default: &'static str,
    /// When it can change.
    pub change: Change,
    /// What it does in Tarn.
    pub effect: Effect,
    /// It names files, whose content is what counts: given again they are read again.
    pub of_file: bool,
    /// One sentence on what it does in Tarn.
    pub doc: &'static str,
}

/// When a directive can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// At any time.
    Any,
    /// Only in the file and on the command line.
    Start,
    /// As `Start`; `CONFIG SET` answers as Redis does for its protected directives.
    Protected,
}

/// What a directive does in Tarn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// What its doc says.
    Live,
    /// Nothing: it is checked as Redis checks it, kept and read back.
    Accepted,
}

/// Directives that belong together.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    /// What they are about.
    pub title: &'static str,
    /// The rows.
    pub rows: &'static [Directive],
}

const fn live(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Directive {
    Directive { name, alias: None, kind, default, change: Change::Any, effect: Effect::Live, of_file: false, doc }
}

const fn accepted(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Directive {
    Directive { name, alias: None, kind, default, change: Change::Any, effect: Effect::Accepted, of_file: false, doc }
}

impl Directive {
    const fn alias(self, name: &'static str) -> Self {
        Self { alias: Some(name), ..self }
    }

    const fn at_start(self) -> Self {
        Self { change: Change::Start, ..self }
    }

    const fn protected(self) -> Self {
        Self { change: Change::Protected, ..self }
    }

    const fn of_file(self) -> Self {
        Self { of_file: true, ..self }
    }

    /// The value it has when nobody says otherwise.
    pub fn default_value(&self) -> Value {
        match self.kind.parse(&[self.default.into()], &Value::Text(Vec::new()), false) {
            Ok(value) => value,
            Err(why) => panic!("the default of {} is refused: {why}", self.name),
        }
    }
}

/// Every section, in the order in which they are shown.
pub const SECTIONS: &[&[Section]] = &[live::SECTIONS, accepted::SECTIONS];

/// Every directive, in the order of the table; the position is its index.
pub fn all() -> impl Iterator<Item = &'static Directive> {
    SECTIONS.iter().copied().flatten().flat_map(|section| section.rows)
}

/// The index and row of a directive by either of its names, in lower case.
pub fn find(name: &str) -> Option<(usize, &'static Directive)> {
    static BY_NAME: LazyLock<HashMap<&str, (usize, &Directive)>> = LazyLock::new(|| {
        let rows = all().enumerate();
        rows.flat_map(|(at, row)| [Some(row.name), row.alias].into_iter().flatten().map(move |name| (name, (at, row))))
            .collect()
    });
    BY_NAME.get(name).copied()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let mut names: Vec<_> = all().flat_map(|row| [Some(row.name), row.alias].into_iter().flatten()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for name in names {
            assert_eq!(name, name.to_ascii_lowercase());
            let row = find(name).unwrap().1;
            assert!(row.name == name || row.alias == Some(name));
        }
        assert!(find("no-such-thing").is_none());
    }

    #[test]
    fn rows_are_documented_in_one_sentence() {
        for row in all() {
            assert!(row.doc.ends_with('.') && row.doc.len() <= 220, "{}", row.name);
            assert!(row.doc.starts_with(|c: char| !c.is_ascii_lowercase()), "{}", row.name);
        }
    }

    #[test]
    fn sections_hold_one_effect() {
        for (sections, effect) in SECTIONS.iter().zip([Effect::Live, Effect::Accepted]) {
            assert!(sections.iter().flat_map(|section| section.rows).all(|row| row.effect == effect));
        }
    }
}
