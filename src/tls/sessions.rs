//! Sessions that clients may take up again: bounded in number, bytes and time.

use std::time::Duration;

use moka::sync::Cache;
use rustls::server::StoresServerSessions;

/// More sessions are not kept, whatever `tls-session-cache-size` says.
const MOST: usize = 1 << 16;
/// What a session may take on average; it holds the client's certificates.
const BYTES: u64 = 1024;

/// The sessions of one configuration.
#[derive(Debug)]
pub(super) struct Sessions(Cache<Vec<u8>, Vec<u8>>);

impl Sessions {
    pub(super) fn new(most: usize, lifetime: Duration) -> Sessions {
        let bytes = |key: &Vec<u8>, value: &Vec<u8>| {
            u32::try_from(key.len() + value.len()).unwrap_or(u32::MAX).max(BYTES as u32)
        };
        let cache =
            Cache::builder().max_capacity(most.min(MOST) as u64 * BYTES).weigher(bytes).time_to_live(lifetime).build();
        Sessions(cache)
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.0.insert(key, value);
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.0.get(key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.0.remove(key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn as_many_are_kept_as_were_asked_for_and_each_is_taken_once() {
        let sessions = Sessions::new(100, Duration::from_secs(60));
        for n in 0..1000u32 {
            sessions.put(n.to_be_bytes().to_vec(), vec![0; 200]);
        }
        sessions.0.run_pending_tasks();
        let kept: Vec<_> = (0..1000u32).filter(|n| sessions.get(&n.to_be_bytes()).is_some()).collect();
        assert!((1..=100).contains(&kept.len()), "{}", kept.len());
        let one = kept[0].to_be_bytes();
        assert!(sessions.take(&one).is_some() && sessions.take(&one).is_none());
        let big = Sessions::new(2, Duration::from_secs(60));
        (0..10u8).for_each(|n| _ = big.put(vec![n], vec![0; 1500]));
        big.0.run_pending_tasks();
        assert!((0..10u8).filter(|n| big.get(&[*n]).is_some()).count() <= 1);
    }

    #[test]
    fn one_that_is_taken_up_again_and_again_ends_all_the_same() {
        let sessions = Sessions::new(100, Duration::from_millis(50));
        sessions.put(vec![1], vec![0; 200]);
        let began = Instant::now();
        while sessions.get(&[1]).is_some() {
            assert!(began.elapsed() < Duration::from_secs(10), "it is kept");
        }
    }
}
