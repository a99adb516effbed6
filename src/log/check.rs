//! Looking at a log that is not open, for `tarn check`: what is there, where it is damaged, what a cut would take.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::Io;
use super::read::{Found, Walker, cut};
use super::{Damage, Lsn, OpenError, Origin};

/// What [`scan`] found.
#[derive(Debug)]
pub struct Report {
    /// The segments, oldest first; those after a damage are listed with what was read of them: nothing.
    pub segments: Vec<SegmentReport>,
    /// LSN of the last whole record; one less than the first segment's first if there is none.
    pub last: Lsn,
    /// The highest LSN that a whole frame says was synced.
    pub synced: Lsn,
    /// The first damage, at which reading ended.
    pub damage: Option<Damage>,
    found: Vec<(Lsn, PathBuf)>,
}

/// One segment as far as it could be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its file.
    pub path: PathBuf,
    /// The first LSN, from its name.
    pub first: Lsn,
    /// Its length.
    pub size_bytes: u64,
    /// Whole frames.
    pub frames: u64,
    /// Records in them.
    pub records: u64,
}

/// What [`repair`] took away.
#[derive(Debug)]
pub struct Repair {
    /// Where the log was cut, and what went.
    pub damage: Damage,
}

/// Reads a log without changing it.
///
/// # Errors
/// What the disk says, or a format of another version. A damage is no error but part of the report.
pub fn scan(io: &Arc<dyn Io>, dir: &Path, origin: Origin) -> Result<Report, OpenError> {
    let mut walker = Walker::new(io.clone(), dir, origin)?;
    let mut segments = Vec::with_capacity(walker.segments.len());
    for (first, path) in &walker.segments {
        let size_bytes = io.open(path).and_then(|file| file.size_bytes());
        let size_bytes = size_bytes.map_err(|source| OpenError::io(path, source))?;
        segments.push(SegmentReport { path: path.clone(), first: *first, size_bytes, ..SegmentReport::default() });
    }
    let damage = loop {
        match walker.next_frame()? {
            Found::Frame(header) => {
                let segment = &mut segments[walker.index];
                segment.frames += 1;
                segment.records += u64::from(header.count);
            }
            Found::End => break None,
            Found::Damage(damage) => break Some(damage),
        }
    };
    Ok(Report { segments, last: walker.expected - 1, synced: walker.synced, damage, found: walker.segments })
}

/// Cuts a log at its first damage, whether what follows was promised or not. `None` if it is whole.
///
/// # Errors
/// As [`scan`]; an interrupted repair is to be done again.
pub fn repair(io: &Arc<dyn Io>, dir: &Path, origin: Origin) -> Result<Option<Repair>, OpenError> {
    let report = scan(io, dir, origin)?;
    let Some(damage) = report.damage else { return Ok(None) };
    cut(&**io, dir, origin.owner, &report.found, &damage)?;
    Ok(Some(Repair { damage }))
}
