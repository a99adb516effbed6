//! A row of keys that can be searched without waiting for memory at each step.

use smallvec::SmallVec;

/// Keys that ascend, or stay the same: what they all begin with, and of each the eight bytes behind that as a number that orders
/// like them. With these next to each other, and the last of each few of them once more, a search waits for memory two or three
/// times. Where they do not decide, the rest of the keys is looked at.
#[derive(Default)]
pub(super) struct Fences {
    /// Here, as it is looked at first.
    prefix: SmallVec<[u8; 40]>,
    /// The last head of every [`FEW`].
    steps: Box<[u64]>,
    heads: Box<[u64]>,
    /// What the keys have behind the prefix, one after the other.
    tails: Box<[u8]>,
    /// Where each of these ends.
    ends: Box<[u32]>,
}

/// Heads in a line of memory.
pub(super) const FEW: usize = 8;

/// The first bytes as a number that orders like them; what is missing counts as zero.
fn head(tail: &[u8]) -> u64 {
    let mut head = [0; 8];
    let some = tail.len().min(head.len());
    head[..some].copy_from_slice(&tail[..some]);
    u64::from_be_bytes(head)
}

impl Fences {
    /// Of these keys, none of which is below the one before, and which have less than 4 GiB together.
    pub(super) fn of(keys: &[&[u8]]) -> Fences {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Fences::default() };
        let same = if keys.len() > 1 { first.iter().zip(*last).take_while(|(a, b)| a == b).count() } else { 0 };
        let mut end = 0;
        let lengths = keys.iter().map(|key| key.len() - same);
        let heads: Box<[u64]> = keys.iter().map(|key| head(&key[same..])).collect();
        Fences {
            prefix: SmallVec::from_slice(&first[..same]),
            steps: heads.chunks_exact(FEW).map(|few| few[FEW - 1]).collect(),
            heads,
            tails: keys.iter().flat_map(|key| &key[same..]).copied().collect(),
            ends: lengths
                .map(|length| {
                    end += length as u32;
                    end
                })
                .collect(),
        }
    }

    /// The first of the keys that is not below this one, as many as there are if none is. `soon` is told of the first of some among
    /// which it is likely to be.
    pub(super) fn find(&self, key: &[u8], soon: impl FnOnce(usize)) -> usize {
        let Some(tail) = key.strip_prefix(&*self.prefix) else {
            return if key < &*self.prefix { 0 } else { self.heads.len() };
        };
        let head = head(tail);
        let few = FEW * self.steps.partition_point(|step| *step < head);
        soon(few);
        let few_heads = &self.heads[few..self.heads.len().min(few + FEW)];
        let from = few + few_heads.iter().map(|other| usize::from(*other < head)).sum::<usize>();
        let mut to = from;
        if self.heads.get(from) == Some(&head) {
            to += self.heads[from..].partition_point(|other| *other == head);
        }
        let (mut low, mut high) = (from, to);
        while low < high {
            let middle = low.midpoint(high);
            if self.tail(middle) < tail { low = middle + 1 } else { high = middle }
        }
        low
    }

    fn tail(&self, at: usize) -> &[u8] {
        let from = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.tails[from as usize..self.ends[at] as usize]
    }

    /// Of memory, beside itself.
    pub(super) fn bytes(&self) -> usize {
        let prefix = if self.prefix.spilled() { self.prefix.len() } else { 0 };
        prefix
            + self.tails.len()
            + [&self.steps, &self.heads].map(|heads| size_of_val(&**heads)).iter().sum::<usize>()
            + size_of_val(&*self.ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a search through the keys themselves does: of few and of many, alike and not, that are the beginning of one another.
    #[test]
    fn fences_lead_to_where_the_keys_do() {
        let mut random = 7;
        let mut next = |below: u64| crate::util::splitmix::next(&mut random) % below;
        for round in 0..2000 {
            let begin = &b"Mkey:0000000"[..next(13) as usize];
            let mut text = |letters: u64, most: u64| -> Vec<u8> {
                let tail = (0..next(most)).map(|_| next(letters) as u8 * 7).collect::<Vec<_>>();
                [begin, &tail].concat()
            };
            let mut keys: Vec<_> = (0..round % 40).map(|_| text(2, 14)).collect();
            keys.sort();
            if round % 2 == 0 {
                keys.dedup();
            }
            let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
            let fences = Fences::of(&keys);
            let others = [text(3, 20), begin.to_vec(), b"L".to_vec(), b"Mkez".to_vec(), Vec::new()];
            for key in keys.iter().copied().chain(others.iter().map(|key| &**key)) {
                let at = keys.partition_point(|other| *other < key);
                assert_eq!(fences.find(key, |_| ()), at, "{key:?} in {keys:?}");
            }
        }
    }
}
