//! ACL: users, and what they may do.
//!
//! | file | owns |
//! |---|---|
//! | this one | all users, and what a session knows of its own |
//! | [`user`] | one user |
//! | [`selector`] | one set of rules, and what they come to |
//! | [`category`] | sets of commands |
//! | [`rules`] | rules as they are written |
//! | [`check`] | whether a call is allowed |
//! | [`log`] | ACL LOG |
//!
//! Users are immutable: a change puts another one in the place of the old, and raises the **generation**. A session keeps its
//! user, and the generation in which that was found to be one who may do everything. As long as that is the current one, there is
//! nothing to check; this comparison is all that a command costs where nobody has restricted anything.
//!
//! Invariants:
//! - Whoever has seen a generation sees its users: a call that begins after ACL SETUSER was answered is judged by it.
//! - A session whose user was removed, be there another of the same name by now, may do nothing any more.

pub mod category;
pub mod check;
pub mod log;
pub mod rules;
pub mod selector;
pub mod user;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use self::log::{Denial, Log, Reason};
use self::user::{DEFAULT, User};
use super::{After, Ctx, Server, Session, Table};
use crate::util::time::now_ms;

/// Users by their names.
pub type Users = BTreeMap<Arc<[u8]>, Arc<User>>;

/// All users, and what was not allowed.
pub struct Acl {
    table: &'static Table,
    users: RwLock<Users>,
    /// Counts changes, from 1.
    generation: AtomicU64,
    /// The default user needs no password, and may authenticate: who connects has.
    open: AtomicBool,
    log: Mutex<Log>,
    /// Denials by [`Reason`].
    denied: [AtomicU64; 4],
}

impl Acl {
    /// The default user alone, with this password; any is right if that is empty.
    pub fn new(table: &'static Table, password: &[u8]) -> Self {
        let acl = Acl {
            table,
            users: RwLock::default(),
            generation: AtomicU64::new(0),
            open: AtomicBool::new(true),
            log: Mutex::default(),
            denied: Default::default(),
        };
        let mut default = User::new_default(table);
        default.set_password(password);
        acl.put(None, default);
        acl
    }

    /// Counts changes of users.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// All users.
    pub fn users(&self) -> Users {
        self.users.read().clone()
    }

    /// A user by name.
    pub fn user(&self, name: &[u8]) -> Option<Arc<User>> {
        self.users.read().get(name).cloned()
    }

    /// Whether who connects may go on without authenticating.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether the default user has a password.
    pub fn asks_password(&self) -> bool {
        self.user(DEFAULT).is_some_and(|user| !user.nopass)
    }

    /// Puts a user in the place of what there was of its name. False if that is no longer there: nothing has changed.
    pub fn put(&self, old: Option<&Arc<User>>, mut user: User) -> bool {
        user.unrestricted = user.selectors.iter().any(|selector| selector.allows_all(self.table));
        let mut users = self.users.write();
        let is_same = match (old, users.get(&user.name)) {
            (None, None) => true,
            (Some(old), Some(now)) => Arc::ptr_eq(old, now),
            _ => false,
        };
        if is_same {
            users.insert(user.name.clone(), Arc::new(user));
            self.publish(&users);
        }
        is_same
    }

    /// Removes a user; whether it was there.
    pub fn remove(&self, name: &[u8]) -> bool {
        let mut users = self.users.write();
        let was_there = users.remove(name).is_some();
        if was_there {
            self.publish(&users);
        }
        was_there
    }

    /// Puts these in the place of all users; those that there were. Who has the name of one of these goes on as it.
    pub fn replace(&self, new: Vec<User>) -> Users {
        let mut users = self.users.write();
        let old = std::mem::take(&mut *users);
        for mut user in new {
            user.id = old.get(&user.name).map_or(user.id, |old| old.id);
            user.unrestricted = user.selectors.iter().any(|selector| selector.allows_all(self.table));
            users.insert(user.name.clone(), Arc::new(user));
        }
        self.publish(&users);
        old
    }

    /// Whoever sees the number finds the users: they are looked for under the lock that is held here.
    fn publish(&self, users: &RwLockWriteGuard<'_, Users>) {
        let open = users.get(DEFAULT).is_some_and(|default| default.enabled && default.nopass);
        self.open.store(open, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes a password the default user's only one, as `requirepass` says.
    pub fn set_default_password(&self, password: &[u8]) {
        while let Some(old) = self.user(DEFAULT) {
            let mut new = User::clone(&old);
            new.set_password(password);
            if self.put(Some(&old), new) {
                break;
            }
        }
    }

    /// The user whom name and password fit.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let hash = user::hash(password);
        self.user(name).filter(|user| user.admits(&hash))
    }

    /// Notes what was not allowed; no more than so many entries stay.
    pub fn deny(&self, denial: Denial, most: usize) {
        self.denied[denial.reason as usize].fetch_add(1, Ordering::Relaxed);
        self.log.lock().add(denial, now_ms(), most);
    }

    /// How often something was not allowed for this reason.
    pub fn denied(&self, reason: Reason) -> u64 {
        self.denied[reason as usize].load(Ordering::Relaxed)
    }

    /// Looks at what was not allowed.
    pub fn with_log<R>(&self, look: impl FnOnce(&mut Log) -> R) -> R {
        look(&mut self.log.lock())
    }
}

/// What a session is to the users.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its user, as it was when the session last looked.
    pub user: Arc<User>,
    /// It has authenticated, or did not have to.
    pub authenticated: bool,
    /// The generation in which it has looked; 0 for none.
    seen_in: u64,
    /// The same if it may do everything, else 0.
    free_in: u64,
}

impl Identity {
    /// That of a new connection.
    pub fn new(acl: &Acl) -> Self {
        let user = acl.user(DEFAULT).unwrap_or_else(|| Arc::new(User::new(acl.table, DEFAULT, false)));
        let authenticated = user.enabled && user.nopass;
        Identity { user, authenticated, seen_in: 0, free_in: 0 }
    }

    /// That of who may do nothing any more.
    fn nobody(acl: &Acl) -> Self {
        Identity { authenticated: false, ..Identity::of(Arc::new(User::new(acl.table, DEFAULT, false))) }
    }

    /// That of who has authenticated.
    pub fn of(user: Arc<User>) -> Self {
        Identity { user, authenticated: true, seen_in: 0, free_in: 0 }
    }
}

impl Session {
    /// Whether everything is allowed. One comparison; where it does not hold, [`look_up`](Session::look_up) says.
    #[inline]
    pub fn is_free(&self, server: &Server) -> bool {
        self.identity.free_in == server.acl.generation()
    }

    /// Whether it must authenticate before anything else.
    pub fn is_stranger(&self, server: &Server) -> bool {
        !self.identity.authenticated && !server.acl.is_open()
    }

    /// Whether it knows its user as it is now.
    pub fn is_up_to_date(&self, server: &Server) -> bool {
        self.identity.seen_in == server.acl.generation()
    }

    /// Follows changes of its user. One whose user is gone is a stranger from now on, and to be closed: false.
    #[cold]
    pub fn look_up(&mut self, server: &Server) -> bool {
        let generation = server.acl.generation();
        if self.identity.seen_in == generation {
            return true;
        }
        let user = &self.identity.user;
        let known = server.acl.user(&user.name).filter(|known| known.id == user.id);
        let is_known = known.is_some();
        match known {
            Some(user) => self.identity.user = user,
            None => {
                // Whatever of its is still under way may not go on as the default user, who may do everything, perhaps.
                self.become_user(Identity::nobody(&server.acl));
                self.after = After::Close;
            }
        }
        let free = self.identity.user.unrestricted && !self.is_stranger(server);
        self.identity.seen_in = generation;
        self.identity.free_in = if free { generation } else { 0 };
        is_known
    }

    /// Is this user from now on.
    pub fn become_user(&mut self, identity: Identity) {
        self.client.labels.lock().user = identity.user.name.clone();
        self.identity = identity;
    }
}

impl Ctx<'_, '_> {
    /// The session's user as it is now; none if everything is allowed.
    #[inline]
    pub fn restricted(&mut self) -> Option<Arc<User>> {
        if self.session.is_free(self.server) {
            return None;
        }
        self.session.look_up(self.server);
        let user = &self.session.identity.user;
        (!user.unrestricted).then(|| user.clone())
    }
}
