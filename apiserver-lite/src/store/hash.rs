//! Hashes of texts that are long: sixteen bytes with each multiplication, where the standard library's take one at a time.
//!
//! Keyed by chance for each table. Whoever chooses the texts does not know where they go, though with much patience and
//! the times of answers it might be found out; that suits a table of shared texts, which nobody sees, and that of the
//! collections, whose names are few and nobody's choice but those of custom resources.

use std::hash::{BuildHasher, Hasher, RandomState};

#[derive(Clone)]
pub(super) struct Keyed {
    keys: [u64; 2],
}

impl Default for Keyed {
    fn default() -> Self {
        Keyed { keys: [(); 2].map(|()| RandomState::new().build_hasher().finish()) }
    }
}

impl BuildHasher for Keyed {
    type Hasher = Folding;

    fn build_hasher(&self) -> Folding {
        Folding { state: self.keys[0], key: self.keys[1] }
    }
}

pub(super) struct Folding {
    state: u64,
    key: u64,
}

/// Both halves of a product, which depend on every bit of both factors.
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        let mut mix = |pair: &[u8; 16]| {
            let (words, _) = pair.as_chunks();
            let [low, high] = [0, 1].map(|at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word)));
            self.state = folded(self.state ^ low, self.key ^ high);
        };
        let (pairs, rest) = bytes.as_chunks();
        pairs.iter().for_each(&mut mix);
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        mix(&last);
        self.state ^= bytes.len() as u64;
    }

    fn finish(&self) -> u64 {
        folded(self.state, self.key | 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn texts_that_differ_little_lie_apart_and_tables_differ() {
        let keyed = Keyed::default();
        let mut texts: Vec<String> = (0..64).map(|n| "x".repeat(n)).collect();
        texts.extend((0..64).map(|at| (0..64).map(|n| if n == at { 'y' } else { 'x' }).collect()));
        texts.extend((0..1000).map(|n| n.to_string()));
        let hashes: HashSet<u64> = texts.iter().map(|text| keyed.hash_one(text)).collect();
        assert_eq!(hashes.len(), texts.len());
        assert!(hashes.iter().map(|h| h >> 57).collect::<HashSet<_>>().len() > 100, "the upper bits are used too");
        assert_eq!(keyed.hash_one("a"), keyed.clone().hash_one("a"));
        assert_ne!(keyed.hash_one("a"), Keyed::default().hash_one("a"));
    }
}
