//! The command table: rows by name, and a slot for every command and subcommand.

use std::collections::HashMap;

use super::Command;

/// A command's place in the table.
pub type Id = u16;

/// A place of its own for every command and subcommand; counters are kept by it. A command's is its id.
pub type Slot = u32;

/// All commands by name.
pub struct Table {
    rows: Vec<&'static Command>,
    /// By id, the slot of a container's first subcommand.
    first_sub: Vec<Slot>,
    slots: usize,
    /// By the row's address.
    by_row: HashMap<usize, Slot, foldhash::fast::RandomState>,
    by_name: HashMap<Vec<u8>, Id, foldhash::fast::RandomState>,
    /// Some are called by other names than those of their rows.
    renamed: bool,
}

fn address(row: &Command) -> usize {
    std::ptr::from_ref(row).addr()
}

/// No command's own name is longer.
const LONGEST_NAME: usize = 32;

impl Table {
    /// The table of these families.
    pub fn new(families: &[&'static [Command]]) -> Self {
        let rows: Vec<&'static Command> = families.iter().flat_map(|family| family.iter()).collect();
        let by_name = rows.iter().enumerate().map(|(id, row)| (row.name.as_bytes().to_vec(), id as Id)).collect();
        let mut slots = rows.len();
        let mut first_sub = Vec::with_capacity(rows.len());
        for row in &rows {
            first_sub.push(slots as Slot);
            slots += row.subcommands.len();
        }
        let own = rows.iter().enumerate().map(|(id, row)| (address(row), id as Slot));
        let subs =
            rows.iter().zip(&first_sub).flat_map(|(row, &first)| row.subcommands.iter().map(address).zip(first..));
        let by_row = own.chain(subs).collect();
        Table { rows, first_sub, slots, by_row, by_name, renamed: false }
    }

    /// The table in which the command `from` is called `to`, or not at all if that is empty. Its row keeps its own name.
    ///
    /// # Errors
    /// In Redis's words.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), &'static str> {
        let id = self.by_name.remove(&from.to_ascii_lowercase()).ok_or("No such command in rename-command")?;
        let to = to.to_ascii_lowercase();
        if self.by_name.contains_key(&to) {
            return Err("Target command name already exists");
        }
        if !to.is_empty() {
            self.by_name.insert(to, id);
        }
        self.renamed = true;
        Ok(())
    }

    /// Whether a name that is a row's may not be the one that the row is called by.
    #[inline]
    pub fn is_renamed(&self) -> bool {
        self.renamed
    }

    /// A command by name, in any case.
    pub fn find(&self, name: &[u8]) -> Option<(Id, &'static Command)> {
        let mut lower = [0; LONGEST_NAME];
        let id = match lower.get_mut(..name.len()) {
            Some(lower) => {
                for (to, from) in lower.iter_mut().zip(name) {
                    *to = from.to_ascii_lowercase();
                }
                *self.by_name.get(&*lower)?
            }
            None if self.renamed => *self.by_name.get(&name.to_ascii_lowercase())?,
            None => return None,
        };
        Some((id, self.rows[id as usize]))
    }

    /// The slot of a command, or of the subcommand of it that [`Command::resolve`] found.
    #[inline]
    pub fn slot(&self, id: Id, row: &Command) -> Slot {
        if std::ptr::eq(self.rows[id as usize], row) { id.into() } else { self.sub_slot(id, row) }
    }

    #[cold]
    fn sub_slot(&self, id: Id, row: &Command) -> Slot {
        let subcommands = self.rows[id as usize].subcommands;
        let at = subcommands.iter().position(|sub| std::ptr::eq(sub, row));
        at.map_or(id.into(), |at| self.first_sub[id as usize] + at as Slot)
    }

    /// The slot of a row of this table.
    pub fn slot_of(&self, row: &Command) -> Slot {
        self.by_row[&address(row)]
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Full name (`client|kill`) of what has this slot.
    pub fn slot_name(&self, slot: Slot) -> Option<String> {
        if let Some(row) = self.rows.get(slot as usize) {
            return Some(row.name.to_owned());
        }
        let id = self.first_sub.partition_point(|&first| first <= slot).checked_sub(1)?;
        let sub = self.rows[id].subcommands.get((slot - self.first_sub[id]) as usize)?;
        Some(format!("{}|{}", self.rows[id].name, sub.name))
    }

    /// All rows that can be called, in the order of their ids.
    pub fn rows(&self) -> Vec<&'static Command> {
        let mut ids: Vec<Id> = self.by_name.values().copied().collect();
        ids.sort_unstable();
        ids.into_iter().map(|id| self.rows[id as usize]).collect()
    }
}
