//! Random names: uids, and the suffixes of generated names; and the bytes that they are made of.

use std::cell::RefCell;

use ring::rand::{SecureRandom, SystemRandom};

/// Bytes that are asked of the kernel at a time: what it gives without a second thought, enough for a dozen names.
const SUPPLY: usize = 256;

thread_local! {
    /// Random bytes, and how many of them were used. None is used twice.
    static POOL: RefCell<([u8; SUPPLY], usize)> = const { RefCell::new(([0; SUPPLY], SUPPLY)) };
}

/// Bytes that nobody can guess, straight from the kernel and kept nowhere else: for keys.
pub fn secret<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    fill(&mut out);
    out
}

fn fill(out: &mut [u8]) {
    // The kernel's generator does not fail once the machine is up; a predictable uid would be worse than stopping.
    SystemRandom::new().fill(out).expect("the kernel gives random bytes");
}

/// Bytes for names.
fn bytes<const N: usize>() -> [u8; N] {
    const { assert!(N <= SUPPLY) };
    POOL.with_borrow_mut(|(pool, used)| {
        if *used + N > SUPPLY {
            fill(pool);
            *used = 0;
        }
        let mut out = [0; N];
        out.copy_from_slice(&pool[*used..*used + N]);
        *used += N;
        out
    })
}

/// A version 4 UUID.
pub fn uuid() -> String {
    let mut b: [u8; 16] = bytes();
    b[6] = b[6] & 0x0f | 0x40;
    b[8] = b[8] & 0x3f | 0x80;
    let digit = |n: u8| char::from_digit(n.into(), 16).unwrap_or('0');
    let mut text = String::with_capacity(36);
    for (at, byte) in b.into_iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    text
}

/// Letters that upstream uses for generated names: no vowels, no look-alikes.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A suffix of `length` characters for a generated name.
pub fn suffix(length: usize) -> String {
    letters(length, bytes)
}

/// So many characters of the same kind that nobody can guess.
pub fn secret_suffix(length: usize) -> String {
    letters(length, secret)
}

fn letters(length: usize, bytes: impl Fn() -> [u8; 16]) -> String {
    let mut out = String::with_capacity(length);
    while out.len() < length {
        for byte in bytes() {
            // 243 is the largest multiple of 27 below 256: the rest would make some letters likelier.
            if byte < 243 && out.len() < length {
                out.push(char::from(ALPHABET[usize::from(byte) % 27]));
            }
        }
    }
    out
}

/// A number from 0 up to, but not including, 1.
pub fn fraction() -> f64 {
    f64::from(u32::from_le_bytes(bytes())) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_random_and_uids_have_their_form() {
        let uids: std::collections::HashSet<String> = (0..1000).map(|_| uuid()).collect();
        assert_eq!(uids.len(), 1000);
        for uid in &uids {
            let parts: Vec<usize> = uid.split('-').map(str::len).collect();
            assert_eq!(parts, [8, 4, 4, 4, 12]);
            assert!(uid.bytes().all(|b| matches!(b, b'-' | b'0'..=b'9' | b'a'..=b'f')));
            assert!(&uid[14..15] == "4" && matches!(&uid[19..20], "8" | "9" | "a" | "b"));
        }
        assert_eq!(suffix(5).len(), 5);
        assert!((0.0..1.0).contains(&fraction()));
    }
}
