//! A place in a text, for readers that go through it by hand.

/// Goes forward by whole characters; `at` may be set to any place between two.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'t> {
    pub whole: &'t str,
    /// Bytes before this place.
    pub at: usize,
}

impl<'t> Cursor<'t> {
    /// At the beginning.
    pub fn new(whole: &'t str) -> Self {
        Cursor { whole, at: 0 }
    }

    /// What is still to be read; nothing at a place that is none.
    pub fn rest(&self) -> &'t str {
        self.whole.get(self.at..).unwrap_or_default()
    }

    /// The next character, which stays the next.
    pub fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Goes past the next character.
    pub fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// What was read from `start` on.
    pub fn since(&self, start: usize) -> &'t str {
        self.whole.get(start..self.at).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_taken_whole() {
        let mut cursor = Cursor::new("a\u{e4}b");
        assert_eq!((cursor.take(), cursor.peek()), (Some('a'), Some('\u{e4}')));
        assert_eq!((cursor.take(), cursor.since(1), cursor.rest()), (Some('\u{e4}'), "\u{e4}", "b"));
        assert_eq!((cursor.take(), cursor.take(), cursor.at), (Some('b'), None, 4));
        cursor.at = 2;
        assert_eq!((cursor.rest(), cursor.peek()), ("", None), "within a character");
    }
}
