//! What bad commands find: big and sparse values of every type.

use super::peer::Peer;
use crate::common::resp::encode;

/// The keys that bad commands are sent for: name, type, and how to fill them.
pub(crate) struct Stock {
    pub(crate) size: usize,
}

pub(crate) const KEYS: [(&str, &str); 18] = [
    ("small", "string"),
    ("big", "string"),
    ("sparse", "string"),
    ("sparse2", "string"),
    ("counter", "string"),
    ("hll", "string"),
    ("set", "set"),
    ("set2", "set"),
    ("ints", "set"),
    ("zset", "zset"),
    ("zset2", "zset"),
    ("hash", "hash"),
    ("list", "list"),
    ("same", "list"),
    ("l", "list"),
    ("stream", "stream"),
    ("geo", "zset"),
    ("pending", "stream"),
];

impl Stock {
    /// Fills anew what bad commands have destroyed.
    pub(crate) fn tend(&self, peer: &mut Peer) {
        let asked: Vec<u8> = KEYS.iter().flat_map(|(key, _)| encode(&["TYPE", key])).collect();
        let types = peer.run(&asked, KEYS.len());
        for ((key, kind), is) in KEYS.iter().zip(types) {
            if is.head[1..] != **kind {
                peer.call(&format!("DEL {key}"));
                self.fill(peer, key);
            }
        }
    }

    pub(crate) fn fill(&self, peer: &mut Peer, key: &str) {
        match key {
            "small" => _ = peer.call("SET small text"),
            "counter" => _ = peer.call("SET counter 1"),
            "big" => _ = peer.run(&encode(&["SET", "big", &"v".repeat(self.size * 8)]), 1),
            "sparse" | "sparse2" => _ = peer.call(&format!("SETRANGE {key} 536870900 end")),
            "hll" => self.add(peer, &["PFADD", key], 1, |i| vec![format!("e{i}")]),
            "set" => self.add(peer, &["SADD", key], 1, |i| vec![format!("member:{i}")]),
            "set2" => self.add(peer, &["SADD", key], 1, |i| vec![format!("member:{}", 2 * i)]),
            "ints" => self.add(peer, &["SADD", key], 1, |i| vec![i.to_string()]),
            "zset" => self.add(peer, &["ZADD", key], 1, |i| vec![i.to_string(), format!("member:{i}")]),
            "zset2" => self.add(peer, &["ZADD", key], 1, |i| vec![i.to_string(), format!("member:{}", 2 * i)]),
            "hash" => self.add(peer, &["HSET", key], 1, |i| vec![format!("field:{i}"), format!("value:{i}")]),
            "list" => self.add(peer, &["RPUSH", key], 1, |i| vec![format!("element:{i}")]),
            "l" => self.add(peer, &["RPUSH", key], self.size.div_ceil(300), |i| vec![i.to_string()]),
            "same" => self.add(peer, &["RPUSH", key], self.size.div_ceil(300), |_| vec!["se".to_owned()]),
            "geo" => self.add(peer, &["GEOADD", key], 1, |i| {
                vec![format!("{}.5", i % 179), format!("{}.5", i % 85), format!("place:{i}")]
            }),
            _ => self.fill_stream(peer, key),
        }
    }

    /// Sends what `args` says of each element, 1000 a command; every `step`th only.
    fn add(&self, peer: &mut Peer, begin: &[&str], step: usize, args: impl Fn(usize) -> Vec<String>) {
        let elements: Vec<usize> = (0..self.size).step_by(step).collect();
        for some in elements.chunks(1000) {
            let mut command: Vec<String> = begin.iter().map(|arg| (*arg).to_owned()).collect();
            command.extend(some.iter().flat_map(|i| args(*i)));
            let reply = peer.run(&encode(&command), 1);
            assert!(reply.first().is_some_and(|reply| !reply.head.starts_with('-')), "{begin:?}");
        }
    }

    fn fill_stream(&self, peer: &mut Peer, key: &str) {
        for from in (0..self.size).step_by(1000) {
            let many: Vec<u8> =
                (from..from + 1000).flat_map(|i| encode(&["XADD", key, &format!("{}-1", i + 1), "f", "v"])).collect();
            peer.run(&many, 1000);
        }
        if key == "pending" {
            peer.call("XGROUP CREATE pending g 0");
            while peer.run(&encode(&["XREADGROUP", "GROUP", "g", "c", "COUNT", "1000", "STREAMS", key, ">"]), 1)[0].len
                > 10
            {}
        }
    }
}
