//! The JSON of an object at rest, and its protobuf, and what they share with those of others.
//!
//! More than half of a pod is the list of who owns which of its fields, and pods of one template have the same fields.
//! Those pieces are kept once for all objects that have them; the rest, and what is short, is the object's own. The
//! same table shares short texts that many objects repeat, such as labels.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use bytes::Bytes;
use proto::json::Walk;

use super::hash::Keyed;

/// Compact JSON, or a message. Reads put it together; it is not looked into where it lies.
#[derive(Debug, Clone, Default)]
pub struct Text {
    /// Everything that is not shared, in order.
    own: Bytes,
    /// Pieces and where they go: before this byte of `own`.
    shared: Box<[(u32, Arc<str>)]>,
    /// Where `metadata.managedFields` lies in the whole of a JSON text; nowhere where there is none.
    owners: (u32, u32),
}

/// Shorter pieces are not worth a reference.
const WORTH_SHARING: usize = 128;

impl Text {
    pub fn new(json: Vec<u8>) -> Self {
        Text::after(json, &Text::default())
    }

    /// The same for a text that probably shares what `like` does, as an object's next version does: that is not looked
    /// for in the table of all.
    pub fn after(json: Vec<u8>, like: &Text) -> Self {
        let Found { pieces, owners } = find(&json, &like.shared);
        let size = |at: usize| u32::try_from(at).ok();
        let owners = size(owners.start).zip(size(owners.end)).unwrap_or_default();
        let shared = |piece: Piece| match piece.known {
            Some(known) => Some((piece.range, known)),
            None => Some((piece.range.clone(), intern(std::str::from_utf8(&json[piece.range]).ok()?))),
        };
        let pieces: Option<Vec<(Range<usize>, Arc<str>)>> = pieces.into_iter().map(shared).collect();
        let Some(pieces) = pieces.filter(|p| !p.is_empty() && size(json.len()).is_some()) else {
            return Text { own: Bytes::from(json.into_boxed_slice()), shared: Box::default(), owners };
        };
        let mut own = Vec::with_capacity(json.len() - pieces.iter().map(|(range, _)| range.len()).sum::<usize>());
        let (mut shared, mut at) = (Vec::with_capacity(pieces.len()), 0);
        for (range, text) in pieces {
            own.extend_from_slice(&json[at..range.start]);
            shared.push((u32::try_from(own.len()).unwrap_or(u32::MAX), text));
            at = range.end;
        }
        own.extend_from_slice(&json[at..]);
        Text { own: Bytes::from(own.into_boxed_slice()), shared: shared.into(), owners }
    }

    /// The same object in another encoding that has the field sets of `like` in it, in the same order: they are shared
    /// with it. What of them is not found is the text's own.
    pub fn sharing(bytes: Vec<u8>, like: &Text) -> Self {
        let (mut own, mut shared, mut at) = (Vec::with_capacity(bytes.len()), Vec::new(), 0);
        for (_, piece) in &like.shared {
            let Some(found) = place_of(piece.as_bytes(), &bytes, at) else { continue };
            own.extend_from_slice(&bytes[at..found]);
            shared.push((u32::try_from(own.len()).unwrap_or(u32::MAX), piece.clone()));
            at = found + piece.len();
        }
        if shared.is_empty() || u32::try_from(bytes.len()).is_err() {
            return Text { own: Bytes::from(bytes.into_boxed_slice()), shared: Box::default(), owners: (0, 0) };
        }
        own.extend_from_slice(&bytes[at..]);
        Text { own: Bytes::from(own.into_boxed_slice()), shared: shared.into(), owners: (0, 0) }
    }

    pub fn len(&self) -> usize {
        self.own.len() + self.shared.iter().map(|(_, piece)| piece.len()).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// All but the shared pieces; they lie in `metadata.managedFields`.
    pub fn own(&self) -> &[u8] {
        &self.own
    }

    /// Where the list of the owners of fields lies in the whole text; an empty range where there is none.
    pub fn owners(&self) -> Range<usize> {
        self.owners.0 as usize..self.owners.1 as usize
    }

    /// The whole text.
    pub fn bytes(&self) -> Bytes {
        if self.shared.is_empty() {
            return self.own.clone();
        }
        let mut out = Vec::with_capacity(self.len());
        self.append_from(0, &mut out);
        out.into()
    }

    /// Appends the text from a byte on that lies before the first shared piece.
    pub fn append_from(&self, start: usize, out: &mut Vec<u8>) {
        let mut at = start;
        for (place, piece) in &self.shared {
            let place = *place as usize;
            out.extend_from_slice(&self.own[at..place]);
            out.extend_from_slice(piece.as_bytes());
            at = place;
        }
        out.extend_from_slice(&self.own[at..]);
    }
}

impl From<Bytes> for Text {
    fn from(json: Bytes) -> Self {
        Text::new(json.into())
    }
}

impl From<Vec<u8>> for Text {
    fn from(json: Vec<u8>) -> Self {
        Text::new(json)
    }
}

/// Where a field set stands in other bytes, from `from` on. It begins with a brace, which is rare in what is no JSON.
fn place_of(piece: &[u8], bytes: &[u8], from: usize) -> Option<usize> {
    let (first, mut at) = (*piece.first()?, from);
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == first)?;
        if bytes[at..].starts_with(piece) {
            return Some(at);
        }
        at += 1;
    }
}

/// What is worth sharing in an object's JSON.
#[derive(Default)]
struct Found {
    /// The field sets that lie two levels down in a `fieldsV1`, such as the fields of all containers, or of all
    /// conditions. Finer than whole sets, because an address somewhere in the status makes those of two pods differ.
    pieces: Vec<Piece>,
    /// Where `metadata.managedFields` lies.
    owners: Range<usize>,
}

struct Piece {
    range: Range<usize>,
    /// The same among the pieces of another text.
    known: Option<Arc<str>>,
}

/// Looks for pieces; `known` are those of another text, which mostly come again in their order.
fn find(json: &[u8], known: &[(u32, Arc<str>)]) -> Found {
    let (mut pieces, mut left) = (Vec::new(), known);
    let mut field = |walk: &mut Walk<'_>| {
        // Nearly all are a field without anything below it.
        if walk.is(b"{}") {
            return Some(());
        }
        let start = walk.offset();
        if let Some(at) = left.iter().position(|(_, piece)| walk.is(piece.as_bytes())) {
            pieces.push(Piece { range: start..walk.offset(), known: Some(left[at].1.clone()) });
            left = &left[at + 1..];
            return Some(());
        }
        let length = walk.raw()?.len();
        if length >= WORTH_SHARING {
            pieces.push(Piece { range: walk.offset() - length..walk.offset(), known: None });
        }
        Some(())
    };
    let mut set = |walk: &mut Walk<'_>| walk.object(|walk, _| walk.object(|walk, _| field(walk)));
    let mut entry = |walk: &mut Walk<'_>| member(walk, "fieldsV1", &mut set);
    let mut owners = 0..0;
    let mut list = |walk: &mut Walk<'_>| {
        let start = walk.offset();
        walk.list(&mut entry)?;
        owners = start..walk.offset();
        Some(())
    };
    let mut metadata = |walk: &mut Walk<'_>| member(walk, "managedFields", &mut list);
    // What cannot be walked through to its end shares what was found before.
    let _ = member(&mut Walk::new(json), "metadata", &mut |walk| metadata(walk).and(None));
    Found { pieces, owners }
}

/// Goes into a member of the object at hand, and passes the others by.
fn member(walk: &mut Walk<'_>, name: &str, read: &mut dyn FnMut(&mut Walk<'_>) -> Option<()>) -> Option<()> {
    walk.object(|walk, key| if key == name { read(walk) } else { walk.raw().map(drop) })
}

/// Texts that several objects have. Of the whole process, because a text is worth the same everywhere.
static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Table {
    texts: HashSet<Arc<str>, Keyed>,
    /// How many there may be before those are looked for that nobody has any more.
    sweep_at: usize,
}

/// Texts below this number are not worth looking through.
const FEW: usize = 1024;

/// The one copy of a text.
pub(super) fn intern(text: &str) -> Arc<str> {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = table.texts.get(text) {
        return known.clone();
    }
    if table.texts.len() >= table.sweep_at {
        table.texts.retain(|text| Arc::strong_count(text) > 1);
        table.texts.shrink_to(FEW);
        table.sweep_at = (table.texts.len() * 2).max(FEW);
    }
    let text: Arc<str> = text.into();
    table.texts.insert(text.clone());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, ip: &str) -> Vec<u8> {
        let long = (0..20).map(|n| format!(r#""f:field{n}":{{}}"#)).collect::<Vec<_>>().join(",");
        format!(
            r#"{{"metadata":{{"name":"{name}","managedFields":[{{"manager":"\"fieldsV1\":{{","fieldsV1":{{"f:spec":{{"f:containers":{{"k:{{\"name\":\"}}\"}}":{{{long}}}}}}}}}}},{{"fieldsV1":{{"f:status":{{"f:conditions":{{{long}}},"f:podIPs":{{"k:{{\"ip\":\"{ip}\"}}":{{}}}}}}}},"subresource":"status"}}]}},"spec":{{}}}}"#
        )
        .into_bytes()
    }

    #[test]
    fn a_text_comes_back_as_it_was_and_its_field_sets_are_kept_once() {
        let (a, b) = (pod("a", "10.0.0.1"), pod("b", "10.0.0.2"));
        let (kept_a, kept_b) = (Text::new(a.clone()), Text::new(b.clone()));
        assert_eq!((&kept_a.bytes()[..], &kept_b.bytes()[..]), (&a[..], &b[..]));
        assert_eq!(kept_a.len(), a.len());
        assert_eq!(kept_a.shared.len(), 2, "containers and conditions");
        for (a, b) in kept_a.shared.iter().zip(&kept_b.shared) {
            assert!(Arc::ptr_eq(&a.1, &b.1));
        }
        let mut rest = Vec::new();
        kept_a.append_from(12, &mut rest);
        assert_eq!(rest, a[12..]);
    }

    #[test]
    fn the_next_version_of_a_text_takes_over_what_it_shares() {
        let json = pod("a", "10.0.0.1");
        let first = Text::new(json.clone());
        let owners = &json[first.owners()];
        assert!(owners.starts_with(br#"[{"manager""#) && owners.ends_with(br#""subresource":"status"}]"#));
        let next = String::from_utf8(json).expect("text").replace("\"name\":\"a\"", "\"name\":\"other\"");
        let fewer = next.replacen("f:field0\":{},", "", 1);
        for text in [next, fewer] {
            let (after, anew) = (Text::after(text.clone().into(), &first), Text::new(text.clone().into()));
            assert_eq!((&after.bytes()[..], after.owners()), (text.as_bytes(), anew.owners()));
            let places = |text: &Text| text.shared.iter().map(|(at, piece)| (*at, piece.as_ptr())).collect::<Vec<_>>();
            assert_eq!(places(&after), places(&anew));
        }
        assert_eq!(Text::new(b"{\"metadata\":{}}".to_vec()).owners(), 0..0);
    }

    #[test]
    fn another_encoding_shares_the_same_field_sets() {
        let json = Text::new(pod("a", "10.0.0.1"));
        let sets: Vec<&[u8]> = json.shared.iter().map(|(_, piece)| piece.as_bytes()).collect();
        let message = [&b"\x0a{"[..], sets[0], b"}{\x12", sets[1], b"{"].concat();
        let kept = Text::sharing(message.clone(), &json);
        assert_eq!((&kept.bytes()[..], kept.own()), (&message[..], &b"\x0a{}{\x12{"[..]));
        assert!(kept.shared.iter().zip(&json.shared).all(|(a, b)| Arc::ptr_eq(&a.1, &b.1)));
        // What stands in another order, or is not there, is kept as it is.
        let turned = [sets[1], sets[0], b"{"].concat();
        let kept = Text::sharing(turned.clone(), &json);
        assert_eq!((&kept.bytes()[..], kept.shared.len()), (&turned[..], 1));
        let kept = Text::sharing(b"\x01{".to_vec(), &json);
        assert_eq!((&kept.bytes()[..], kept.shared.len()), (&b"\x01{"[..], 0));
    }

    #[test]
    fn texts_without_long_field_sets_are_all_their_own() {
        for text in [
            "",
            "{}",
            r#"{"metadata":{"managedFields":[{"fieldsV1":{"f:a":{"f:b":{}}}}]}}"#,
            r#"{"managedFields":[{"fieldsV1":{"#,
        ] {
            let kept = Text::new(text.as_bytes().to_vec());
            assert!(kept.shared.is_empty());
            assert_eq!(&kept.bytes()[..], text.as_bytes());
        }
        assert_eq!(&Text::new(vec![0xff, b'{']).bytes()[..], [0xff, b'{']);
    }

    #[test]
    fn texts_that_nobody_has_any_more_are_let_go() {
        for n in 0..4 * FEW {
            drop(intern(&format!("let go {n}")));
        }
        let table = TABLE.lock().expect("no test panics while it holds the table");
        assert!(table.texts.iter().filter(|t| t.starts_with("let go")).count() <= 2 * FEW);
    }
}
