//! Searches of JSON text, eight bytes at a time: most of what is read, and nearly all of what is passed by, is the inside
//! of strings.

/// A byte in each place of a word.
const fn each(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The upper bit of each byte that is below `bound`, which is at most 128. The lowest bit set is right; above it there may
/// be some that are not.
const fn below(word: u64, bound: u8) -> u64 {
    word.wrapping_sub(each(bound)) & !word & each(0x80)
}

/// The same for bytes that are `byte`.
const fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ each(byte), 1)
}

/// Where the first byte is that both searches name, the one by words and the one by bytes; the length of the text where
/// there is none.
#[inline]
fn first(text: &[u8], in_word: impl Fn(u64) -> u64, is: impl Fn(u8) -> bool) -> usize {
    let (words, rest) = text.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let found = in_word(u64::from_le_bytes(*word));
        if found != 0 {
            return at * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    rest.iter().position(|&b| is(b)).map_or(text.len(), |at| words.len() * 8 + at)
}

/// How many bytes of a text are plain inside of a string: neither quote nor backslash nor control character.
#[inline]
pub(super) fn plain(text: &[u8]) -> usize {
    let in_word = |word| equal(word, b'"') | equal(word, b'\\') | below(word, 0x20);
    first(text, in_word, |b| matches!(b, b'"' | b'\\' | 0..=0x1f))
}

/// The same where control characters do not matter.
#[inline]
pub(super) fn quoted(text: &[u8]) -> usize {
    first(text, |word| equal(word, b'"') | equal(word, b'\\'), |b| matches!(b, b'"' | b'\\'))
}

/// Bytes that Go's writer does not leave as they are, and the first of the two line ends that it escapes.
const fn is_special(byte: u8) -> bool {
    byte < 0x20 || matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&' | 0xe2)
}

/// Whether a text has to be looked at byte by byte to be written. Most are short and need nothing, so the end of a longer
/// one is looked at as a word too, whatever part of it was seen before.
#[inline]
pub(super) fn needs_escapes(text: &[u8]) -> bool {
    let in_word = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        // `<` and `>` differ in one bit.
        let pairs = equal(word | each(2), b'>') | equal(word, b'"') | equal(word, b'\\');
        (pairs | equal(word, b'&') | equal(word, 0xe2) | below(word, 0x20)) != 0
    };
    match text.last_chunk() {
        Some(last) => text.as_chunks().0.iter().any(in_word) || in_word(last),
        None => text.iter().fold(false, |any, &byte| any | SPECIAL[usize::from(byte)]),
    }
}

static SPECIAL: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_special(byte as u8);
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_is_special_is_seen_wherever_it_is() {
        for length in 1..20 {
            for at in 0..length {
                for byte in 0..=255 {
                    let mut text = vec![b'x'; length];
                    text[at] = byte;
                    assert_eq!(needs_escapes(&text), is_special(byte), "{text:?}");
                }
            }
        }
        assert!(!needs_escapes(b""));
    }

    #[test]
    fn words_find_what_bytes_find() {
        // Neighbours of what is looked for, and what a borrow from the byte below could turn into it.
        let bytes = [b'"', b'\\', 0, 0x1f, b' ', b'!', b'#', b'[', b']', b'a', 0x7f, 0x80, 0xa2, 0xdc, 0xff];
        for length in 0..20 {
            for at in 0..length {
                for one in bytes {
                    for other in bytes {
                        let mut text = vec![b'x'; length];
                        text[at] = one;
                        text[length - 1] = other;
                        let found = |is: fn(&u8) -> bool| text.iter().position(is).unwrap_or(length);
                        assert_eq!(plain(&text), found(|b| matches!(b, b'"' | b'\\' | 0..=0x1f)), "{text:?}");
                        assert_eq!(quoted(&text), found(|b| matches!(b, b'"' | b'\\')), "{text:?}");
                    }
                }
            }
        }
    }
}
