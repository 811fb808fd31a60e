//! The JSON of an object at rest, and its protobuf, and what they share with those of others.
//!
//! More than half of a pod is the list of who owns which of its fields, and pods of one template have the same fields.
//! Those pieces are kept once for all objects that have them; the rest, and what is short, is the object's own. The
//! same table shares short texts that many objects repeat, such as labels.

use std::borrow::Cow;
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
    /// The last piece is what the object is to be.
    has_spec: bool,
    /// Where `metadata.managedFields` lies in the whole of a JSON text; nowhere where there is none.
    owners: (u32, u32),
    /// Bytes that there are because of this text: its own, and the pieces that it was the first to have.
    weight: u32,
}

/// Shorter pieces are not worth a reference.
const WORTH_SHARING: usize = 128;
/// The same for what is shared by the versions of one object only.
const WORTH_KEEPING: usize = 512;
/// So many pieces of another text are looked at for one place: they mostly come in their order, and an object may have tens
/// of thousands of each. What is passed over is looked for in the table of all.
const LOOKED_AHEAD: usize = 8;

impl Text {
    pub fn new(json: Vec<u8>) -> Self {
        let Found { pieces, owners, .. } = find(&json, &[]);
        Text { owners: short(owners), ..Text::split(json, pieces) }
    }

    /// The same for a text that is written now, and probably has much in common with `like`, as an object's next version
    /// has: what that shares is not looked for in the table of all. The spec becomes a piece, which the next versions will
    /// have too while only the status changes.
    pub fn written(json: Vec<u8>, like: &Text) -> Self {
        let Found { mut pieces, owners, end } = find(&json, like.sets());
        let spec = spec(&json, end, like.spec());
        let has_spec = spec.is_some();
        pieces.extend(spec);
        let text = Text::split(json, pieces);
        // A text that is too long to be split has no pieces at all.
        Text { owners: short(owners), has_spec: has_spec && !text.shared.is_empty(), ..text }
    }

    /// The same object in another encoding that has the field sets of `like` in it, in the same order: they are shared
    /// with it. What of them is not found is the text's own.
    pub fn sharing(bytes: Vec<u8>, like: &Text) -> Self {
        let (mut pieces, mut at) = (Vec::new(), 0);
        for (_, piece) in like.sets() {
            let Some(found) = place_of(piece.as_bytes(), &bytes, at) else { continue };
            at = found + piece.len();
            pieces.push(Piece { range: found..at, text: Some(piece.clone()), new: false });
        }
        Text::split(bytes, pieces)
    }

    /// Puts pieces, which come in order, apart from the rest.
    fn split(bytes: Vec<u8>, pieces: Vec<Piece>) -> Self {
        let whole = |bytes: Vec<u8>| {
            let weight = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            Text { own: Bytes::from(bytes.into_boxed_slice()), weight, ..Text::default() }
        };
        if pieces.is_empty() || u32::try_from(bytes.len()).is_err() {
            return whole(bytes);
        }
        let mut own = Vec::with_capacity(bytes.len() - pieces.iter().map(|piece| piece.range.len()).sum::<usize>());
        let (mut shared, mut at, mut new) = (Vec::with_capacity(pieces.len()), 0, 0);
        for piece in pieces {
            let text = piece.text.or_else(|| Some(intern(std::str::from_utf8(&bytes[piece.range.clone()]).ok()?)));
            let Some(text) = text else { return whole(bytes) };
            own.extend_from_slice(&bytes[at..piece.range.start]);
            new += if piece.new { text.len() } else { 0 };
            shared.push((u32::try_from(own.len()).unwrap_or(u32::MAX), text));
            at = piece.range.end;
        }
        own.extend_from_slice(&bytes[at..]);
        let weight = u32::try_from(own.len() + new).unwrap_or(u32::MAX);
        Text { own: Bytes::from(own.into_boxed_slice()), shared: shared.into(), weight, ..Text::default() }
    }

    /// Field sets, with their places.
    fn sets(&self) -> &[(u32, Arc<str>)] {
        &self.shared[..self.shared.len() - usize::from(self.has_spec)]
    }

    fn spec(&self) -> Option<&Arc<str>> {
        self.shared.last().filter(|_| self.has_spec).map(|(_, spec)| spec)
    }

    /// The spec, where it is a piece.
    pub fn spec_text(&self) -> Option<&str> {
        self.spec().map(|spec| &**spec)
    }

    pub fn len(&self) -> usize {
        self.own.len() + self.shared.iter().map(|(_, piece)| piece.len()).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// What stands before the first shared piece, which is never before `metadata`.
    pub fn begin(&self) -> &[u8] {
        let end = self.shared.first().map_or(self.own.len(), |(place, _)| *place as usize);
        &self.own[..end]
    }

    /// The text without most of `metadata.managedFields`: what is left there is a list of its form.
    pub fn without_owners(&self) -> Cow<'_, [u8]> {
        let Some((place, spec)) = self.shared.last().filter(|_| self.has_spec) else { return Cow::Borrowed(&self.own) };
        let (before, after) = self.own.split_at(*place as usize);
        Cow::Owned([before, spec.as_bytes(), after].concat())
    }

    /// About the bytes that are in memory because of this text alone.
    pub fn weight(&self) -> usize {
        self.weight as usize
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

/// Places in a text that is not too long to be split.
fn short(range: Range<usize>) -> (u32, u32) {
    let size = |at: usize| u32::try_from(at).ok();
    size(range.start).zip(size(range.end)).unwrap_or_default()
}

/// What is worth sharing in an object's JSON.
struct Found {
    /// The field sets that lie two levels down in a `fieldsV1`, such as the fields of all containers, or of all
    /// conditions. Finer than whole sets, because an address somewhere in the status makes those of two pods differ.
    pieces: Vec<Piece>,
    /// Where `metadata.managedFields` lies.
    owners: Range<usize>,
    /// Where `metadata` ends; zero where that is not known.
    end: usize,
}

struct Piece {
    range: Range<usize>,
    /// None where the table of all knows it, or is to know it.
    text: Option<Arc<str>>,
    /// Nobody else has it yet, or will have but for later versions.
    new: bool,
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
        if let Some(at) = left.iter().take(LOOKED_AHEAD).position(|(_, piece)| walk.is(piece.as_bytes())) {
            pieces.push(Piece { range: start..walk.offset(), text: Some(left[at].1.clone()), new: false });
            left = &left[at + 1..];
            return Some(());
        }
        let length = walk.raw()?.len();
        if length >= WORTH_SHARING {
            pieces.push(Piece { range: walk.offset() - length..walk.offset(), text: None, new: false });
        }
        Some(())
    };
    let mut set = |walk: &mut Walk<'_>| walk.object(|walk, _| walk.object(|walk, _| field(walk)));
    let mut entry = |walk: &mut Walk<'_>| member(walk, "fieldsV1", &mut set);
    let (mut owners, mut end) = (0..0, 0);
    let mut list = |walk: &mut Walk<'_>| {
        let start = walk.offset();
        walk.list(&mut entry)?;
        owners = start..walk.offset();
        Some(())
    };
    let mut metadata = |walk: &mut Walk<'_>| {
        member(walk, "managedFields", &mut list)?;
        end = walk.offset();
        // The walk ends with what it was for.
        None
    };
    // What cannot be walked through to its end shares what was found before.
    let _ = member(&mut Walk::new(json), "metadata", &mut metadata);
    Found { pieces, owners, end }
}

/// The spec that follows behind `metadata`, where it is long; `known` is that of another text.
fn spec(json: &[u8], metadata_end: usize, known: Option<&Arc<str>>) -> Option<Piece> {
    const NAME: &[u8] = b",\"spec\":";
    let start = metadata_end + NAME.len();
    let rest = json.get(metadata_end..)?.strip_prefix(NAME)?;
    if let Some(known) = known.filter(|known| rest.starts_with(known.as_bytes())) {
        return Some(Piece { range: start..start + known.len(), text: Some(known.clone()), new: false });
    }
    let length = spec_length(rest).filter(|length| *length >= WORTH_KEEPING)?;
    let text = std::str::from_utf8(&rest[..length]).ok()?;
    Some(Piece { range: start..start + length, text: Some(text.into()), new: true })
}

/// How long the spec is that a text begins with.
fn spec_length(rest: &[u8]) -> Option<usize> {
    const STATUS: &[u8] = b",\"status\":";
    /// A new object has a short status.
    const LOOKED_AT: usize = 128;
    // A status that ends right before the object does is the object's own, and it is found without walking through the
    // spec.
    let tail = rest.len().saturating_sub(LOOKED_AT);
    let status = rest[tail..].windows(STATUS.len()).position(|window| window == STATUS);
    let status = status.map(|at| tail + at).filter(|at| {
        let value = Walk::new(&rest[at + STATUS.len()..]).raw().map_or(0, <[u8]>::len);
        at + STATUS.len() + value + 1 == rest.len()
    });
    status.or_else(|| Some(Walk::new(rest).raw()?.len()))
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
        let first = Text::written(json.clone(), &Text::default());
        let owners = &json[first.owners()];
        assert!(owners.starts_with(br#"[{"manager""#) && owners.ends_with(br#""subresource":"status"}]"#));
        let next = String::from_utf8(json).expect("text").replace("\"name\":\"a\"", "\"name\":\"other\"");
        let fewer = next.replacen("f:field0\":{},", "", 1);
        for text in [next, fewer] {
            let after = Text::written(text.clone().into(), &first);
            let anew = Text::new(text.clone().into());
            assert_eq!((&after.bytes()[..], after.owners()), (text.as_bytes(), anew.owners()));
            let places = |text: &Text| text.shared.iter().map(|(at, piece)| (*at, piece.as_ptr())).collect::<Vec<_>>();
            assert_eq!(places(&after), places(&anew));
        }
        assert_eq!(Text::new(b"{\"metadata\":{}}".to_vec()).owners(), 0..0);
    }

    #[test]
    fn versions_share_their_spec_while_only_the_status_changes() {
        let long = "x".repeat(WORTH_KEEPING);
        let text = |name: &str, spec: &str, status: &str| {
            let set = (0..20).map(|n| format!(r#""f:field{n}":{{}}"#)).collect::<Vec<_>>().join(",");
            let owners = format!(r#"[{{"fieldsV1":{{"f:spec":{{"f:all":{{{set}}}}}}}}}]"#);
            format!(
                r#"{{"kind":"K","metadata":{{"name":"{name}","managedFields":{owners}}},"spec":{spec},"status":{status}}}"#
            )
        };
        let spec = format!(r#"{{"text":"{long}","nested":[{{"a":1,"status":{{}}}}]}}"#);
        let (new, ready) = (r#"{"phase":"Pending"}"#, r#"{"conditions":[{"type":"a","status":"True"}],"x":"}}"}"#);
        let first = Text::written(text("a", &spec, new).into(), &Text::default());
        assert_eq!(first.spec().map(|s| &**s), Some(&*spec));
        assert!(
            first.weight() > WORTH_KEEPING
                && first.begin()
                    == br#"{"kind":"K","metadata":{"name":"a","managedFields":[{"fieldsV1":{"f:spec":{"f:all":"#
        );
        let second = Text::written(text("a", &spec, ready).into(), &first);
        assert!(second.spec().zip(first.spec()).is_some_and(|(a, b)| Arc::ptr_eq(a, b)));
        assert!(second.weight() < WORTH_KEEPING);
        let other = spec.replace("\"a\":1", "\"a\":2");
        for (status, of) in [(new, &spec), (ready, &spec), (ready, &other), (r#"{"status":{}}"#, &other)] {
            let whole = text("b", of, status);
            let kept = Text::written(whole.clone().into(), &first);
            assert_eq!(String::from_utf8_lossy(&kept.bytes()), whole);
            assert_eq!((kept.len(), kept.spec().map(|s| &**s)), (whole.len(), Some(&**of)));
            let lean = proto::json::parse_without_owners(&kept.without_owners()).expect("JSON");
            assert_eq!(lean, proto::json::parse_without_owners(whole.as_bytes()).expect("JSON"));
            // Another encoding has the owners in it, and no spec as JSON.
            let owners = whole.as_bytes()[kept.owners()].to_vec();
            assert_eq!(Text::sharing(owners.clone(), &kept).bytes(), owners);
        }
        for short in [text("a", "{}", new), text("a", "null", new), r#"{"metadata":{},"spec":{"a"#.to_owned()] {
            let kept = Text::written(short.clone().into(), &first);
            assert_eq!((kept.spec(), &kept.bytes()[..]), (None, short.as_bytes()));
        }
    }

    #[test]
    fn a_field_set_that_comes_out_of_order_is_shared_all_the_same() {
        let long = |n: usize| format!(r#"{{"f:a{n}":{{"f:{}":{{}}}}}}"#, "x".repeat(WORTH_SHARING));
        let text = |sets: &[usize]| {
            let sets = sets.iter().map(|n| format!(r#"{{"fieldsV1":{{"f:spec":{{"f:b":{}}}}}}}"#, long(*n)));
            let sets = sets.collect::<Vec<_>>().join(",");
            format!(r#"{{"metadata":{{"managedFields":[{sets}]}}}}"#).into_bytes()
        };
        let all: Vec<usize> = (0..3 * LOOKED_AHEAD).collect();
        let first = Text::written(text(&all), &Text::default());
        let last = [3 * LOOKED_AHEAD - 1, 0];
        let second = Text::written(text(&last), &first);
        assert_eq!(second.bytes(), text(&last));
        assert!(Arc::ptr_eq(&second.sets()[0].1, &first.sets()[last[0]].1));
        assert!(Arc::ptr_eq(&second.sets()[1].1, &first.sets()[0].1));
    }

    #[test]
    fn another_encoding_shares_the_same_field_sets() {
        let json = Text::new(pod("a", "10.0.0.1"));
        let sets: Vec<&[u8]> = json.shared.iter().map(|(_, piece)| piece.as_bytes()).collect();
        let message = [&b"\x0a{"[..], sets[0], b"}{\x12", sets[1], b"{"].concat();
        let kept = Text::sharing(message.clone(), &json);
        assert_eq!((&kept.bytes()[..], &kept.own[..]), (&message[..], &b"\x0a{}{\x12{"[..]));
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
