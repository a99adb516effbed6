//! Background work that lets go of its core now and then.
//!
//! A thread that computes keeps its core for as long as the scheduler lets it, some milliseconds even at a low
//! priority (on Linux, nice values do not count between processes of different sessions), and whoever answers a client
//! waits behind it where cores are few. A moment's sleep hands the core over at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::alloc::heaps;

/// Nobody is answered by this process.
static ALONE: AtomicBool = AtomicBool::new(false);
/// Writers wait for what is done in the background.
static PRESSED: AtomicBool = AtomicBool::new(false);

/// From now on nothing pauses: this process serves nobody.
pub fn serve_nobody() {
    ALONE.store(true, Ordering::Relaxed);
}

/// Says whether writers wait for what is done in the background. What they wait for does not pause then ([`Pace::of_writers`]): on busy
/// cores a moment takes longer than the work before it.
pub fn press(pressed: bool) {
    PRESSED.store(pressed, Ordering::Relaxed);
}

/// Whether they do, as of the last look.
pub fn is_pressed() -> bool {
    PRESSED.load(Ordering::Relaxed)
}

/// The longest piece of work between two moments.
const WORK: Duration = Duration::from_micros(300);
/// A moment; the system's timers make some 50 µs of it.
const MOMENT: Duration = Duration::from_nanos(1);

/// Of what keeps others from the disk, or gives them work, so many times as long is left to them.
const REST: u32 = 4;
/// What takes less is none.
const PIECE: Duration = Duration::from_micros(100);

/// Does a piece of work that keeps the disk or the file system from others, and leaves it to them for some times as long, if it
/// `may_rest`.
pub fn at_times<R>(may_rest: bool, piece: impl FnOnce() -> R) -> R {
    let began = Instant::now();
    let result = piece();
    let took = began.elapsed();
    if may_rest && took >= PIECE && !ALONE.load(Ordering::Relaxed) {
        std::thread::sleep(took * REST);
    }
    result
}

/// What of a file is given back at once: to free its pages and blocks takes a core's time that the kernel does not let go of.
pub const PIECE_BYTES: u64 = if cfg!(test) { 4096 } else { 4 << 20 };

/// Shortens a file of so many bytes `to` less and less, piece by piece, until one is left, as [`at_times`] does.
///
/// # Errors
/// The first of `to`, which is not called again.
pub fn shorten<E>(bytes: u64, may_rest: impl Fn() -> bool, mut to: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
    let mut pieces = (1..bytes.div_ceil(PIECE_BYTES)).rev();
    pieces.try_for_each(|left| at_times(may_rest(), || to(left * PIECE_BYTES)))
}

/// How long a thread has worked without a pause.
#[derive(Debug)]
pub struct Pace {
    since: Instant,
    of_writers: bool,
    /// So many times as long as it has worked it rests.
    rest: u32,
}

impl Pace {
    /// Work that begins now.
    pub fn new() -> Self {
        Pace { since: Instant::now(), of_writers: false, rest: 0 }
    }

    /// Work for which writers wait if there is too much of it, at a low priority.
    pub fn of_writers() -> Self {
        Pace { of_writers: true, ..Pace::new() }
    }

    /// The same where those who serve have a part in the work, as who owns what is freed: most of the time is left to them.
    pub fn sparing() -> Self {
        Pace { rest: REST, ..Pace::of_writers() }
    }

    /// A step of the work is done: pauses if it is time to, and tells of what it has freed. The caller holds no lock.
    pub fn step(&mut self) {
        heaps::tell_owners();
        if self.may_pause(ALONE.load(Ordering::Relaxed), is_pressed())
            && let Some(pause) = self.pause_after(self.since.elapsed())
        {
            std::thread::sleep(pause);
            self.since = Instant::now();
        }
    }

    /// The pause after so much, which may have been waiting in part.
    fn pause_after(&self, worked: Duration) -> Option<Duration> {
        let long = if self.rest > 0 { PIECE } else { WORK };
        (worked >= long).then(|| MOMENT.max(worked.min(WORK) * self.rest))
    }

    const fn may_pause(&self, alone: bool, pressed: bool) -> bool {
        !(alone || pressed && self.of_writers)
    }
}

impl Default for Pace {
    fn default() -> Self {
        Pace::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_worked_long_pauses_and_begins_anew() {
        let start = Instant::now();
        let mut pace = Pace { since: start, ..Pace::new() };
        std::thread::sleep(WORK);
        pace.step();
        assert!(pace.since > start + WORK);
    }

    #[test]
    fn a_file_is_shortened_to_one_piece_or_as_far_as_it_goes() {
        let shortened = |bytes, most| {
            let mut all = Vec::new();
            let result = shorten(
                bytes,
                || false,
                |left| {
                    all.push(left / PIECE_BYTES);
                    if all.len() < most { Ok(()) } else { Err(()) }
                },
            );
            (result, all)
        };
        assert_eq!(shortened(0, 9), (Ok(()), vec![]));
        assert_eq!(shortened(PIECE_BYTES, 9), (Ok(()), vec![]));
        assert_eq!(shortened(3 * PIECE_BYTES + 1, 9), (Ok(()), vec![3, 2, 1]));
        assert_eq!(shortened(4 * PIECE_BYTES, 2), (Err(()), vec![3, 2]));
    }

    #[test]
    fn who_spares_others_rests_most_of_the_time_and_not_for_long() {
        let pauses = |pace: Pace| [PIECE / 2, PIECE, WORK, WORK * 1000].map(|worked| pace.pause_after(worked));
        let rest = WORK * REST;
        assert_eq!(pauses(Pace::sparing()), [None, Some(PIECE * REST), Some(rest), Some(rest)]);
        assert_eq!(pauses(Pace::new()), [None, None, Some(MOMENT), Some(MOMENT)]);
    }

    #[test]
    fn what_writers_wait_for_does_not_pause() {
        let pauses = |pace: Pace| {
            [(false, false), (false, true), (true, false)].map(|(alone, pressed)| pace.may_pause(alone, pressed))
        };
        assert_eq!(pauses(Pace::new()), [true, true, false]);
        assert_eq!(pauses(Pace::of_writers()), [true, false, false]);
        assert_eq!(pauses(Pace::sparing()), [true, false, false]);
    }
}
