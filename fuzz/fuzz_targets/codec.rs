//! Any bytes, taken for each thing that the codec decodes: no panic, no allocation beyond the input, and what
//! decodes means the same when it is encoded and decoded again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tarn::codec::element::{self, Element};
use tarn::codec::key::{self, DiskKey, decode_key};
use tarn::codec::redo::{Ops, Record};
use tarn::codec::{Meta, NamespaceMap};

fuzz_target!(|data: &[u8]| {
    let Some((&what, bytes)) = data.split_first() else { return };
    match what % 5 {
        0 => decode_any_key(bytes),
        1 => decode_metadata(bytes),
        2 => decode_operations(bytes),
        3 => decode_namespaces(bytes),
        _ => {
            let _ = element::split_long_value(bytes);
            let _ = key::decode_count(bytes);
            let _ = key::decode_flushed(bytes);
            let _ = Element::decode(bytes);
        }
    }
});

fn decode_any_key(bytes: &[u8]) {
    let Ok(key) = decode_key(bytes) else { return };
    assert_eq!(key::element_owner(bytes).is_some(), matches!(key, DiskKey::Element { .. }));
    if let DiskKey::Element { element, .. } = key {
        let _ = Element::decode(element);
    }
    if let DiskKey::Meta { ns, key } = key {
        let mut again = Vec::new();
        key::meta_key_of_stored(ns, key, &mut again);
        assert_eq!(again, bytes);
    }
}

fn decode_metadata(bytes: &[u8]) {
    let Ok((meta, long_key, value)) = Meta::decode(bytes) else { return };
    let mut again = Vec::new();
    meta.encode(long_key, value, &mut again);
    assert_eq!(Meta::decode(&again), Ok((meta, long_key, value)));
}

fn decode_operations(bytes: &[u8]) {
    let mut again = Record::default();
    let ops: Vec<_> = Ops::new(bytes).map_while(Result::ok).collect();
    for op in &ops {
        op.encode(&mut again);
    }
    assert!(again.bytes().len() <= bytes.len());
    assert!(Ops::new(again.bytes()).map_while(Result::ok).eq(ops));
}

fn decode_namespaces(bytes: &[u8]) {
    let Ok(map) = NamespaceMap::decode(bytes) else { return };
    let mut again = Vec::new();
    map.encode(&mut again);
    assert_eq!(NamespaceMap::decode(&again), Ok(map));
}
