//! Libraries of functions: what FUNCTION LOAD brought, compiled.
//!
//! A library is one record of shard 0, its code under its name, so that a change costs what the library has and not what all have;
//! the functions are what the code registers when it is run, and are stored nowhere. All cores share one immutable list, replaced under the lease of all shards: whoever holds any core runs
//! the function that is the latest, and nobody runs an older one behind it. The list knows the LSN that made it, which a reply
//! that depends on it waits for.
//!
//! FLUSHALL leaves libraries alone, as in Redis; only FUNCTION DELETE, FLUSH and RESTORE remove one.
//!
//! Names of libraries are compared byte by byte, those of functions whatever the case of their letters, as Redis does.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::log::Lsn;
use crate::lua::Chunk;

/// A function of a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// As it was registered.
    pub name: Box<[u8]>,
    /// What its author says about it.
    pub description: Option<Box<[u8]>>,
    /// What it was registered with: bits that whoever makes libraries knows the meaning of.
    pub flags: u8,
}

/// A library.
#[derive(Debug)]
pub struct Library {
    /// No two libraries of a process have the same.
    pub id: u64,
    /// Its name, as its code says it.
    pub name: Box<[u8]>,
    /// Its source text, from the first line on.
    pub code: Box<[u8]>,
    /// The same compiled; `None` for one that was stored and cannot be loaded any more.
    pub chunk: Option<Arc<Chunk>>,
    /// In the order in which they were registered.
    pub functions: Vec<Function>,
    /// About its memory, bytes.
    pub bytes: usize,
}

impl Library {
    /// A library as it was loaded.
    pub fn new(name: &[u8], code: &[u8], chunk: Option<Arc<Chunk>>, functions: Vec<Function>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let of_function = |function: &Function| {
            let texts = 2 * function.name.len() + function.description.as_ref().map_or(0, |text| text.len());
            FUNCTION_BYTES + texts
        };
        let bytes = size_of::<Library>()
            + 2 * name.len()
            + code.len()
            + chunk.as_ref().map_or(0, |chunk| chunk.bytes())
            + functions.iter().map(of_function).sum::<usize>();
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Library { id, name: name.into(), code: code.into(), chunk, functions, bytes }
    }
}

/// A function's places in its library and in the list.
const FUNCTION_BYTES: usize = size_of::<Function>() + 64;

/// All libraries, immutable but for the LSN.
#[derive(Debug, Default)]
pub struct Libraries {
    by_name: BTreeMap<Box<[u8]>, Arc<Library>>,
    /// By their names in lower case: the library, and the place among its functions.
    functions: HashMap<Box<[u8]>, (Arc<Library>, usize)>,
    bytes: usize,
    /// The commit that made this list; 0 before it, and for what was there at the start.
    lsn: AtomicU64,
}

impl Libraries {
    /// The list with these libraries, which replace those of the same names.
    ///
    /// # Errors
    /// The name of a function that two libraries would have.
    pub fn with(&self, new: Vec<Arc<Library>>) -> Result<Libraries, Box<[u8]>> {
        let mut by_name = self.by_name.clone();
        new.iter().for_each(|library| _ = by_name.remove(&library.name));
        // The new ones come last: they are who is told of a function that is there already.
        let mut functions = HashMap::new();
        for library in by_name.values().chain(&new) {
            for (at, function) in library.functions.iter().enumerate() {
                let name = function.name.to_ascii_lowercase().into_boxed_slice();
                if functions.insert(name, (library.clone(), at)).is_some() {
                    return Err(function.name.clone());
                }
            }
        }
        by_name.extend(new.into_iter().map(|library| (library.name.clone(), library)));
        let bytes = by_name.values().map(|library| library.bytes).sum();
        Ok(Libraries { by_name, functions, bytes, lsn: AtomicU64::new(0) })
    }

    /// The list without a library.
    pub fn without(&self, name: &[u8]) -> Libraries {
        let left = self.by_name.values().filter(|library| *library.name != *name).cloned().collect();
        match Libraries::default().with(left) {
            Ok(libraries) => libraries,
            Err(_) => unreachable!("those that are left had no function in common before"),
        }
    }

    /// A library.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<Library>> {
        self.by_name.get(name)
    }

    /// A function: its library, and its place there.
    pub fn function(&self, name: &[u8]) -> Option<(Arc<Library>, usize)> {
        match self.functions.get(name) {
            Some(found) => Some(found.clone()),
            None => self.functions.get(&*name.to_ascii_lowercase()).cloned(),
        }
    }

    /// All libraries, in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Library>> {
        self.by_name.values()
    }

    /// How many libraries, and how many functions, there are.
    pub fn counts(&self) -> (usize, usize) {
        (self.by_name.len(), self.functions.len())
    }

    /// About the memory of all, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The commit that a reply waits for which depends on the list.
    pub fn lsn(&self) -> Lsn {
        self.lsn.load(Ordering::Relaxed)
    }

    /// The list has been committed. Its cores are under lease: nobody has seen it before.
    pub fn stamp(&self, lsn: Lsn) {
        self.lsn.store(lsn, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn library(name: &str, functions: &[&str]) -> Arc<Library> {
        let made = |name: &&str| Function { name: name.as_bytes().into(), description: None, flags: 0 };
        Arc::new(Library::new(name.as_bytes(), b"code", None, functions.iter().map(made).collect()))
    }

    #[test]
    fn functions_are_found_whatever_their_case_and_have_one_library() {
        let list = Libraries::default().with(vec![library("a", &["f", "G"]), library("A", &["h"])]).unwrap();
        assert_eq!(list.counts(), (2, 3));
        assert_eq!(list.function(b"g").map(|(library, at)| (library.name.clone(), at)), Some((b"a"[..].into(), 1)));
        assert!(list.function(b"F").is_some() && list.function(b"x").is_none());
        assert_eq!(list.with(vec![library("b", &["g"])]).unwrap_err(), b"g"[..].into());
        let list = list.with(vec![library("a", &["x"]), library("b", &["g"])]).unwrap();
        assert_eq!(list.counts(), (3, 3));
        let (with, without) = (list.bytes(), list.without(b"b"));
        assert!(without.function(b"g").is_none() && without.bytes() < with);
        assert_eq!(list.with(vec![library("c", &["y", "Y"])]).unwrap_err(), b"Y"[..].into());
    }
}
