//! Reading compact JSON, as programs write it and as all of it is at rest, into a tree.
//!
//! What a status patch costs most is to read the object that is there. So nothing is noted here of where the reader is, and
//! the members of an object are gathered before they get a table, which is then as long as it has to be. Whatever is broken,
//! or out of the ordinary, is nothing here, and left to the reader that has the words for it.

use serde_json::{Map, Name, Value};

use super::lexer::{Lexer, number_value};
use super::max_depth;
use super::scan::plain;

/// Reads a value.
pub(super) fn any(text: &[u8]) -> Option<Value> {
    read(text, false, Reader::any)
}

/// Reads an object at rest but for its `metadata.managedFields`; `shared` makes it such that copies have its objects in
/// common.
pub(super) fn without_owners(text: &[u8], shared: bool) -> Option<Value> {
    read(text, shared, |reader| reader.object(Level::Top))
}

fn read<'a>(text: &'a [u8], shared: bool, read: impl Fn(&mut Reader<'a>) -> Option<Value>) -> Option<Value> {
    let text = std::str::from_utf8(text).ok()?;
    // Most objects have no more, with those around them.
    let mut reader = Reader { text, at: 0, depth: 0, deepest: max_depth(), members: Vec::with_capacity(32), shared };
    let value = read(&mut reader)?;
    text[reader.at..].trim_matches(['\n', ' ', '\r', '\t']).is_empty().then_some(value)
}

/// Which members of an object matter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Top,
    Metadata,
    /// All, and of those below as well.
    Other,
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    deepest: usize,
    /// Those of the objects that are being read, the innermost last.
    members: Vec<(Name, Value)>,
    shared: bool,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Passes one byte by, if it is this one.
    fn pass(&mut self, byte: u8) -> Option<()> {
        let is = self.peek()? == byte;
        self.at += usize::from(is);
        is.then_some(())
    }

    fn enter(&mut self) -> Option<()> {
        self.at += 1;
        self.depth += 1;
        (self.depth <= self.deepest).then_some(())
    }

    /// Behind a member or an item: whether there is another one.
    fn goes_on(&mut self, end: u8) -> Option<bool> {
        let next = self.peek()?;
        self.at += 1;
        match next {
            b',' => Some(true),
            next if next == end => {
                self.depth -= 1;
                Some(false)
            }
            _ => None,
        }
    }

    fn any(&mut self) -> Option<Value> {
        match self.peek()? {
            b'"' => Some(Value::String(self.plain_or(|text| text.to_owned(), |text| text)?)),
            b'{' => self.object(Level::Other),
            b'[' => self.list(),
            b't' => self.literal("true", Value::Bool(true)),
            b'f' => self.literal("false", Value::Bool(false)),
            b'n' => self.literal("null", Value::Null),
            _ => self.number(),
        }
    }

    fn object(&mut self, level: Level) -> Option<Value> {
        if self.peek()? != b'{' {
            return None;
        }
        self.enter()?;
        let first = self.members.len();
        if self.pass(b'}').is_some() {
            self.depth -= 1;
            return Some(Value::Object(Map::new()));
        }
        loop {
            let name = self.plain_or(Name::from, Name::from)?;
            self.pass(b':')?;
            let value = match level {
                Level::Top if name == "metadata" => Some(self.object(Level::Metadata)?),
                Level::Metadata if name == "managedFields" => {
                    self.at += super::parts::end(&self.text.as_bytes()[self.at..])?;
                    None
                }
                _ => Some(self.any()?),
            };
            self.members.extend(value.map(|value| (name, value)));
            if !self.goes_on(b'}')? {
                break;
            }
        }
        let mut map = Map::of(self.members.drain(first..))?;
        if self.shared {
            map.share();
        }
        Some(Value::Object(map))
    }

    fn list(&mut self) -> Option<Value> {
        self.enter()?;
        let mut items = Vec::new();
        if self.pass(b']').is_some() {
            self.depth -= 1;
            return Some(Value::Array(items));
        }
        loop {
            items.push(self.any()?);
            if !self.goes_on(b']')? {
                return Some(Value::Array(items));
            }
        }
    }

    /// The text at hand as `as_is` makes something of it where it stands, or `escaped` of what its escapes mean.
    fn plain_or<T>(&mut self, as_is: impl FnOnce(&'a str) -> T, escaped: impl FnOnce(String) -> T) -> Option<T> {
        let start = self.at + 1;
        self.pass(b'"')?;
        let end = start + plain(self.text.as_bytes().get(start..)?);
        if self.text.as_bytes().get(end)? == &b'"' {
            self.at = end + 1;
            return self.text.get(start..end).map(as_is);
        }
        let mut lexer = Lexer::for_parts(&self.text.as_bytes()[start - 1..]);
        let text = lexer.string().ok()?.into_owned();
        self.at = start - 1 + lexer.offset();
        Some(escaped(text))
    }

    fn literal(&mut self, word: &str, value: Value) -> Option<Value> {
        let is = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        self.at += word.len();
        is.then_some(value)
    }

    fn number(&mut self) -> Option<Value> {
        let mut lexer = Lexer::for_parts(&self.text.as_bytes()[self.at..]);
        let value = number_value(lexer.number().ok()?).ok()?;
        self.at += lexer.offset();
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the other reader has it; None where it complains.
    fn slowly(text: &str) -> Option<Value> {
        let mut lexer = Lexer::new(text.as_bytes());
        let value = lexer.any().and_then(|value| lexer.end().map(|()| value)).ok()?;
        lexer.take_strict().is_empty().then_some(value)
    }

    fn told(text: &str) -> Value {
        let mut value = slowly(text).expect("JSON");
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        value
    }

    #[test]
    fn a_text_at_rest_is_read_as_the_other_reader_reads_it() {
        let wide = (0..100).map(|n| format!(r#""m{}":{n}"#, n * 37 % 100)).collect::<Vec<_>>().join(",");
        for text in [
            r#"{}"#,
            r#"{"metadata":{}}"#,
            r#"{"metadata":{"managedFields":[{"a":"]}"}],"name":"a","labels":{"managedFields":"kept","b":""}},"spec":{}}"#,
            r#"{"z":[],"a":[1,-2,0.5,1e30,18446744073709551615,[[]],{"y":null,"x":true,"w":false}],"m":"\"\\\u003c\n\u00e4ä"}"#,
            "{\"\\\"é\\u0041\":{\"b\":{\"c\":{\"d\":\"e\"}}}}\n",
            &format!(r#"{{"data":{{{wide}}},"list":[{{{wide}}}]}}"#),
        ] {
            let wanted = told(text);
            for shared in [false, true] {
                let read = without_owners(text.as_bytes(), shared).expect("of our own writing");
                assert_eq!((read.to_string(), &read), (wanted.to_string(), &wanted), "{text}");
            }
            let whole = slowly(text).expect("JSON");
            assert_eq!(any(text.as_bytes()), Some(whole), "{text}");
        }
    }

    #[test]
    fn copies_of_a_shared_tree_have_all_its_objects_in_common() {
        let text = br#"{"spec":{"list":[{"a":{"b":1}}]},"status":{"c":"d"}}"#;
        let tree = without_owners(text, true).expect("of our own writing");
        let mut copy = tree.clone();
        copy["status"]["c"] = "e".into();
        let one = |a: &Value, b: &Value| a.as_object().zip(b.as_object()).is_some_and(|(a, b)| a.is(b));
        assert!(one(&tree["spec"], &copy["spec"]) && !one(&tree["status"], &copy["status"]));
        assert!(one(&tree["spec"]["list"][0]["a"], &copy["spec"]["list"][0]["a"].clone()));
        assert_eq!((&tree["status"]["c"], &copy["status"]["c"]), (&"d".into(), &"e".into()));
    }

    #[test]
    fn what_is_broken_or_out_of_the_ordinary_is_left_to_the_other_reader() {
        let most = max_depth();
        let deep = "{\"a\":".repeat(most + 1) + "1" + &"}".repeat(most + 1);
        let many = (0..50).map(|n| format!("\"{}\":0", n % 49)).collect::<Vec<_>>().join(",");
        let unusual = ["{ }", r#"{"a" :1}"#, r#"{"a": 1}"#, r#" {"a":1}"#, r#"{"a":1,"a":2}"#, &format!("{{{many}}}")];
        let broken = [
            "",
            "{",
            "{}x",
            r#"{"a":1,}"#,
            r#"{"a":[1,]}"#,
            r#"{"a":[1}"#,
            r#"{"a":tru}"#,
            r#"{"a":}"#,
            r#"{"a":"b}"#,
            r#"{"a":-}"#,
            r#"{"a":01}"#,
            r#"{"a":1.}"#,
            r#"{"a":"\x"}"#,
            "{\"a\":\"\n\"}",
            r#"{"a":1e999}"#,
            &deep,
        ];
        for text in unusual.into_iter().chain(broken) {
            assert_eq!((any(text.as_bytes()), without_owners(text.as_bytes(), true)), (None, None), "{text}");
        }
        assert!(broken.iter().all(|text| slowly(text).is_none()));
        for text in ["[]", "null", r#"{"metadata":null}"#, r#"{"metadata":{"managedFields":[}"#] {
            assert_eq!(without_owners(text.as_bytes(), false), None, "{text}");
        }
        assert_eq!(any(b"{\"a\":\"\xff\"}"), None);
    }
}
