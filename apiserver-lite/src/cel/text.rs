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
