//! Broken input for every parser that the network reaches: none may panic, take long, or break a law that it promises.
//!
//! A run begins with the kept inputs (`corpus/PARSER/`), then changes them at random, the same way in every run;
//! `FUZZ_SECONDS` goes on for that long a parser, `FUZZ_SEED` another way. An input that fails is told in full and belongs into the corpus
//! once the mistake is mended.

mod expressions;
mod kinds;
mod numbers;
mod objects;
mod patches;
mod reference;
mod selections;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The longest that one input may take, in a debug build on a busy machine.
const SLOW: Duration = Duration::from_secs(10);
/// Inputs besides the kept ones when nobody asks for more: a second or two for each parser.
const INPUTS: usize = 3000;
/// The longest input.
const LONGEST: usize = 64 << 10;

/// A small reproducible generator (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`; zero when that is zero.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap_or(0) % limit.max(1)
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// What the fuzzing of a parser takes from its surroundings.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The kept inputs of a parser, in the order of their names.
fn corpus(parser: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fuzz/corpus").join(parser);
    let entries = std::fs::read_dir(&folder).expect("a folder of kept inputs");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no input is kept in {}", folder.display());
    files.iter().map(|file| std::fs::read(file).expect("is read")).collect()
}

/// A kept input, changed in a few places.
fn broken(random: &mut Random, kept: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut out = random.pick(kept).clone();
    for _ in 0..=random.below(6) {
        let at = random.below(out.len() + 1);
        let end = (at + random.below(16)).min(out.len());
        match random.below(9) {
            0 => out.truncate(at),
            1 => drop(out.drain(at..end)),
            2 => {
                let part = out[at..end].to_vec();
                out.splice(at..at, part);
            }
            3 if at < out.len() => out[at] ^= 1 << random.below(8),
            4 if at < out.len() => out[at] = random.next().to_le_bytes()[0],
            5 => {
                let other = random.pick(kept);
                let from = random.below(other.len() + 1);
                let part = other[from..].iter().copied().take(random.below(64)).collect::<Vec<_>>();
                out.splice(at..at, part);
            }
            6 => {
                let many = random.below(300);
                let word = random.pick(words).as_bytes().repeat(many.max(1));
                out.splice(at..at, word);
            }
            _ => {
                let word = random.pick(words).as_bytes().to_vec();
                out.splice(at..end, word);
            }
        }
        out.truncate(LONGEST);
    }
    out
}

/// Feeds a parser. `words` are what its language is made of.
fn feed(parser: &str, words: &[&str], check: impl Fn(&[u8])) {
    feed_part(1, parser, words, check);
}

/// The same for one of so many parts of the time: where a test has several corpora.
fn feed_part(parts: u32, parser: &str, words: &[&str], check: impl Fn(&[u8])) {
    let seed = setting("FUZZ_SEED", 0x5eed);
    let until = Instant::now() + Duration::from_secs(setting("FUZZ_SECONDS", 0)) / parts;
    let kept = corpus(parser);
    let mut random = Random::new(seed);
    let one = |input: &[u8]| {
        let begun = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| check(input)));
        let shown = || String::from_utf8_lossy(input).into_owned();
        assert!(done.is_ok(), "{parser} fails on {:?}\n{:02x?}", shown(), input);
        assert!(begun.elapsed() < SLOW, "{parser} takes {:?} for {:?}", begun.elapsed(), shown());
    };
    kept.iter().for_each(|input| one(input));
    let mut count = 0;
    while count < INPUTS || Instant::now() < until {
        one(&broken(&mut random, &kept, words));
        count += 1;
    }
}

/// Goes on with made-up cases, at least so many: the same ones in every run, or more where more time is given.
fn rounds(least: usize, mut check: impl FnMut(&mut Random)) {
    let until = Instant::now() + Duration::from_secs(setting("FUZZ_SECONDS", 0));
    let mut random = Random::new(setting("FUZZ_SEED", 0x5eed));
    let mut count = 0;
    while count < least || Instant::now() < until {
        check(&mut random);
        count += 1;
    }
}

/// Whether two trees are the same, but for how their numbers are written: `1.0` is written as `1`, which is read as an
/// integer, and `-0.0` as `-0`, which is none below zero any more.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

/// What JSON and its relatives are made of.
const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "\\u",
    "\\ud800",
    "null",
    "true",
    "-0.0",
    "1e400",
    "9223372036854775808",
    "0.1",
    "-",
    "e",
    ".",
    " ",
    "\u{0}",
    "\u{feff}",
    "\u{1f600}",
    "\"name\":",
    "\"kind\":\"Pod\"",
    "$patch",
    "f:",
    "k:{",
    "~1",
];
