//! Rules, as ACL SETUSER, ACL files and `user` lines have them: each changes a user, or is refused.

use super::category::category;
use super::selector::{KeyPattern, Selector, access};
use super::user::{Hash, User, hash};
use crate::error::{Error, Result};
use crate::handler::Table;
use crate::meter;
use crate::util::words::{is_space, split};

/// Why a rule is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "their texts say what they are")]
pub enum Refused {
    Unknown,
    Syntax,
    AllKeysAlready,
    AllChannelsAlready,
    NoSuchPassword,
    BadHash,
    ArgOfSubcommand,
}

impl Refused {
    /// Redis's text.
    pub fn text(self) -> &'static str {
        match self {
            Refused::Unknown => "Unknown command or category name in ACL",
            Refused::Syntax => "Syntax error",
            Refused::AllKeysAlready => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. \
                 Try 'resetkeys' to start with an empty list of patterns"
            }
            Refused::AllChannelsAlready => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
                 effect. Try 'resetchannels' to start with an empty list of channels"
            }
            Refused::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            Refused::BadHash => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            Refused::ArgOfSubcommand => "Allowing first-arg of a subcommand is not supported",
        }
    }
}

type Applied = Result<(), Refused>;

/// What rules are read with.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    /// All commands.
    pub table: &'a Table,
    /// `acl-pubsub-default`: what is new has all channels.
    pub all_channels: bool,
}

/// Steps that a rule of a category takes, beside those of a visit.
const STEPS_OF_A_CATEGORY: usize = 64;

/// Rules, those within parentheses put together. `Err` tells which parenthesis is not closed.
pub fn merge<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Vec<u8>>, Vec<u8>> {
    let mut rules: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<(Vec<u8>, &[u8])> = None;
    for word in words {
        match &mut open {
            Some((rule, _)) => {
                rule.push(b' ');
                rule.extend_from_slice(word);
            }
            None if word.starts_with(b"(") && !word.ends_with(b")") => open = Some((word.to_vec(), word)),
            None => rules.push(word.to_vec()),
        }
        if word.ends_with(b")")
            && let Some((rule, _)) = open.take()
        {
            rules.push(rule);
        }
    }
    match open {
        Some((_, first)) => Err(first.to_vec()),
        None => Ok(rules),
    }
}

impl Rules<'_> {
    /// Applies a rule to a user.
    ///
    /// # Errors
    /// Those of the meter. The inner ones are the rule's.
    pub fn apply(&self, user: &mut User, rule: &[u8]) -> Result<Applied> {
        let visited: usize = user.selectors.iter().map(Selector::len).sum();
        let of_category = rule.get(1) == Some(&b'@');
        meter::step(1 + visited + user.passwords.len() + if of_category { STEPS_OF_A_CATEGORY } else { 0 })?;
        meter::hold(size_of::<KeyPattern>() + rule.len())?;
        match rule.to_ascii_lowercase().as_slice() {
            b"" => {}
            b"on" => user.enabled = true,
            b"off" => user.enabled = false,
            b"nopass" => user.set_password(b""),
            b"resetpass" => (user.nopass, user.passwords) = (false, Vec::new()),
            b"sanitize-payload" => user.sanitize = true,
            b"skip-sanitize-payload" => user.sanitize = false,
            b"clearselectors" => user.selectors.truncate(1),
            b"reset" => {
                let User { id, name, .. } = user.clone();
                *user = User { id, name, ..User::new(self.table, b"", self.all_channels) };
            }
            _ => return self.apply_longer(user, rule),
        }
        Ok(Ok(()))
    }

    fn apply_longer(&self, user: &mut User, rule: &[u8]) -> Result<Applied> {
        match rule {
            [b'>', password @ ..] => add_password(user, hash(password)),
            [b'<', password @ ..] => return Ok(remove_password(user, &hash(password))),
            [b'#', hash @ ..] => match read_hash(hash) {
                Some(hash) => add_password(user, hash),
                None => return Ok(Err(Refused::BadHash)),
            },
            [b'!', hash @ ..] => {
                return Ok(read_hash(hash).ok_or(Refused::BadHash).and_then(|hash| remove_password(user, &hash)));
            }
            [b'(', rules @ .., b')'] => {
                let Some(rules) = split(rules) else { return Ok(Err(Refused::Syntax)) };
                let mut selector = Selector::new(self.table, self.all_channels);
                for rule in rules {
                    let of_category = rule.get(1) == Some(&b'@');
                    meter::step(1 + selector.len() + if of_category { STEPS_OF_A_CATEGORY } else { 0 })?;
                    if let Err(refused) = self.apply_to_selector(&mut selector, &rule) {
                        return Ok(Err(refused));
                    }
                }
                user.selectors.push(selector);
            }
            rule => return Ok(self.apply_to_selector(&mut user.selectors[0], rule)),
        }
        Ok(Ok(()))
    }

    fn apply_to_selector(&self, selector: &mut Selector, rule: &[u8]) -> Applied {
        match rule.to_ascii_lowercase().as_slice() {
            b"allkeys" | b"~*" => (selector.all_keys, selector.keys) = (true, Vec::new()),
            b"resetkeys" => (selector.all_keys, selector.keys) = (false, Vec::new()),
            b"allchannels" | b"&*" => (selector.all_channels, selector.channels) = (true, Vec::new()),
            b"resetchannels" => (selector.all_channels, selector.channels) = (false, Vec::new()),
            b"allcommands" | b"+@all" => selector.set_all(true),
            b"nocommands" | b"-@all" => selector.set_all(false),
            _ => match rule {
                [b'~', pattern @ ..] => return add_keys(selector, access::ALL, pattern),
                [b'%', rest @ ..] => {
                    if selector.all_keys {
                        return Err(Refused::AllKeysAlready);
                    }
                    let (access, pattern) = read_access(rest).ok_or(Refused::Syntax)?;
                    return add_keys(selector, access, pattern);
                }
                [b'&', channel @ ..] => return add_channels(selector, channel),
                [sign @ (b'+' | b'-'), b'@', name @ ..] => {
                    let category = category(name).ok_or(Refused::Unknown)?;
                    selector.set_category(self.table, category, *sign == b'+');
                }
                [b'+', name @ ..] => return self.allow(selector, name),
                [b'-', name @ ..] => {
                    let (row, _) = self.table.find_own(name).ok_or(Refused::Unknown)?;
                    selector.set_command(self.table, row, false);
                }
                _ => return Err(Refused::Syntax),
            },
        }
        Ok(())
    }

    /// `+command`, `+container|subcommand`, `+command|first-argument`.
    fn allow(&self, selector: &mut Selector, name: &[u8]) -> Applied {
        let Some(bar) = name.iter().rposition(|&byte| byte == b'|') else {
            let (row, _) = self.table.find_own(name).ok_or(Refused::Unknown)?;
            selector.set_command(self.table, row, true);
            return Ok(());
        };
        let (before, arg) = (&name[..bar], &name[bar + 1..]);
        let (row, container) = self.table.find_own(before).ok_or(Refused::Unknown)?;
        if container.is_some() {
            return Err(Refused::ArgOfSubcommand);
        }
        // A rule is a word in the ACL file.
        if arg.is_empty() || has_spaces(arg) {
            return Err(Refused::Syntax);
        }
        if row.subcommands.is_empty() {
            selector.allow_first_arg(self.table.slot_of(row), arg, name);
        } else {
            let (row, _) = self.table.find_own(name).ok_or(Refused::Unknown)?;
            selector.set_command(self.table, row, true);
        }
        Ok(())
    }
}

fn has_spaces(text: &[u8]) -> bool {
    text.iter().any(|&byte| byte == 0 || is_space(byte))
}

/// Whether a user may be called so.
pub fn is_name(name: &[u8]) -> bool {
    !has_spaces(name)
}

fn read_hash(hash: &[u8]) -> Option<Hash> {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    hash.try_into().ok().filter(|hash: &Hash| hash.iter().all(is_digit))
}

fn add_password(user: &mut User, hash: Hash) {
    if !user.passwords.contains(&hash) {
        user.passwords.push(hash);
    }
    user.nopass = false;
}

fn remove_password(user: &mut User, hash: &Hash) -> Applied {
    let at = user.passwords.iter().position(|own| own == hash).ok_or(Refused::NoSuchPassword)?;
    user.passwords.remove(at);
    Ok(())
}

/// The letters between `%` and `~`, and the pattern behind them.
fn read_access(text: &[u8]) -> Option<(u8, &[u8])> {
    let mut access = 0;
    for (at, letter) in text.iter().enumerate() {
        let bit = match letter.to_ascii_uppercase() {
            b'R' => access::READ,
            b'W' => access::WRITE,
            b'~' if access != 0 => return Some((access, &text[at + 1..])),
            _ => return None,
        };
        if access & bit != 0 {
            return None;
        }
        access |= bit;
    }
    (access != 0).then_some((access, b""))
}

fn add_keys(selector: &mut Selector, access: u8, pattern: &[u8]) -> Applied {
    if selector.all_keys {
        return Err(Refused::AllKeysAlready);
    }
    if has_spaces(pattern) {
        return Err(Refused::Syntax);
    }
    match selector.keys.iter_mut().find(|at| &*at.pattern == pattern) {
        Some(at) => at.access |= access,
        None => selector.keys.push(KeyPattern { access, pattern: pattern.into() }),
    }
    Ok(())
}

fn add_channels(selector: &mut Selector, pattern: &[u8]) -> Applied {
    if selector.all_channels {
        return Err(Refused::AllChannelsAlready);
    }
    if has_spaces(pattern) {
        return Err(Refused::Syntax);
    }
    if !selector.channels.iter().any(|own| &**own == pattern) {
        selector.channels.push(pattern.into());
    }
    Ok(())
}

/// The error of ACL SETUSER.
pub fn refusal(rule: &[u8], refused: Refused) -> Error {
    Error::quoting("ERR Error in ACL SETUSER modifier '", rule, usize::MAX, &format!("': {}", refused.text()))
}
