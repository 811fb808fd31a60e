//! Makes an RSA key of 2048 bits, the kind that service account tokens are signed with everywhere else.
//!
//! ring signs with RSA keys but makes none. Whoever trusts a cluster's tokens from outside often takes RS256 and nothing
//! else, so this is what the first start makes. Follows FIPS 186-5, A.1.3: two random primes, far enough from each other,
//! each tried by [`ROUNDS`] Miller-Rabin tests. How long it takes depends on the primes; that tells nothing to anybody but
//! who watches the very first start, and ring checks what comes out before it signs with it.

use std::sync::OnceLock;

use num_bigint::BigUint;
use rustls_pki_types::PrivatePkcs8KeyDer;

use super::der::{INTEGER, OCTETS, SEQUENCE, element};

/// Bits of each prime.
const HALF: u64 = 1024;
/// Rounds of Miller-Rabin: table B.1 of FIPS 186-5 asks for 4 for primes of this length at 2^-112.
const ROUNDS: usize = 8;
const EXPONENT: u32 = 65_537;
/// Candidates that one of the primes below this divides are not worth a test.
const SIEVE: usize = 1 << 14;

fn small_primes() -> &'static [u32] {
    static PRIMES: OnceLock<Vec<u32>> = OnceLock::new();
    PRIMES.get_or_init(|| {
        let mut composite = vec![false; SIEVE];
        let mut out = Vec::new();
        for number in 3..SIEVE {
            if number % 2 == 0 || composite[number] {
                continue;
            }
            (number * number..SIEVE).step_by(number).for_each(|multiple| composite[multiple] = true);
            out.extend(u32::try_from(number));
        }
        out
    })
}

fn remainder(number: &BigUint, by: u32) -> u32 {
    // A remainder by 32 bits fits into one digit of 32.
    (number % by).iter_u32_digits().next().unwrap_or(0)
}

/// A random number with the two highest bits set, so that a product of two has all its bits, and the lowest, so that it
/// is odd.
fn candidate() -> BigUint {
    let mut bytes: [u8; (HALF / 8) as usize] = crate::random::secret();
    bytes[0] |= 0xc0;
    bytes[bytes.len() - 1] |= 1;
    BigUint::from_bytes_be(&bytes)
}

fn is_probably_prime(number: &BigUint) -> bool {
    let one = BigUint::from(1_u32);
    let less = number - &one;
    let Some(twos) = less.trailing_zeros() else { return false };
    let odd = &less >> twos;
    (0..ROUNDS).all(|_| {
        // Below the number and not 0: a witness is as good as any other.
        let witness = (candidate() % (number - 3_u32)) + 2_u32;
        let mut power = witness.modpow(&odd, number);
        if power == one || power == less {
            return true;
        }
        (1..twos).any(|_| {
            power = &power * &power % number;
            power == less
        })
    })
}

/// A random prime whose predecessor has no factor in common with the exponent.
fn prime() -> BigUint {
    loop {
        let start = candidate();
        let rests: Vec<(u32, u32)> = small_primes().iter().map(|p| (*p, remainder(&start, *p))).collect();
        // From here on to the next primes; a new beginning after a while, so that not every one follows a wide gap.
        for step in (0..4096_u32).step_by(2) {
            if rests.iter().any(|(prime, rest)| (rest + step) % prime == 0) {
                continue;
            }
            let number = &start + step;
            if number.bits() == HALF && remainder(&number, EXPONENT) != 1 && is_probably_prime(&number) {
                return number;
            }
        }
    }
}

/// Two primes that are not close to each other, the larger one first.
fn primes() -> (BigUint, BigUint) {
    loop {
        let other = std::thread::spawn(prime);
        let one = prime();
        // A thread that ended early was ended by a bug; its work is done again here.
        let other = other.join().unwrap_or_else(|_| prime());
        let (large, small) = if one > other { (one, other) } else { (other, one) };
        if (&large - &small).bits() > HALF - 100 {
            return (large, small);
        }
    }
}

fn integer(number: &BigUint) -> Vec<u8> {
    let mut bytes = number.to_bytes_be();
    // The highest bit is the sign.
    if bytes[0] & 0x80 != 0 {
        bytes.insert(0, 0);
    }
    element(INTEGER, &bytes)
}

/// A new key in PKCS#8; takes some tens of milliseconds on each of two cores.
pub fn generate() -> PrivatePkcs8KeyDer<'static> {
    let one = BigUint::from(1_u32);
    loop {
        let (p, q) = primes();
        let (p_less, q_less) = (&p - &one, &q - &one);
        let public = BigUint::from(EXPONENT);
        // Both always are: the primes were chosen for it, and they differ.
        let (Some(private), Some(coefficient)) = (public.modinv(&(&p_less * &q_less)), q.modinv(&p)) else { continue };
        // Version 0, then RFC 8017's RSAPrivateKey in its order.
        let numbers = [
            BigUint::ZERO,
            &p * &q,
            public,
            private.clone(),
            p.clone(),
            q.clone(),
            &private % p_less,
            private % q_less,
            coefficient,
        ];
        let key = element(SEQUENCE, &numbers.iter().flat_map(integer).collect::<Vec<u8>>());
        // rsaEncryption, with no parameters.
        let algorithm = [0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
        let parts = [integer(&BigUint::ZERO), algorithm.to_vec(), element(OCTETS, &key)].concat();
        return element(SEQUENCE, &parts).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_prime_is_found_out() {
        let known = (BigUint::from(1_u32) << 127_u32) - 1_u32;
        assert!(is_probably_prime(&known), "2^127-1");
        assert!(!is_probably_prime(&(&known * &known)));
        // A Carmichael number, which Fermat's test takes for a prime.
        assert!(!is_probably_prime(&BigUint::from(9_746_347_772_161_u64)));
    }

    #[test]
    fn keys_are_what_ring_takes_for_good() {
        let (key, other) = (generate(), generate());
        assert_ne!(key.secret_pkcs8_der(), other.secret_pkcs8_der());
        let pair = ring::rsa::KeyPair::from_pkcs8(key.secret_pkcs8_der()).expect("consistent");
        assert_eq!(pair.public().modulus_len(), 256);
    }
}
