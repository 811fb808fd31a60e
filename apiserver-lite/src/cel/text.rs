//! Texts of values: those of an object are looked at where they lie, and those that expressions make are shared, so that
//! naming a text never copies it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

#[derive(Debug, Clone)]
pub enum Text<'a> {
    Lent(&'a str),
    Shared(Arc<str>),
}

impl<'a> Text<'a> {
    /// A part of it, which is copied only where the text is not lent; None for one that is none.
    pub fn part(&self, range: std::ops::Range<usize>) -> Option<Text<'a>> {
        match self {
            Text::Lent(text) => text.get(range).map(Text::Lent),
            Text::Shared(text) => text.get(range).map(|part| Text::Shared(part.into())),
        }
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Lent(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Text::Lent(text)
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Text::Shared(text.into())
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}
