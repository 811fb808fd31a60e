//! Random names: uids, and the suffixes of generated names; and the bytes that they are made of.

use ring::rand::{SecureRandom, SystemRandom};

/// Bytes that nobody can guess.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    // The kernel's generator does not fail once the machine is up; a predictable uid would be worse than stopping.
    SystemRandom::new().fill(&mut out).expect("the kernel gives random bytes");
    out
}

/// A version 4 UUID.
pub fn uuid() -> String {
    let mut b: [u8; 16] = bytes();
    b[6] = b[6] & 0x0f | 0x40;
    b[8] = b[8] & 0x3f | 0x80;
    let hex: String = b.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Letters that upstream uses for generated names: no vowels, no look-alikes.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A suffix of `length` characters for a generated name.
pub fn suffix(length: usize) -> String {
    let mut out = String::with_capacity(length);
    while out.len() < length {
        for byte in bytes::<16>() {
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
