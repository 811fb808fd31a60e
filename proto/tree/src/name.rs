//! The name of a member.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::fmt::{self, Debug, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

/// A text that many objects have. One that was made known ([`know`]) takes no memory and copies cost nothing; others are
/// shared by their copies.
#[derive(Clone)]
pub struct Name(Text);

#[derive(Clone)]
enum Text {
    Known(&'static str),
    Shared(Arc<str>),
}

/// The texts that [`know`] was told, found by a hash of theirs. The same for all trees of the process, and never another
/// one: which of its two forms a name has makes no difference but in cost.
static KNOWN: OnceLock<Known> = OnceLock::new();

struct Known {
    names: Box<[&'static str]>,
    /// Positions in `names` plus one, zero for none, found by a hash of the name and looking on from there. A power of two
    /// in number, at most half of them taken.
    slots: Box<[u16]>,
}

/// Makes names known that will come again and again, such as those of a schema: up to some 65,000, of which each may be
/// told more than once. Only the first call counts.
pub fn know(names: impl IntoIterator<Item = &'static str>) {
    KNOWN.get_or_init(|| {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        names.truncate(usize::from(u16::MAX));
        let mut slots = vec![0; (names.len() * 2).next_power_of_two()];
        let mask = slots.len() - 1;
        for (number, name) in (1..=u16::MAX).zip(&names) {
            let mut at = slot(name) & mask;
            while slots[at] != 0 {
                at = (at + 1) & mask;
            }
            slots[at] = number;
        }
        Known { names: names.into(), slots: slots.into() }
    });
}

fn known(name: &str) -> Option<&'static str> {
    let Known { names, slots } = KNOWN.get()?;
    let mask = slots.len() - 1;
    let mut at = slot(name) & mask;
    loop {
        let known = names[usize::from(slots[at]).checked_sub(1)?];
        if is_same(known, name) {
            return Some(known);
        }
        at = (at + 1) & mask;
    }
}

/// Whether two texts are equal, for those that are short: a call to compare them costs more than to look at their ends.
#[inline]
pub fn is_same(a: &str, b: &str) -> bool {
    a.len() == b.len() && are_same(a.as_bytes(), b.as_bytes())
}

/// The same for texts of one length.
#[inline]
fn are_same(a: &[u8], b: &[u8]) -> bool {
    if let (Some(first), Some(other)) = (a.first_chunk::<8>(), b.first_chunk::<8>()) {
        return first == other && a.last_chunk::<8>() == b.last_chunk() && (a.len() <= 16 || a == b);
    }
    if let (Some(first), Some(other)) = (a.first_chunk::<4>(), b.first_chunk::<4>()) {
        return first == other && a.last_chunk::<4>() == b.last_chunk();
    }
    if let (Some(first), Some(other)) = (a.first_chunk::<2>(), b.first_chunk::<2>()) {
        return first == other && a.last() == b.last();
    }
    a == b
}

/// The order of two texts, of which most differ at their begin.
#[inline]
pub(crate) fn order(a: &str, b: &str) -> Ordering {
    match (a.as_bytes().first_chunk::<4>(), b.as_bytes().first_chunk::<4>()) {
        (Some(first), Some(other)) if first != other => u32::from_be_bytes(*first).cmp(&u32::from_be_bytes(*other)),
        _ => a.cmp(b),
    }
}

/// Where to begin the search for a name in a table of a power of two of places; every byte counts, so that names that
/// differ in a digit lie apart.
pub fn slot(name: &str) -> usize {
    let bytes = name.as_bytes();
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    let mut hash = bytes.len() as u64;
    match (bytes.last_chunk(), bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // What is left over at the end is read with what comes before it.
        (Some(last), ..) => {
            hash = bytes.as_chunks().0.iter().fold(hash, |hash, word| mix(hash, u64::from_le_bytes(*word)));
            hash = mix(hash, u64::from_le_bytes(*last));
        }
        (None, Some(first), Some(last)) => {
            hash = mix(hash, u64::from(u32::from_le_bytes(*first)) << 32 | u64::from(u32::from_le_bytes(*last)));
        }
        _ => hash = mix(hash, bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte))),
    }
    (hash >> 40) as usize
}

impl Name {
    /// One that is part of the program.
    pub const fn fixed(name: &'static str) -> Self {
        Name(Text::Known(name))
    }

    #[inline]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Known(name) => name,
            Text::Shared(name) => name,
        }
    }

    /// The text, where it is part of the program: of such a name copies cost nothing.
    pub const fn as_fixed(&self) -> Option<&'static str> {
        match self.0 {
            Text::Known(name) => Some(name),
            Text::Shared(_) => None,
        }
    }
}

impl Default for Name {
    fn default() -> Self {
        Name::fixed("")
    }
}

impl Deref for Name {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        self
    }
}

impl PartialEq for Name {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.as_str(), other.as_str());
        // Most are one text.
        std::ptr::eq(a, b) || is_same(a, b)
    }
}

impl Eq for Name {}

impl Ord for Name {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        order(self, other)
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

macro_rules! equal_to {
    ($($other:ty)*) => {$(
        impl PartialEq<$other> for Name {
            fn eq(&self, other: &$other) -> bool {
                let other: &str = other.as_ref();
                self.as_str() == other
            }
        }

        impl PartialEq<Name> for $other {
            fn eq(&self, other: &Name) -> bool {
                other == self
            }
        }
    )*};
}

equal_to! { str &str String }

impl Debug for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Debug::fmt(self.as_str(), f)
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        Name(known(name).map_or_else(|| Text::Shared(name.into()), Text::Known))
    }
}

impl From<&Name> for Name {
    fn from(name: &Name) -> Self {
        name.clone()
    }
}

macro_rules! made_of {
    ($($other:ty)*) => {$(
        impl From<$other> for Name {
            fn from(name: $other) -> Self {
                let name: &str = name.as_ref();
                name.into()
            }
        }
    )*};
}

made_of! { String &String Box<str> Cow<'_, str> }

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.as_str().into()
    }
}

impl From<&Name> for String {
    fn from(name: &Name) -> Self {
        name.as_str().into()
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

struct Reader;

impl Visitor<'_> for Reader {
    type Value = Name;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Name, E> {
        Ok(name.into())
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Reader)
    }
}
